package wal

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// Reserved is all that stands in a history file that only keeps its number from
// being used: a timeline that never began has no ancestors.
const Reserved = "# reserved by holdfast\n"

// HistoryName is the name of a timeline's history file.
func HistoryName(t cluster.Timeline) string { return fmt.Sprintf("%08X.history", uint32(t)) }

// ParseHistory reads the history file of timeline t: the branches that lead to
// t, t itself last. They carry no epochs. reserved says that t was never begun.
func ParseHistory(t cluster.Timeline, file []byte) (h []cluster.Branch, reserved bool, err error) {
	if string(file) == Reserved {
		return []cluster.Branch{{Timeline: t}}, true, nil
	}
	fork := cluster.LSN(0)
	for line := range bytes.Lines(file) {
		text := strings.TrimSpace(string(line))
		if text == "" || text[0] == '#' {
			continue
		}
		f := strings.Fields(text)
		if len(f) < 2 {
			return nil, false, fmt.Errorf("history of timeline %d: %q has no position", t, text)
		}
		n, err := strconv.ParseUint(f[0], 10, 32)
		if err != nil {
			return nil, false, fmt.Errorf("history of timeline %d: %q is no timeline", t, f[0])
		}
		at, err := ParseLSN(f[1])
		if err != nil {
			return nil, false, fmt.Errorf("history of timeline %d: %w", t, err)
		}
		b := cluster.Branch{Timeline: cluster.Timeline(n), Fork: fork}
		if b.Timeline == 0 || b.Timeline >= t || at < fork || len(h) > 0 && b.Timeline <= h[len(h)-1].Timeline {
			return nil, false, fmt.Errorf("history of timeline %d: %q does not follow what stands before it", t, text)
		}
		h, fork = append(h, b), at
	}
	return append(h, cluster.Branch{Timeline: t, Fork: fork}), false, nil
}

// FormatHistory is the history file of the last branch of h. why is its comment.
func FormatHistory(h []cluster.Branch, why string) []byte {
	var b bytes.Buffer
	for n := 0; n+1 < len(h); n++ {
		comment := "a former timeline"
		if n+2 == len(h) {
			comment = why
		}
		fmt.Fprintf(&b, "%d\t%s\t%s\n", h[n].Timeline, Text(h[n+1].Fork), comment)
	}
	return b.Bytes()
}

// ParseLSN reads the form X/X.
func ParseLSN(s string) (cluster.LSN, error) {
	hi, lo, ok := strings.Cut(s, "/")
	h, err1 := strconv.ParseUint(hi, 16, 32)
	l, err2 := strconv.ParseUint(lo, 16, 32)
	if !ok || err1 != nil || err2 != nil {
		return 0, fmt.Errorf("%q is no LSN", s)
	}
	return cluster.LSN(h<<32 | l), nil
}

// Segment is one file of WAL.
type Segment struct {
	Timeline cluster.Timeline
	Number   uint64 // LSN / segment size
}

// Name is the file's name.
func (s Segment) Name(size uint64) string {
	per := (uint64(1) << 32) / size
	return fmt.Sprintf("%08X%08X%08X", uint32(s.Timeline), s.Number/per, s.Number%per)
}

// ParseSegment reads a segment's file name; ok is false for other files.
func ParseSegment(name string, size uint64) (s Segment, ok bool) {
	if len(name) != 24 || strings.ToUpper(name) != name || size < 1<<20 || size > 1<<30 || size&(size-1) != 0 {
		return s, false
	}
	t, err1 := strconv.ParseUint(name[:8], 16, 32)
	hi, err2 := strconv.ParseUint(name[8:16], 16, 32)
	lo, err3 := strconv.ParseUint(name[16:], 16, 32)
	per := (uint64(1) << 32) / size
	if err1 != nil || err2 != nil || err3 != nil || lo >= per {
		return s, false
	}
	return Segment{cluster.Timeline(t), hi*per + lo}, true
}
