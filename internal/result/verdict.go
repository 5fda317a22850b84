package result

import "slices"

// StudySelftest is the study in which the lab tests itself: there, a liar that
// keeps its promise is the failure.
const StudySelftest = "selftest"

// Liars are the setups that promise to lose nothing and cannot keep it.
func Liars() []string { return []string{"pg-fsync-off", "pg-commit-off", "pg-lying-disk"} }

// severity orders verdicts: broken beats unknown and invalid, which beat held.
func severity(verdict string) int {
	return slices.Index([]string{Held, Invalid, Unknown, Broken}, verdict)
}

// Worse returns the worse of two verdicts.
func Worse(a, b string) string {
	if severity(b) > severity(a) {
		return b
	}
	return a
}

func worstOf(cells []*Cell) string {
	if len(cells) == 0 {
		return Unknown
	}
	worst := Held
	for _, c := range cells {
		worst = Worse(worst, c.Verdict)
	}
	return worst
}

// Worst is the worst verdict of a run's cells. A run without cells proves
// nothing: it is unknown.
func Worst(run *Run) string {
	cells := make([]*Cell, len(run.Cells))
	for i := range run.Cells {
		cells[i] = &run.Cells[i]
	}
	return worstOf(cells)
}

// Exit is the run's verdict as an exit code is made from it (held 0, broken 3,
// else 2). It is Worst, but for the self-test: that is held when every liar was
// caught and no honest setup broke its promise, broken when an honest one did,
// and unknown when a liar was missed, since then no other verdict can be trusted.
func Exit(run *Run) string {
	if run.Study != StudySelftest {
		return Worst(run)
	}
	if _, missed := Selftest(run); len(missed) > 0 {
		return Unknown
	}
	honest := Held
	for i := range run.Cells {
		if c := &run.Cells[i]; !slices.Contains(Liars(), c.Setup) {
			honest = Worse(honest, c.Verdict)
		}
	}
	return honest
}

// Selftest tells which liars a run caught at least once, and which it missed
// (those that did not run among them).
func Selftest(run *Run) (caught, missed []string) {
	for _, liar := range Liars() {
		if slices.ContainsFunc(run.Cells, func(c Cell) bool { return c.Setup == liar && c.Verdict == Broken }) {
			caught = append(caught, liar)
		} else {
			missed = append(missed, liar)
		}
	}
	return caught, missed
}
