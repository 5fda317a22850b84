package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/holdfast-db/holdfast/internal/result"
)

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func environment(run *result.Run) []pair {
	var out []pair
	for _, k := range sorted(run.Environment) {
		out = append(out, pair{strings.NewReplacer("_", " ", ".", ", ").Replace(k), run.Environment[k]})
	}
	return out
}

// versions lists every program's versions and the setups that ran them.
func versions(run *result.Run) []pair {
	seen := map[string]map[string]map[string]bool{} // program, version, setup
	for i := range run.Cells {
		c := &run.Cells[i]
		for program, version := range c.Versions {
			if seen[program] == nil {
				seen[program] = map[string]map[string]bool{}
			}
			if seen[program][version] == nil {
				seen[program][version] = map[string]bool{}
			}
			seen[program][version][c.Setup] = true
		}
	}
	var out []pair
	for _, program := range sorted(seen) {
		for _, version := range sorted(seen[program]) {
			setups := sorted(seen[program][version])
			slices.SortStableFunc(setups, result.CompareSetups)
			out = append(out, pair{program + " " + version, strings.Join(setups, ", ")})
		}
	}
	return out
}

// facts are what the limits of a run follow from.
type facts struct {
	simulated, real, faults, loud, operator, processKill bool
	cleanCuts                                            int // of the group with the most judged cuts, none of them lossy
}

func factsOf(groups []result.Group) facts {
	var f facts
	for i := range groups {
		g := &groups[i]
		f.simulated = f.simulated || g.Simulated
		f.real = f.real || !g.Simulated
		if !g.IsFault() {
			continue
		}
		f.faults = true
		f.operator = f.operator || result.ByOperator(g.Cells)
		if s, ok := g.Spread("lost"); ok && s.Sum == 0 {
			f.cleanCuts = max(f.cleanCuts, s.N)
		}
		for _, c := range g.Cells {
			f.loud = f.loud || !c.Silent && c.Fault != "restart" // that is meant to be heard
			f.processKill = f.processKill || c.Evidence == result.EvidenceProcessKill
		}
	}
	return f
}

// simulatedHow says what stood in for the real thing.
func simulatedHow(run *result.Run, groups []result.Group) []string {
	f := factsOf(groups)
	if !f.simulated && !run.Simulated {
		return nil
	}
	lines := []string{
		"The disks. Each is a file system of ours that keeps what was flushed and forgets the rest when the power is cut, and that makes every flush take as long as on the disk it is named after. The figures here are those of Postgres on such a disk, not of the disk itself.",
		"The hosts. Each is a network namespace on one machine with processes, memory and an address of its own. They share its processors, its kernel and its clock.",
	}
	if f.faults {
		lines = append(lines, "The power cut. First the network goes silent, then every process is killed, then what was not flushed is dropped.")
	}
	return append(lines, "The network is the machine's own. Its round trip is that of loopback unless the environment above says otherwise, so a commit that waits for a standby waits less than it would between servers.")
}

// notProven is what a reader must not conclude.
func notProven(run *result.Run, groups []result.Group) []string {
	f := factsOf(groups)
	var lines []string
	if f.simulated {
		lines = append(lines,
			"That a disk of this name keeps its promises. A simulated disk loses exactly what was not flushed; a real one may lie about its cache, tear a sector or reorder writes in a way that was not simulated.",
			"That absolute times hold elsewhere. Compare setups within this run; measure your own disk with “holdfast measure disk” before you expect its figures.")
	}
	lines = append(lines, "That it holds on other machines. This was one machine, one kernel and one version of each program, named above.")
	if f.faults {
		if f.cleanCuts > 0 {
			lines = append(lines, fmt.Sprintf("That nothing is ever lost. Zero of %s lossy cuts bound the true rate to below %s (95 %%, exact binomial, cuts taken as independent and alike); a rarer loss would most likely not have shown.",
				result.Count(float64(f.cleanCuts)), result.PercentUp(result.UpperBound(0, f.cleanCuts))))
		}
		lines = append(lines, "Anything about faults that were not injected: a corrupt sector, a slow disk, two failures at once, a wrong command typed at night.")
		if f.loud {
			lines = append(lines, "How fast a silent death is noticed. Some faults of this run were not silent: processes that are killed say goodbye to their peers, a server without power does not.")
		}
		if f.processKill {
			lines = append(lines, "Durability, where the evidence is only a killed process: the kernel still writes what the program had handed over.")
		}
	}
	if f.operator {
		lines = append(lines, "How long a person needs. A script stood in for the operator and began at once; the time to notice, to log in and to decide is not in any figure here.")
	}
	if run.Finished == "" {
		lines = append(lines, "Anything about the cells that did not run: this run did not finish.")
	}
	if len(run.Skipped) > 0 {
		lines = append(lines, fmt.Sprintf("Anything about the cells that were skipped (%d, listed above).", len(run.Skipped)))
	}
	return lines
}
