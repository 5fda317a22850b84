package check

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/history"
)

// TestCaseLitefsIssue282: what a former primary had acknowledged and is gone is
// lost, by id, in the verdict and in the ranges.
func TestCaseLitefsIssue282(t *testing.T) {
	var s events
	for id := uint64(1); id <= 20; id++ {
		at := time.Duration(id) * time.Millisecond
		s.intent(at, id)
		s.outcome(at, id, history.Acked)
	}
	l := ledger(t, s)
	// The new primary never had 15 to 18 and 20.
	survivors := []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 19}
	l.Survived(FirstScan, slices.Values(survivors))
	l.Survived(FirstIndex, slices.Values(survivors))
	f := l.Findings(Options{})
	verdict, why := f.Judge(Promise{Lose: LoseNothing})
	if verdict != Broken || !strings.Contains(why, "5 of 20 acknowledged writes are lost (ids 15 to 18, 20), over 6 ms") {
		t.Errorf("%s: %s", verdict, why)
	}
	var lost []uint64
	for _, r := range f.Ranges {
		for id := r.From; id <= r.To && r.Outcome == "acked" && !r.Survived; id++ {
			lost = append(lost, id)
		}
	}
	if !slices.Equal(lost, []uint64{15, 16, 17, 18, 20}) {
		t.Errorf("the ranges say that %v are lost", lost)
	}
}

func TestNames(t *testing.T) {
	for want, ids := range map[string]IDs{
		"":                                {},
		" (id 7)":                         {1, []uint64{7}},
		" (ids 7 to 9)":                   {3, []uint64{9, 7, 8}},
		" (ids 1, 3, 5 to 6, and 4 more)": {8, []uint64{1, 3, 5, 6, 8, 9, 11, 12}},
		" (ids 1 to 2, and 998 more)":     {1000, []uint64{1, 2}},
		" (ids 18446744073709551614 to 18446744073709551615)": {2, []uint64{1<<64 - 2, 1<<64 - 1}},
	} {
		if got := ids.names(); got != want {
			t.Errorf("%v: %q, want %q", ids, got, want)
		}
	}
}
