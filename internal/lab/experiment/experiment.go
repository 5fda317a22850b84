// Package experiment holds what can be measured of a setup or done to it.
package experiment

import (
	"context"
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/holdfast-db/holdfast/internal/config"
	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/lab/setup"
	"github.com/holdfast-db/holdfast/internal/result"
)

// Params tell one group of cells from another; they stand in run.json.
type Params map[string]any

// Label is the params in a progress line.
func (p Params) Label() string {
	names := make([]string, 0, len(p))
	for n := range p {
		names = append(names, n)
	}
	sort.Strings(names)
	var b strings.Builder
	for _, n := range names {
		switch n {
		case "clients", "readers", "flush_times", "lag_ms", "standbys", "order", "ways", "promote", "target":
			fmt.Fprintf(&b, " %s=%v", n, p[n])
		}
	}
	return b.String()
}

// Env is what a cell runs in.
type Env struct {
	System setup.System
	Kind   setup.Kind
	Client place.Host // where the driver and other clients run; it never loses power
	Facts  place.Facts
	Disk   string           // the named disk of the setup's hosts
	Volume place.VolumeKind // of the setup's disks
	Binary string           // of this program, for what it runs on hosts
	BinDir string           // of the PostgreSQL programs
	Dir    string           // the run folder
	Key    string           // names the cell's files within it
	Seed   uint64
	Spec   config.Experiment
	Params Params
	Live   func(text string)             // what is going on right now
	Trace  func(format string, a ...any) // for the lab's log
}

// Experiment is one member of the list. An error of Run is a failure of the
// lab: the cell's verdict is then unknown, and the setup is deployed anew.
type Experiment interface {
	Name() string
	About() string
	// Groups lists the params of the groups of cells that spec asks for on a
	// setup of that kind; none if it does not fit.
	Groups(spec config.Experiment, on setup.Kind) []Params
	Estimate(spec config.Experiment, p Params) time.Duration
	// NeedsDatabase says whether the setup's servers must run.
	NeedsDatabase() bool
	// Run returns cells with metrics and verdict; who runs it adds what they
	// have in common (setup, disk, repetition, versions).
	Run(ctx context.Context, env Env) ([]result.Cell, error)
}

// MaxDiscarded is how often a measurement is repeated that came out invalid. What
// decides is its steadiness, never its figure; every attempt is told beside it.
const MaxDiscarded = 2

// Skipped is the verdict of a cell that could not be measured for a reason that
// is nobody's failure; it goes to the run's list of skipped ones.
const Skipped = "skipped"

// All lists every experiment.
func All() []Experiment {
	return []Experiment{flush{}, roundTrip{}, commit{}, storageBound{}, vacuum{}, logicalBacklog{},
		powerOff(), hostLost(), restart(), standbyPowerOff(), loseStandbys(), allOff(), freeze(), partition(),
		postgresKill(), doubleFailure(), diskFull(), diskHang(), switchover(), cancelStorm(), nemesis()}
}

// Find returns the experiment of that name.
func Find(name string) (Experiment, error) {
	var names []string
	for _, e := range All() {
		if e.Name() == name {
			return e, nil
		}
		names = append(names, e.Name())
	}
	return nil, fmt.Errorf("no experiment is called %q; there are %s", name, strings.Join(names, ", "))
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// orDefault is v, or def where the study names none.
func orDefault(v, def float64) float64 {
	if v == 0 {
		return def
	}
	return v
}
