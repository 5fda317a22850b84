package sim

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

var (
	schedules = flag.Int("schedules", 0, "how many schedules to run; 0: 1,000, with HOLDFAST_LONG 10,000, with -short 200")
	firstSeed = flag.Uint64("seed", 1, "the first seed")
	mutant    = flag.String("mutation", "", "run with this wrong version of the core")
	verbose   = flag.Bool("log", false, "write the log of the first failing schedule")
)

func count() int {
	switch {
	case *schedules > 0:
		return *schedules
	case testing.Short():
		return 200
	case os.Getenv("HOLDFAST_LONG") != "":
		return 10000
	}
	return 1000
}

func mutation(t *testing.T) cluster.Mutation {
	if *mutant == "" {
		return cluster.Correct
	}
	for m := cluster.Correct; m < cluster.MutationEnd; m++ {
		if m.String() == *mutant {
			return m
		}
	}
	t.Fatalf("there is no mutation %q", *mutant)
	return 0
}

// TestSim runs schedules against the core and reports speed and coverage.
func TestSim(t *testing.T) {
	m := mutation(t)
	cover := NewCoverage()
	began := time.Now()
	n := count()
	failures := 0
	for i := range n {
		s := Generate(*firstSeed + uint64(i))
		s.Mutation = m
		r := Run(s, nil)
		cover.Add(r.Cover)
		if r.Broken == "" {
			continue
		}
		failures++
		t.Errorf("seed %d at %d ms: %s", s.Seed, r.At, r.Broken)
		if failures == 1 && *verbose {
			s = Shrink(s)
			Run(s, func(at int64, text string) { fmt.Fprintf(os.Stderr, "%6d  %s\n", at, text) })
			fmt.Fprint(os.Stderr, s)
		}
		if failures >= 10 {
			n = i + 1
			break
		}
	}
	took := time.Since(began)
	t.Logf("%d schedules, %.0f a second; %d steps, %d writes acknowledged", n, float64(n)/took.Seconds(), cover.Steps, cover.Acked)
	t.Log(cover.Report())
}
