package report

import (
	"cmp"
	"fmt"
	"html/template"
	"slices"
	"strings"

	"github.com/holdfast-db/holdfast/internal/result"
)

// fate is what became of an id, worst last: where several ids share a column of
// the strip, the worst one shows.
type fate int

const (
	fateNone fate = iota
	fateKept
	fateRefused
	fateAbsent    // outcome unknown, not there
	fateRecovered // outcome unknown, there
	fateGhost     // refused, yet there
	fatePhantom   // never attempted, yet there
	fateLost      // acknowledged, not there
	fates
)

func fateOf(r result.IDRange) fate {
	switch {
	case r.Outcome == result.OutcomeAcked && r.Survived:
		return fateKept
	case r.Outcome == result.OutcomeAcked:
		return fateLost
	case r.Outcome == result.OutcomeUnknown && r.Survived:
		return fateRecovered
	case r.Outcome == result.OutcomeUnknown:
		return fateAbsent
	case r.Outcome == result.OutcomeRefused && r.Survived:
		return fateGhost
	case r.Outcome == result.OutcomeRefused:
		return fateRefused
	case r.Survived:
		return fatePhantom
	}
	return fateNone
}

// fateNames are the words of the legend and of the counts, by fate.
func fateNames() [fates]string {
	return [fates]string{"", "acknowledged, there", "refused", "unknown, not there", "unknown, there", "ghost (refused, yet there)", "phantom (never sent, yet there)", "LOST (acknowledged, not there)"}
}

// idStrip draws the ids of one cell from first to last. A fate differs from the
// others in height and place as well as in colour: what is in order is a low
// band, what is lost is as tall as the strip.
func idStrip(ids []result.IDRange) (template.HTML, []string) {
	if len(ids) == 0 {
		return "", nil
	}
	const columns = 300
	ids = slices.Clone(ids)
	slices.SortStableFunc(ids, func(a, b result.IDRange) int { return cmp.Compare(a.From, b.From) })
	var counts [fates]uint64
	total := 0.0
	for _, r := range ids {
		n := r.To - r.From + 1
		counts[fateOf(r)] += n
		total += float64(n)
	}
	var worst [columns]fate
	// Ids that nobody used take no room: two drivers' are far apart.
	begun := 0.0
	for _, r := range ids {
		f, n := fateOf(r), float64(r.To-r.From+1)
		from := int(begun / total * columns)
		to := int((begun + n - 0.001) / total * columns)
		begun += n
		for i := max(from, 0); i <= min(to, columns-1); i++ {
			worst[i] = max(worst[i], f)
		}
	}
	shape := [fates][2]int{fateKept: {5, 4}, fateRefused: {11, 3}, fateAbsent: {10, 4}, fateRecovered: {0, 5}, fateGhost: {0, 9}, fatePhantom: {0, 9}, fateLost: {0, 14}}
	var b strings.Builder
	b.WriteString(`<svg class="strip" viewBox="0 0 300 14" width="100%" height="14" preserveAspectRatio="none" role="img" aria-label="fate of every id in order">`)
	for i := 0; i < columns; {
		j := i
		for j < columns && worst[j] == worst[i] {
			j++
		}
		if f := worst[i]; f != fateNone {
			x, width := i, j-i
			if f > fateKept && width < 2 {
				width = 2 // to be seen
			}
			fmt.Fprintf(&b, `<rect class="i%d" x="%d" y="%d" width="%d" height="%d"/>`, f, x, shape[f][0], width, shape[f][1])
		}
		i = j
	}
	b.WriteString(`</svg>`)
	var words []string
	names := fateNames()
	for f := fateLost; f > fateNone; f-- {
		if counts[f] > 0 {
			words = append(words, result.Count(float64(counts[f]))+" "+names[f])
		}
	}
	return svg(b.String()), words
}

// fateLegend is one swatch for each fate.
func fateLegend() []legendEntry {
	var out []legendEntry
	for f, name := range fateNames() {
		if name == "" {
			continue
		}
		swatch, _ := idStrip([]result.IDRange{sampleOf(fate(f))})
		out = append(out, legendEntry{swatch, name})
	}
	return out
}

type legendEntry struct {
	Swatch template.HTML
	Name   string
}

func sampleOf(f fate) result.IDRange {
	outcome := map[fate]string{fateKept: result.OutcomeAcked, fateLost: result.OutcomeAcked, fateRecovered: result.OutcomeUnknown, fateAbsent: result.OutcomeUnknown,
		fateGhost: result.OutcomeRefused, fateRefused: result.OutcomeRefused, fatePhantom: result.OutcomeNeverAttempted}[f]
	survived := f == fateKept || f == fateRecovered || f == fateGhost || f == fatePhantom
	return result.IDRange{From: 1, To: 1, Outcome: outcome, Survived: survived}
}
