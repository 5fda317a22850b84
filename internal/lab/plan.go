package lab

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-db/holdfast/internal/config"
	"github.com/holdfast-db/holdfast/internal/lab/experiment"
	"github.com/holdfast-db/holdfast/internal/lab/setup"
)

// deployTime is how long it takes to bring a setup up for the first time, and
// switchTime to stop one and start another: measured on two cores, for the
// estimate only.
const (
	deployTime = 8 * time.Second
	switchTime = 2500 * time.Millisecond
)

// planned is one cell that is to run.
type planned struct {
	setup      config.Setup
	kind       setup.Kind
	experiment experiment.Experiment
	spec       config.Experiment
	params     experiment.Params
	repetition int
	number     int // in the plan, from 1
}

func (p planned) String() string {
	disk := p.setup.Disk
	if p.setup.Twin {
		disk += ", A/A twin"
	}
	return fmt.Sprintf("%s on %s: %s%s #%d", p.setup.Setup, disk, p.experiment.Name(), p.params.Label(), p.repetition)
}

// Plan expands a study into cells in the order in which they run: block by
// block, one repetition of every group in a block, shuffled by the seed, so
// that a drift of the machine meets all groups alike.
func plan(s *config.Study, seed uint64) ([]planned, error) {
	var groups []planned
	repeat := 0
	for i, spec := range s.Experiments {
		exp, err := experiment.Find(spec.Experiment)
		if err != nil {
			return nil, err
		}
		before := len(groups)
		for _, p := range s.Setups {
			if !wanted(spec.Setups, p.Setup) || !wanted(spec.Disks, p.Disk) {
				continue
			}
			kind, err := setup.Find(p.Setup)
			if err != nil {
				return nil, err
			}
			for _, params := range exp.Groups(spec, kind) {
				g := planned{setup: p, kind: kind, experiment: exp, spec: spec, params: params}
				groups = append(groups, g)
				if p.AA && pairable(exp.Name(), params) {
					g.setup.Twin = true
					groups = append(groups, g)
				}
			}
		}
		if len(groups) == before {
			return nil, s.At(fmt.Sprintf("experiments[%d]", i), fmt.Errorf("experiment %s fits none of the study's setups: %s", spec.Experiment, misfits(s, spec)))
		}
		repeat = max(repeat, spec.Repeat)
	}
	rnd := rand.New(rand.NewPCG(seed, 0x686f6c6466617374))
	var cells []planned
	for r := 1; r <= repeat; r++ {
		var block []planned
		for _, g := range groups {
			if r <= g.spec.Repeat {
				g.repetition = r
				block = append(block, g)
			}
		}
		rnd.Shuffle(len(block), func(i, j int) { block[i], block[j] = block[j], block[i] })
		cells = append(cells, block...)
	}
	return cells, nil
}

// misfits says of each setup why an experiment does not fit it.
func misfits(s *config.Study, spec config.Experiment) string {
	var why []string
	for _, p := range s.Setups {
		switch kind, err := setup.Find(p.Setup); {
		case err != nil:
			why = append(why, err.Error())
		case !wanted(spec.Setups, p.Setup):
			why = append(why, fmt.Sprintf("%s on %s is not among its `setups`", p.Setup, p.Disk))
		case !wanted(spec.Disks, p.Disk):
			why = append(why, fmt.Sprintf("%s on %s is not on one of its `disks`", p.Setup, p.Disk))
		case kind.Hosts == 1:
			why = append(why, p.Setup+" has one host, and what is asked for needs standbys")
		default:
			why = append(why, fmt.Sprintf("%s has %d hosts, and what is asked for needs more", p.Setup, kind.Hosts))
		}
	}
	return strings.Join(why, "; ")
}

// pairable says whether an A/A pair is made of a group: of what is compared by
// ratios, and not of what was slowed down on purpose.
func pairable(experiment string, params experiment.Params) bool {
	_, planted := params["flush_times"]
	return experiment == pairedExperiment && !planted
}

func wanted(filter []string, name string) bool {
	return len(filter) == 0 || slices.Contains(filter, name)
}

// Estimate says how many cells a study has and about how long they take.
func Estimate(s *config.Study, seed uint64) (int, time.Duration, error) {
	cells, err := plan(s, seed)
	if err != nil {
		return 0, 0, err
	}
	deployed := map[config.Setup]bool{}
	var d time.Duration
	var last config.Setup
	for _, c := range cells {
		if !deployed[c.setup] {
			deployed[c.setup] = true
			d += deployTime
		} else if c.setup != last {
			d += switchTime
		}
		last = c.setup
		d += c.experiment.Estimate(c.spec, c.params)
	}
	return len(cells), d, nil
}

// What a study's simulated disks may take, with room to spare: a data directory
// with its WAL, and 16 MB for each unit of pgbench's scale.
const (
	bytesPerHost  = 512 << 20
	bytesPerScale = 32 << 20
)

// SpaceNeeded is the free space, in bytes, that a study is refused without.
func SpaceNeeded(s *config.Study) uint64 {
	scale := 0
	for _, e := range s.Experiments {
		exp, err := experiment.Find(e.Experiment)
		if err != nil {
			continue
		}
		for _, p := range exp.Groups(e, setup.Kind{Hosts: 1}) {
			if n, ok := p["scale"].(int); ok {
				scale = max(scale, n)
			}
		}
	}
	var n uint64
	for _, p := range s.Setups {
		if kind, err := setup.Find(p.Setup); err == nil {
			copies := uint64(1)
			if p.AA {
				copies = 2
			}
			n += copies * uint64(kind.Hosts) * (bytesPerHost + uint64(scale)*bytesPerScale)
		}
	}
	return n
}
