package sim

import (
	"flag"
	"strings"
	"testing"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

var safetyOnly = flag.Bool("safety-only", false, "a mutation that only stops the cluster does not count as found")

var within = flag.Int("within", 10000, "schedules within which a mutation has to be found")

// TestMutations proves that the simulator would notice each known mistake: every
// wrong version of the core breaks an invariant within the schedules that the
// correct core passes.
func TestMutations(t *testing.T) {
	if testing.Short() {
		t.Skip("some thousand schedules: not with -short")
	}
	for m := cluster.Correct + 1; m < cluster.MutationEnd; m++ {
		t.Run(m.String(), func(t *testing.T) {
			for i := range *within {
				s := Generate(uint64(i + 1))
				s.Mutation = m
				if r := Run(s, nil); r.Broken != "" && (!*safetyOnly || !strings.HasPrefix(r.Broken, "no write")) {
					t.Logf("found in schedule %d: %s", i+1, r.Broken)
					return
				}
			}
			t.Errorf("not found in %d schedules: the model is too weak", *within)
		})
	}
}
