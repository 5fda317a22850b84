package show

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/holdfast-db/holdfast/internal/diagnose"
)

// Pair is a fact with its value in words.
type Pair struct{ Name, Value string }

// width is what a terminal has at least.
const width = 100

// wrap breaks a line at words, with the rest indented by two more.
func wrap(s, indent string) string { return wrapTo(s, indent, width) }

func wrapTo(s, indent string, width int) string {
	var lines []string
	line := indent
	for i, word := range strings.SplitAfter(s, " ") {
		if i > 0 && utf8.RuneCountInString(line)+utf8.RuneCountInString(strings.TrimRight(word, " ")) > width {
			lines = append(lines, strings.TrimRight(line, " "))
			line = indent + "  "
		}
		line += word
	}
	return strings.Join(append(lines, strings.TrimRight(line, " ")), "\n")
}

// clean takes control characters out of what a server said.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || r == '\r' {
			return ' '
		}
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, s)
}

func short(s string, n int) string {
	s = strings.Join(strings.Fields(s), " ")
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}

func number(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v < 0.005 && v > 0:
		return "< 0.01"
	case v < 100:
		return fmt.Sprintf("%.2f", v)
	case v < 1000:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

func opt(p *float64) string {
	if p == nil {
		return "n/a"
	}
	return number(*p)
}

func trim(v float64) string { return fmt.Sprintf("%.3g", v) }

func bytes(v float64) string {
	for _, u := range []struct {
		name string
		size float64
	}{{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}} {
		if v >= u.size {
			return fmt.Sprintf("%.3g %s", v/u.size, u.name)
		}
	}
	return fmt.Sprintf("%.0f B", v)
}

// Rates are the rates of a diagnosis in words; what is not known is "n/a".
func Rates(d diagnose.Diagnosis) []Pair {
	r, s := d.Rates, d.Storage
	of := func(p *float64, format func(float64) string) string {
		if p == nil {
			return "n/a"
		}
		return format(*p)
	}
	percent := func(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }
	source := func(p *float64, from string) string {
		if p == nil {
			return "n/a"
		}
		return number(*p) + " ms (" + from + ")"
	}
	out := []Pair{
		{"transactions a second", opt(r.TPS)},
		{"sessions", fmt.Sprintf("%s, in a statement %s, idle in transaction %s", opt(r.Sessions), opt(r.Active), opt(r.IdleInTransaction))},
		{"found in the buffers", of(r.HitRatio, percent)},
		{"page reads", fmt.Sprintf("%s a second, %s a transaction", opt(r.ReadsPerS), opt(r.ReadsPerTx))},
		{"one page read", source(s.ReadMs, s.ReadSource)},
		{"one WAL flush", source(s.FlushMs, s.FlushSource)},
		{"WAL a transaction", of(r.WALBytesPerTx, bytes)},
		{"full-page images a transaction", opt(r.FullPageImagesPerTx)},
		{"checkpoints", fmt.Sprintf("%s, of these forced by WAL %s", opt(r.Checkpoints), opt(r.CheckpointsForced))},
		{"statements a transaction", opt(r.StatementsPerTx)},
		{"a round trip from here", of(r.RoundTripMs, func(v float64) string { return fmt.Sprintf("%.3f ms", v) })},
	}
	if s.LimitWhy != "" {
		out = append(out, Pair{"reads are bounded by their " + s.Limit, s.LimitWhy})
	}
	if s.RegimeText != "" {
		out = append(out, Pair{"a change", s.RegimeText})
	}
	return out
}

// Machine is the host's part in words.
func Machine(h *diagnose.Host) []Pair {
	pc := func(p *float64) string {
		if p == nil {
			return "n/a"
		}
		return fmt.Sprintf("%.1f %%", *p)
	}
	out := []Pair{
		{"processors", fmt.Sprintf("%d, %s busy, steal %s, waiting for I/O %s", h.Cores, pc(h.BusyPercent), pc(h.StealPercent), pc(h.IOWait))},
		{"processor seconds", fmt.Sprintf("%s in all, %s of the server (%s ms a transaction)", opt(h.CPUSeconds), opt(h.ServerCPU), opt(h.ServerCPUMs))},
		{"pressure (PSI, some)", fmt.Sprintf("CPU %s, I/O %s, memory %s", pc(h.PSICPU), pc(h.PSIIO), pc(h.PSIMemory))},
	}
	if h.CPULimit != nil || h.MemoryLimit != nil || h.Throttled != nil && *h.Throttled > 0 {
		limit := "none"
		if h.CPULimit != nil {
			limit = fmt.Sprintf("%.2f cores", *h.CPULimit)
		}
		memory := "none"
		if h.MemoryLimit != nil {
			memory = bytes(*h.MemoryLimit)
		}
		out = append(out, Pair{"control group", fmt.Sprintf("limit %s, memory %s, held back %s", limit, memory, pc(h.Throttled))})
	}
	for _, d := range []struct {
		name string
		d    *diagnose.Device
	}{{"data", h.Data}, {"WAL", h.WAL}} {
		if d.d == nil || d.name == "WAL" && h.SameDevice != nil && *h.SameDevice {
			continue
		}
		name := d.name
		if d.name == "data" && h.SameDevice != nil && *h.SameDevice {
			name = "data and WAL"
		}
		out = append(out, Pair{name, fmt.Sprintf("%s on %s (%s)", d.d.FileSystem, d.d.Device, d.d.Options)})
		if d.d.IOPS != nil {
			out = append(out, Pair{"", fmt.Sprintf("%s operations a second, %s MB/s, %.0f %% busy, queue %s; read %s, write %s, flush %s ms",
				number(*d.d.IOPS), opt(d.d.MBps), 100**d.d.Util, opt(d.d.Queue), opt(d.d.ReadMs), opt(d.d.WriteMs), opt(d.d.FlushMs))})
		}
		if d.d.Plateau != "" {
			out = append(out, Pair{"", d.d.Plateau})
		}
	}
	return append(out, Pair{"clock source", h.Clock})
}
