package sim

import (
	"flag"
	"strings"
	"testing"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

var safetyOnly = flag.Bool("safety-only", false, "a mutation that only stops the cluster does not count as found")

var within = flag.Int("within", 10000, "schedules within which a mutation has to be found")

// likely are schedules that noticed a mistake when they were last looked for. They
// are tried first; when the core or the model has changed since, the search goes
// through all of them.
var likely = map[cluster.Mutation]uint64{
	cluster.RaiseWithoutWait:          166,
	cluster.SampleBeforeInForce:       166,
	cluster.RowByCommit:               59,
	cluster.CASWithoutVersion:         49,
	cluster.UnknownMeansFailed:        89,
	cluster.RetryOnConflict:           117,
	cluster.LowerBeforeRegister:       285,
	cluster.ChoiceByReplay:            59,
	cluster.ChoiceByControlFile:       81,
	cluster.TimelineReused:            839,
	cluster.StaleReport:               657,
	cluster.IncarnationIgnored:        96,
	cluster.ReportBeforeReceiversGone: 143,
	cluster.CredentialKept:            297,
	cluster.VoterUnchecked:            2336,
	cluster.AmnesiacCounted:           1194,
	cluster.InFlightForgotten:         1052,
	cluster.StartNotStopped:           3440,
	cluster.AmnesiacLeads:             186,
}

// TestMutations proves that the simulator would notice each known mistake: every
// wrong version of the core breaks an invariant within the schedules that the
// correct core passes.
func TestMutations(t *testing.T) {
	if testing.Short() {
		t.Skip("some thousand schedules: not with -short")
	}
	for m := cluster.Correct + 1; m < cluster.MutationEnd; m++ {
		t.Run(m.String(), func(t *testing.T) {
			for i := range *within + 1 {
				seed := uint64(i)
				if i == 0 {
					if seed = likely[m]; seed == 0 {
						continue
					}
				}
				s := Generate(seed)
				s.Mutation = m
				if r := Run(s, nil); r.Broken != "" && (!*safetyOnly || !strings.HasPrefix(r.Broken, "no write")) {
					t.Logf("found in schedule %d: %s", seed, r.Broken)
					return
				}
			}
			t.Errorf("not found in %d schedules: the model is too weak", *within)
		})
	}
}
