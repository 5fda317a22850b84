package report

import "github.com/holdfast-db/holdfast/internal/result"

// badge is a verdict as a word and a symbol, so that it never hangs on colour.
type badge struct{ Word, Symbol, Class string }

// newBadge words a verdict. A group that only measured has promised nothing, so
// "held" would say too much of it.
func newBadge(verdict string, promised bool) badge {
	switch {
	case verdict == result.Held && !promised:
		return badge{"measured", "•", "measured"}
	case verdict == result.Held:
		return badge{"held", "✓", "held"}
	case verdict == result.Broken:
		return badge{"broken", "✗", "broken"}
	case verdict == result.Invalid:
		return badge{"invalid", "⊘", "invalid"}
	}
	return badge{"unknown", "?", "unknown"}
}

// lossyBadge is newBadge for something that was promised, with what it lost: a
// promise that allows a loss was kept by one, but nobody should read that as
// "nothing happened".
func lossyBadge(verdict string, lost float64) badge {
	if verdict == result.Held && lost > 0 {
		return badge{"lossy", "!", "lossy"}
	}
	return newBadge(verdict, true)
}

func cellBadge(c *result.Cell, fault bool) badge {
	if fault {
		return lossyBadge(c.Verdict, c.Metrics["lost"])
	}
	return newBadge(c.Verdict, false)
}

func groupBadge(g *result.Group) badge {
	if !g.IsFault() {
		return newBadge(g.Verdict(), false)
	}
	lost, _ := g.Spread("lost")
	return lossyBadge(g.Verdict(), lost.Sum)
}

// badgeOrder is from what needs a decision first to what needs none.
var badgeOrder = []string{"broken", "unknown", "invalid", "lossy", "held", "measured"}

// words are the verdicts for the explanation at the end.
type words struct{ Held, Lossy, Broken, Unknown, Invalid, Measured badge }

// Words explains the verdicts.
func (p *page) Words() words { return allWords() }

func allWords() words {
	return words{newBadge(result.Held, true), lossyBadge(result.Held, 1), newBadge(result.Broken, true), newBadge(result.Unknown, true),
		newBadge(result.Invalid, true), newBadge(result.Held, false)}
}
