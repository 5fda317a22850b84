package check

import (
	"fmt"
	"strconv"
	"strings"
)

// Verdicts, in the words of run.json.
const (
	Held    = "held"
	Broken  = "broken"
	Unknown = "unknown"
)

// What a setup may lose, in the words of run.json.
const (
	LoseNothing   = "nothing"
	LoseMillis    = "ms"
	LoseUnbounded = "unbounded"
)

// Promise is what a setup says that it may lose.
type Promise struct {
	Lose string
	Ms   float64 // with LoseMillis
}

// Judge holds the promise against the findings. The verdict is Unknown when
// nothing was put to the test, or when the only thing against the setup is one
// that the lab could have caused itself; why says so in a sentence.
func (f *Findings) Judge(p Promise) (verdict, why string) {
	if len(f.Read) == 0 {
		return Unknown, "The survivors were not read, so nothing can be said."
	}
	lost, broken, err := f.loss(p)
	if err != nil {
		return Unknown, err.Error()
	}
	var against []string
	if broken {
		against = append(against, lost)
	}
	against = append(against, f.faults()...)
	doubt := ""
	if f.Phantom.Count > 0 {
		s := fmt.Sprintf("%s present that nobody attempted", rows(f.Phantom.Count))
		if f.Incomplete {
			doubt = s + ", but a driver vanished whose intents were not confirmed, so that they may be its own"
		} else {
			against = append(against, s)
		}
	}
	switch {
	case len(against) > 0:
		return Broken, sentence(strings.Join(against, "; "))
	case doubt != "":
		return Unknown, sentence(doubt)
	case f.Acked == 0:
		return Unknown, "No write was acknowledged, so nothing was put to the test."
	}
	return Held, sentence(lost)
}

// loss says what was lost, and whether that is more than promised.
func (f *Findings) loss(p Promise) (what string, broken bool, err error) {
	if f.Lost.Count == 0 {
		what = fmt.Sprintf("all %s acknowledged writes survived", count(f.Acked))
		if f.Acked == 1 {
			what = "the one acknowledged write survived"
		}
	} else {
		what = fmt.Sprintf("%s of %s acknowledged writes are lost%s, over %s ms", count(f.Lost.Count), count(f.Acked), f.Lost.names(), trim(f.LostMs))
	}
	switch p.Lose {
	case LoseNothing:
		if f.Lost.Count > 0 {
			return what + ", where nothing may be lost", true, nil
		}
	case LoseMillis:
		if f.Lost.Count > 0 && f.LostMs > p.Ms {
			return fmt.Sprintf("%s, where up to %s ms may be lost", what, trim(p.Ms)), true, nil
		}
		if f.Lost.Count > 0 {
			what += fmt.Sprintf(", within the %s ms that may be lost", trim(p.Ms))
		}
	case LoseUnbounded:
		if f.Lost.Count > 0 {
			what += ", which this setup does not rule out"
		}
	default:
		return "", false, fmt.Errorf("There is no promise %q to hold against what was seen.", p.Lose) //nolint:staticcheck // a sentence of the report
	}
	return what, false, nil
}

// faults are what no promise allows.
func (f *Findings) faults() []string {
	var out []string
	for _, x := range []struct {
		n    int
		what string
	}{
		{f.Ghost.Count, "present although the write was refused"},
		{f.Duplicated.Count, "present more than once"},
		{f.Disagree.Count, "on which sequential scan and index disagree"},
		{f.Vanished.Count, "present at first and gone after the old node rejoined"},
	} {
		if x.n > 0 {
			out = append(out, rows(x.n)+" "+x.what)
		}
	}
	return out
}

func rows(n int) string {
	if n == 1 {
		return "1 row"
	}
	return count(n) + " rows"
}

// count writes n with a comma for every three digits.
func count(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func trim(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

func sentence(s string) string { return strings.ToUpper(s[:1]) + s[1:] + "." }
