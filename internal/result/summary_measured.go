package result

import (
	"cmp"
	"fmt"
	"strings"
)

// commitClause: what a commit costs at each number of clients.
func commitClause(groups []*Group, short bool) string {
	var parts []string
	reps := 0
	for _, g := range groups {
		metric := "latency_mean_ms"
		s, ok := g.Spread(metric)
		if !ok {
			metric = "latency_p50_ms"
			s, ok = g.Spread(metric)
		}
		if !ok {
			continue
		}
		reps = max(reps, s.N)
		at := ""
		if n, ok := Number(g.Params["clients"]); ok {
			at = " at " + plural(int(n), "client", "clients")
		}
		parts = append(parts, Figure(s.Median)+" ms"+at)
	}
	var text string
	if len(parts) > 0 {
		text = "a commit takes " + list(parts)
		if reps > 1 {
			text += fmt.Sprintf(" (medians of up to %d runs)", reps)
		}
	}
	return join(text, unusable(groups, "commit measurement", short))
}

// unusable says how many of the groups' cells gave no figure, "" for none.
func unusable(groups []*Group, what string, short bool) string {
	cells, failed, invalid := 0, 0, 0
	for _, g := range groups {
		cells += len(g.Cells)
		for _, c := range g.Cells {
			switch c.Verdict {
			case Unknown:
				failed++
			case Invalid:
				invalid++
			}
		}
	}
	var text string
	of := " of " + plural(cells, what, what+"s")
	if failed > 0 {
		text = fmt.Sprintf("%d%s failed", failed, of)
	}
	if invalid > 0 {
		text = join(text, fmt.Sprintf("%d%s must not be used", invalid, of))
	}
	for _, g := range groups {
		if why := because(g, Unknown, Invalid); text != "" && why != "" && !short {
			return text + why
		}
	}
	return text
}

// flushClause: the range that the ladder spans; the report has the ladder.
func flushClause(groups []*Group, short bool) string {
	var medians []float64
	for _, g := range groups {
		if s, ok := g.Spread("p50_ms"); ok {
			medians = append(medians, s.Median)
		}
	}
	s, ok := SpreadOf(medians)
	var text string
	switch {
	case ok && s.N == 1:
		text = "a flush takes " + Figure(s.Median) + " ms at the median"
		if c := Conditions(groups[0].Params); len(groups) == 1 && c != "" {
			text += " (" + c + ")"
		}
	case ok:
		text = fmt.Sprintf("a flush takes %s to %s ms at the median, depending on how one writes and syncs (%d ways)",
			Figure(s.Min), Figure(s.Max), s.N)
	}
	return join(text, unusable(groups, "flush measurement", short))
}

func roundTripClause(g *Group) string {
	var parts []string
	if s, ok := g.Spread("tcp_p50_ms"); ok {
		parts = append(parts, "a TCP round trip takes "+Figure(s.Median)+" ms")
	}
	if s, ok := g.Spread("select1_p50_ms"); ok {
		parts = append(parts, "SELECT 1 takes "+Figure(s.Median)+" ms")
	}
	if len(parts) == 0 {
		return "the round trip was not measured" + because(g, Unknown, Invalid)
	}
	return strings.Join(parts, " and ") + " at the median"
}

// otherClause covers experiments that this version knows only by their metrics.
func otherClause(g *Group) string {
	usable := g.Usable()
	if len(usable) == 0 {
		return fmt.Sprintf("%s gave no usable figure%s", g.Experiment, because(g, Unknown, Invalid))
	}
	text := cmp.Or(storageClause(g), fmt.Sprintf("%s ran %s", g.Experiment, plural(len(usable), "time", "times")))
	if n := len(g.Cells) - len(usable); n > 0 {
		text += fmt.Sprintf(", and %s without a usable figure", plural(n, "time", "times"))
	}
	return text
}

// join puts two clauses together, either of which may be empty.
func join(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

// list writes a, b and c.
func list(parts []string) string {
	if len(parts) < 2 {
		return strings.Join(parts, "")
	}
	return strings.Join(parts[:len(parts)-1], ", ") + " and " + parts[len(parts)-1]
}
