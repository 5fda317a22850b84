// Package config turns YAML into plain structs, strictly: an unknown key, a
// wrong type or a value out of range is an error with its line and column.
package config

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Study says which setups are put through which experiments.
type Study struct {
	Name        string       `yaml:"study"`
	About       string       `yaml:"about"`
	Place       string       `yaml:"place"`      // "local"
	Cumulative  bool         `yaml:"cumulative"` // run into a folder that holds a run of it, it adds to that
	Setups      []Setup      `yaml:"setups"`
	Experiments []Experiment `yaml:"experiments"`

	source *source // what it was read from, nil if it was not
}

// Setup is a database topology on a named disk.
type Setup struct {
	Setup  string `yaml:"setup"`
	Disk   string `yaml:"disk"`   // default local-nvme
	Volume string `yaml:"volume"` // host-bound (default) or instance
	Crash  string `yaml:"crash"`  // what a power cut leaves of unflushed data: lose-all (default) or random-sectors
	AA     bool   `yaml:"aa"`     // deploy it twice, for commit: the noise floor comes from such pairs
	Twin   bool   `yaml:"-"`      // the second of an A/A pair; set by the planner
}

// Experiment is a measurement or a fault with its load.
type Experiment struct {
	Experiment string   `yaml:"experiment"`
	Setups     []string `yaml:"setups"` // which of the study's setups; all if empty
	Disks      []string `yaml:"disks"`  // which of their disks; all if empty
	Repeat     int      `yaml:"repeat"` // default 1

	Seconds  float64 `yaml:"seconds"`  // commit, flush step: length; faults: load before the fault
	Clients  []int   `yaml:"clients"`  // commit: one group of cells each
	Workload string  `yaml:"workload"` // commit: simple-update (pgbench -N, the default) or tpcb-like
	Protocol string  `yaml:"protocol"` // commit: simple (default), extended or prepared
	Scale    int     `yaml:"scale"`    // commit: pgbench's scale factor
	Via      string  `yaml:"via"`      // commit: socket (default), or tcp from a host of its own

	FlushTimes []float64 `yaml:"flush_times"` // commit: the primary's flushes take so many times as long as the disk's; one group each; default 1

	Memory    int     `yaml:"memory"`      // storage-bound, vacuum, logical-backlog: MB of the server's host; default 256, 128 and 128
	DataToRAM float64 `yaml:"data_to_ram"` // the same: the table's size by that memory; default 7.5
	Megabytes int     `yaml:"megabytes"`   // vacuum: dead rows, default a 48th of the table; logical-backlog: WAL, default 100
	Readers   []int   `yaml:"readers"`     // storage-bound: clients that read single rows beside; one group each; default 0

	After   float64 `yaml:"after"`   // faults: seconds of load after the first write came back
	Writers int     `yaml:"writers"` // faults: writers of the driver
	Rate    float64 `yaml:"rate"`    // a second over all writers or clients, 0: as fast as it goes. commit: open loop, response times from the schedule
	Payload int     `yaml:"payload"` // faults: bytes per row
	LagMs   []int   `yaml:"lag_ms"`  // power-off: standbys cut off that long before the cut; one group each

	Hold         float64  `yaml:"hold"`           // faults that last: seconds that they do; default 3
	RepeatInLoad int      `yaml:"repeat_in_load"` // faults: how often one load meets the fault; default 1
	Reads        float64  `yaml:"reads"`          // faults: share of the driver's turns that read the newest acknowledged write
	Targets      []string `yaml:"targets"`        // what is struck: see targetsOf; one group each; default the first there
	Standbys     []int    `yaml:"standbys"`       // lose-standbys: how many; one group each; default 1 and 2
	Promote      []bool   `yaml:"promote"`        // freeze, partition: whether a standby is promoted meanwhile; one group each; default both
	Ways         []string `yaml:"ways"`           // partition: both, from-primary, to-primary; one group each; default all
	Order        []string `yaml:"order"`          // all-off: in which hosts come back: stalest-first, seeded; one group each; default both
}

// Limits of a study's values; they keep a typing error from filling a disk.
const (
	maxRepeat    = 10000
	maxSeconds   = 24 * 3600
	maxClients   = 1000
	maxScale     = 10000
	maxPayload   = 1 << 20
	maxLagMs     = 600_000
	minMemory    = 128 // MB; with less there is no room for a server and its sessions
	maxMemory    = 1 << 20
	maxMegabytes = 1 << 20
)

// ParseStudy reads one study. Names of setups, experiments and disks are
// checked by the caller, who knows them. file appears in errors only.
func ParseStudy(file string, data []byte) (*Study, error) {
	var s Study
	src, err := strict(file, data, &s, "the study is empty; `holdfast lab list` names the built-in ones")
	if err != nil {
		return nil, err
	}
	s.source = src
	s.defaults()
	if err := s.validate(); err != nil {
		return nil, src.place(err)
	}
	return &s, nil
}

func (s *Study) defaults() {
	if s.Place == "" {
		s.Place = "local"
	}
	for i := range s.Setups {
		p := &s.Setups[i]
		setDefault(&p.Disk, "local-nvme")
		setDefault(&p.Volume, "host-bound")
		setDefault(&p.Crash, "lose-all")
	}
	for i := range s.Experiments {
		e := &s.Experiments[i]
		setDefault(&e.Repeat, 1)
		setDefault(&e.Workload, "simple-update")
		setDefault(&e.Protocol, "simple")
		setDefault(&e.Via, "socket")
		setDefault(&e.Scale, 10)
		setDefault(&e.DataToRAM, 7.5)
		setDefault(&e.Writers, 4)
		setDefault(&e.Payload, 64)
		if len(e.Clients) == 0 {
			e.Clients = []int{1}
			if e.Experiment == "storage-bound" {
				e.Clients = []int{64} // as published
			}
		}
		if len(e.Readers) == 0 {
			e.Readers = []int{0}
		}
		if len(e.FlushTimes) == 0 {
			e.FlushTimes = []float64{1}
		}
		if len(e.LagMs) == 0 {
			e.LagMs = []int{0}
		}
		e.faultDefaults()
	}
}

// targetsOf are what an experiment can strike where it has a choice, the usual
// one first.
var targetsOf = map[string][]string{
	"freeze":         {"host", "agent"},
	"partition":      {"primary", "standby"},
	"lose-standbys":  {"host", "postgres"},
	"double-failure": {"standby", "successor"},
}

func (e *Experiment) faultDefaults() {
	if e.Experiment == "nemesis" {
		setDefault(&e.Hold, 60)
	}
	setDefault(&e.Hold, 3)
	if all := targetsOf[e.Experiment]; len(e.Targets) == 0 && len(all) > 0 {
		e.Targets = all[:1]
	}
	setDefault(&e.RepeatInLoad, 1)
	if len(e.Standbys) == 0 {
		e.Standbys = []int{1, 2}
	}
	if len(e.Promote) == 0 {
		e.Promote = []bool{false, true}
	}
	if len(e.Ways) == 0 {
		e.Ways = []string{"both", "from-primary", "to-primary"}
	}
	if len(e.Order) == 0 {
		e.Order = []string{"stalest-first", "seeded"}
	}
}

func (e *Experiment) validateFault() error {
	var errs []error
	for i, n := range e.Standbys {
		errs = append(errs, within(item("standbys", i), float64(n), 1, 2))
	}
	for i, x := range e.Targets {
		if all := targetsOf[e.Experiment]; len(all) > 0 { // a key without effect is refused elsewhere
			errs = append(errs, oneOf(item("targets", i), x, all...))
		}
	}
	for i, w := range e.Ways {
		errs = append(errs, oneOf(item("ways", i), w, "both", "from-primary", "to-primary"))
	}
	for i, o := range e.Order {
		errs = append(errs, oneOf(item("order", i), o, "stalest-first", "seeded"))
	}
	return first(append(errs,
		within("hold", e.Hold, 0.1, 3600),
		within("repeat_in_load", float64(e.RepeatInLoad), 1, 1000),
		within("reads", e.Reads, 0, 0.9),
	)...)
}

func item(key string, i int) string { return fmt.Sprintf("%s[%d]", key, i) }

// first is the first error there is: one that is placed says enough.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func setDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

func (s *Study) validate() error {
	switch {
	case s.Name == "":
		return errors.New("`study:` is missing: give the study a name")
	case strings.ContainsAny(s.Name, "/\\\x00 \t\n"):
		return at("study", fmt.Errorf("%q: a name has no slash and no space, since the run folder is named after it", s.Name))
	case s.Place != "local":
		return at("place", fmt.Errorf("%q: the only place is `local`", s.Place))
	case len(s.Setups) == 0:
		return errors.New("`setups:` is missing: name at least one, such as `- setup: pg-single`")
	case len(s.Experiments) == 0:
		return errors.New("`experiments:` is missing: name at least one, such as `- experiment: commit`")
	}
	if s.Cumulative {
		for i, e := range s.Experiments {
			if e.Repeat != s.Experiments[0].Repeat {
				return at(item("experiments", i)+".repeat", errors.New("a cumulative study repeats all of its experiments as often, so that more of it can be added"))
			}
		}
	}
	seen := map[Setup]bool{}
	for i, p := range s.Setups {
		if err := p.validate(); err != nil {
			return at(item("setups", i), err)
		}
		p.AA = false
		if seen[p] {
			return at(item("setups", i), fmt.Errorf("%s on %s is there twice; for a pair of equal cells say `aa: true`", p.Setup, p.Disk))
		}
		seen[p] = true
	}
	for i := range s.Experiments {
		if err := s.validateExperiment(&s.Experiments[i]); err != nil {
			return at(item("experiments", i), err)
		}
	}
	return nil
}

func (p *Setup) validate() error {
	if p.Setup == "" {
		return errors.New("`setup:` is missing")
	}
	if err := oneOf("volume", p.Volume, "host-bound", "instance"); err != nil {
		return err
	}
	if err := oneOf("crash", p.Crash, "lose-all", "random-sectors"); err != nil {
		return at("crash", errors.New(err.Error()+" (the lying disk is the setup pg-lying-disk)"))
	}
	return nil
}

func (s *Study) validateExperiment(e *Experiment) error {
	if e.Experiment == "" {
		return errors.New("`experiment:` is missing")
	}
	var errs []error
	for i, c := range e.Clients {
		errs = append(errs, within(item("clients", i), float64(c), 1, maxClients))
	}
	for i, r := range e.Readers {
		errs = append(errs, within(item("readers", i), float64(r), 0, maxClients))
	}
	if e.Memory != 0 {
		errs = append(errs, within("memory", float64(e.Memory), minMemory, maxMemory))
	}
	for i, f := range e.FlushTimes {
		errs = append(errs, within(item("flush_times", i), f, 0.1, 100))
	}
	for i, l := range e.LagMs {
		errs = append(errs, within(item("lag_ms", i), float64(l), 0, maxLagMs))
	}
	for i, n := range e.Setups {
		if !slices.ContainsFunc(s.Setups, func(p Setup) bool { return p.Setup == n }) {
			errs = append(errs, at(item("setups", i), fmt.Errorf("%q is not among the study's setups", n)))
		}
	}
	for i, n := range e.Disks {
		if !slices.ContainsFunc(s.Setups, func(p Setup) bool { return p.Disk == n }) {
			errs = append(errs, at(item("disks", i), fmt.Errorf("no setup of the study is on disk %q", n)))
		}
	}
	return first(append(errs,
		e.validateFault(),
		within("data_to_ram", e.DataToRAM, 0.01, 1000),
		within("megabytes", float64(e.Megabytes), 0, maxMegabytes),
		within("repeat", float64(e.Repeat), 1, maxRepeat),
		within("seconds", e.Seconds, 0, maxSeconds),
		within("after", e.After, 0, maxSeconds),
		within("scale", float64(e.Scale), 1, maxScale),
		within("writers", float64(e.Writers), 1, maxClients),
		within("rate", e.Rate, 0, 1e6),
		within("payload", float64(e.Payload), 1, maxPayload),
		oneOf("workload", e.Workload, "simple-update", "tpcb-like"),
		oneOf("via", e.Via, "socket", "tcp"),
		oneOf("protocol", e.Protocol, "simple", "extended", "prepared"),
	)...)
}

// within and oneOf return an error at the key of that name.
func within(name string, v, lo, hi float64) error {
	if math.IsNaN(v) || v < lo || v > hi {
		return at(name, fmt.Errorf("%g is not between %g and %g", v, lo, hi))
	}
	return nil
}

func oneOf(name, v string, allowed ...string) error {
	if !slices.Contains(allowed, v) {
		return at(name, fmt.Errorf("%q is none of %s", v, strings.Join(allowed, ", ")))
	}
	return nil
}
