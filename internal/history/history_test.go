package history

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var started = time.Date(2026, 3, 1, 12, 0, 0, 5, time.UTC)

func write(t testing.TB, events []Event) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "h")
	w, err := Create(path, started)
	if err != nil {
		t.Fatal(err)
	}
	for i := range events {
		if err := w.Append(&events[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// read returns what is delivered, and the error that ended it (io.EOF if clean).
func read(b []byte) ([]Event, error) {
	r, err := NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	var out []Event
	for {
		var e Event
		if err := r.Next(&e); err != nil {
			return out, err
		}
		out = append(out, e)
	}
}

// load is a plausible history of n writes by 8 writers.
func load(n int, seed uint64) []Event {
	rng := rand.New(rand.NewPCG(seed, 1))
	var out []Event
	var at time.Duration
	open := []uint64{}
	step := func() { at += time.Duration(20+rng.IntN(200)) * time.Microsecond }
	finish := func() {
		i := rng.IntN(len(open))
		step()
		e := Event{Kind: KindOutcome, At: at, ID: open[i], Outcome: Acked, Latency: time.Duration(300+rng.IntN(3000)) * time.Microsecond}
		if rng.IntN(50) == 0 {
			e.Outcome, e.Code = Unknown, "timeout"
		}
		out = append(out, e)
		open = append(open[:i], open[i+1:]...)
	}
	for id := uint64(1); id <= uint64(n); id++ {
		step()
		out = append(out, Event{Kind: KindIntent, At: at, ID: id, Writer: uint32(id % 8)})
		if open = append(open, id); len(open) == 8 {
			finish()
		}
	}
	for len(open) > 0 {
		finish()
	}
	return out
}

func TestRoundTrip(t *testing.T) {
	dir := t.TempDir()
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		var clock int64
		want := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) Event {
			at := func() time.Duration {
				clock += rapid.Int64Range(0, 1<<rapid.IntRange(0, 40).Draw(rt, "bits")).Draw(rt, "dt")
				return time.Duration(clock) * time.Microsecond
			}
			switch rapid.SampledFrom([]Kind{KindIntent, KindOutcome, KindMark}).Draw(rt, "kind") {
			case KindIntent:
				return Event{Kind: KindIntent, At: at(), ID: rapid.Uint64().Draw(rt, "id"), Writer: rapid.Uint32().Draw(rt, "writer"), RetryOf: rapid.Uint64().Draw(rt, "retry")}
			case KindOutcome:
				e := Event{Kind: KindOutcome, At: at(), ID: rapid.Uint64().Draw(rt, "id"), Outcome: Outcome(rapid.IntRange(1, 3).Draw(rt, "outcome"))}
				e.Latency = time.Duration(rapid.Int64Range(0, 1<<40).Draw(rt, "latency")) * time.Microsecond
				e.Code = rapid.SampledFrom([]string{"", "57P01", "timeout", "25006"}).Draw(rt, "code")
				return e
			default:
				return Event{Kind: KindMark, At: time.Duration(rapid.Int64Range(0, clock+10).Draw(rt, "at")) * time.Microsecond, Text: rapid.String().Draw(rt, "text")}
			}
		}), 0, 200).Draw(rt, "events")
		n++
		path := filepath.Join(dir, fmt.Sprint(n))
		w, err := Create(path, started)
		if err != nil {
			rt.Fatal(err)
		}
		for i := range want {
			if err := w.Append(&want[i]); err != nil {
				rt.Fatal(err)
			}
			if rapid.IntRange(0, 20).Draw(rt, "flush") == 0 {
				if err := w.Flush(); err != nil {
					rt.Fatal(err)
				}
			}
		}
		if err := w.Close(); err != nil {
			rt.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			rt.Fatal(err)
		}
		got, err := read(b)
		if !errors.Is(err, io.EOF) {
			rt.Fatalf("read: %v", err)
		}
		if len(got) != len(want) {
			rt.Fatalf("%d events, want %d", len(got), len(want))
		}
		for i := range got {
			if !reflect.DeepEqual(got[i], want[i]) {
				rt.Fatalf("event %d: %+v, want %+v", i, got[i], want[i])
			}
		}
	})
}

func TestHeaderKeepsTheWallClock(t *testing.T) {
	r, err := NewReader(bytes.NewReader(write(t, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if !r.Started.Equal(started) {
		t.Fatalf("started %v, want %v", r.Started, started)
	}
}

func TestSize(t *testing.T) {
	const n = 100_000
	b := write(t, load(n, 1))
	per := float64(len(b)) / n
	t.Logf("%.2f bytes per operation", per)
	if per > 15 {
		t.Fatalf("%.2f bytes per operation, want at most 15", per)
	}
}

// TestEveryTruncation cuts a history of several blocks at every byte: what is
// delivered is a prefix, and the end is never taken for a clean one.
func TestEveryTruncation(t *testing.T) {
	want := load(60, 2)
	b := flushed(t, want, 25)
	last := -1
	for n := range b {
		got, err := read(b[:n])
		if !errors.Is(err, ErrTruncated) {
			t.Fatalf("cut at byte %d of %d: %v, want truncated", n, len(b), err)
		}
		var fe *FormatError
		if !errors.As(err, &fe) || fe.Offset > int64(n) {
			t.Fatalf("cut at byte %d: %v", n, err)
		}
		if len(got) > len(want) || len(got) > 0 && !reflect.DeepEqual(got, want[:len(got)]) {
			t.Fatalf("cut at byte %d: what was delivered is no prefix", n)
		}
		if len(got) < last {
			t.Fatalf("cut at byte %d delivers fewer events than a cut before it", n)
		}
		last = len(got)
	}
	if last != len(want) {
		t.Fatalf("without its end record the history delivers %d of %d events", last, len(want))
	}
}

// flushed writes events with a block for every n of them.
func flushed(t *testing.T, events []Event, n int) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "h")
	w, err := Create(path, started)
	if err != nil {
		t.Fatal(err)
	}
	for i := range events {
		if err := w.Append(&events[i]); err != nil {
			t.Fatal(err)
		}
		if i%n == n-1 {
			if err := w.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestEveryFlip flips each bit of a history: no flip goes unnoticed, and what
// was delivered before is a prefix.
func TestEveryFlip(t *testing.T) {
	want := load(60, 3)
	b := flushed(t, want, 25)
	for n := range b {
		for bit := range 8 {
			b[n] ^= 1 << bit
			got, err := read(b)
			b[n] ^= 1 << bit
			var fe *FormatError
			if !errors.As(err, &fe) {
				t.Fatalf("bit %d of byte %d flipped: %v", bit, n, err)
			}
			if n >= headerSize && !errors.Is(err, ErrCorrupt) {
				t.Fatalf("bit %d of byte %d flipped: %v, want corrupt", bit, n, err)
			}
			if len(got) > 0 && !reflect.DeepEqual(got, want[:len(got)]) {
				t.Fatalf("bit %d of byte %d flipped: what was delivered is no prefix", bit, n)
			}
		}
	}
}

func TestOtherFiles(t *testing.T) {
	good := write(t, load(5, 4))
	newer := bytes.Clone(good)
	binary.LittleEndian.PutUint16(newer[8:], Version+1)
	old := bytes.Clone(good)
	binary.LittleEndian.PutUint16(old[8:], 0)
	binary.LittleEndian.PutUint32(old[28:], crc32.Checksum(old[:28], castagnoli()))
	for _, c := range []struct {
		name string
		in   []byte
		want error
		text string
	}{
		{"text", []byte("id,outcome\n1,acked\n"), ErrNotHistory, "begins with something else"},
		{"short text", []byte("id"), ErrNotHistory, ""},
		{"empty", nil, ErrTruncated, "at byte 0"},
		{"newer", newer, ErrNewer, "use a newer holdfast"},
		{"newer and short", newer[:12], ErrNewer, ""},
		{"version 0", old, ErrCorrupt, "version 0"},
		{"more after the end", append(bytes.Clone(good), 0), ErrCorrupt, fmt.Sprintf("at byte %d", len(good))},
		{"two histories", append(bytes.Clone(good), good...), ErrCorrupt, "follows the end"},
		{"zeroes after a block", append(bytes.Clone(good[:len(good)-28]), make([]byte, 100)...), ErrCorrupt, fmt.Sprintf("at byte %d", len(good)-28)},
	} {
		_, err := read(c.in)
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %v with %q", c.name, err, c.want, c.text)
		}
	}
}

func TestOneWriter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "h")
	w, err := Create(path, started)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Create(path, started); err == nil || !strings.Contains(err.Error(), "one writer") {
		t.Errorf("a second writer: %v", err)
	}
	if _, err := Open(path); !errors.Is(err, ErrBusy) {
		t.Errorf("open while it is written: %v", err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(path, started); err == nil {
		t.Error("a history was written over")
	}
	r, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	if err := r.Next(&Event{}); !errors.Is(err, io.EOF) {
		t.Errorf("an empty history: %v", err)
	}
	if err := w.Append(&Event{Kind: KindMark}); err == nil {
		t.Error("appended to a closed history")
	}
	if err := w.Close(); err == nil {
		t.Error("closed twice without an error")
	}
}

func TestAppendRefuses(t *testing.T) {
	w, err := Create(filepath.Join(t.TempDir(), "h"), started)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	if err := w.Append(&Event{Kind: KindIntent, At: time.Second, ID: 1}); err != nil {
		t.Fatal(err)
	}
	for _, e := range []Event{
		{Kind: KindIntent, At: time.Second - time.Millisecond, ID: 2},
		{Kind: KindOutcome, At: time.Second, ID: 1},
		{Kind: KindOutcome, At: time.Second, ID: 1, Outcome: Unknown + 1},
		{Kind: 0},
		{Kind: 4},
	} {
		if err := w.Append(&e); err == nil {
			t.Errorf("appended %+v", e)
		}
	}
	if err := w.Append(&Event{Kind: KindOutcome, At: time.Second, ID: 1, Outcome: Acked}); err != nil {
		t.Errorf("after refusals: %v", err)
	}
}

// TestFullDisk: the error names the cause, stays, and leaves a history that
// reads as truncated.
func TestFullDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "h")
	w, err := Create(path, started)
	if err != nil {
		t.Fatal(err)
	}
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("no /dev/full: %v", err)
	}
	w.f.Close()
	w.f = full
	if err := w.Append(&Event{Kind: KindIntent, ID: 1}); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "write history") {
		t.Errorf("flush: %v", err)
	}
	if err := w.Append(&Event{Kind: KindIntent, ID: 2}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("append: %v", err)
	}
	if err := w.Close(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("close: %v", err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := read(b); !errors.Is(err, ErrTruncated) {
		t.Errorf("read: %v", err)
	}
}

func TestLongTexts(t *testing.T) {
	b := write(t, []Event{
		{Kind: KindIntent, ID: 1},
		{Kind: KindOutcome, ID: 1, Outcome: Unknown, Code: strings.Repeat("c", 2*maxCode)},
		{Kind: KindMark, Text: strings.Repeat("t", 2*maxText)},
	})
	got, err := read(b)
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if len(got[1].Code) != maxCode || len(got[2].Text) != maxText {
		t.Errorf("code of %d bytes, text of %d", len(got[1].Code), len(got[2].Text))
	}
}

// FuzzReader feeds anything, and anything behind correct checksums: the reader
// ends with an error or a clean end, and what it delivers can be written again.
func FuzzReader(f *testing.F) {
	good := write(f, load(10, 5))
	f.Add(good, false)
	f.Add(good[headerSize+blockHeaderSize:], true)
	f.Add([]byte{}, true)
	f.Add([]byte{0, 0, 3, 1, 4, 'a', 'b', 'c', 'd'}, true)
	f.Fuzz(func(t *testing.T, in []byte, wrap bool) {
		if wrap {
			in = wrapped(in)
		}
		events, err := read(in)
		var fe *FormatError
		if !errors.Is(err, io.EOF) && !errors.As(err, &fe) {
			t.Fatalf("read: %v", err)
		}
		if fe != nil && (fe.Offset < 0 || fe.Offset > int64(len(in))) {
			t.Fatalf("%v, but there are %d bytes", fe, len(in))
		}
		if len(events) == 0 {
			return
		}
		again, err := read(write(t, events))
		if !errors.Is(err, io.EOF) || !reflect.DeepEqual(again, events) {
			t.Fatalf("written again: %v", err)
		}
	})
}

// wrapped puts a payload into a history with one block of up to 7 events.
func wrapped(payload []byte) []byte {
	crc := castagnoli()
	h := append([]byte(magic), Version, 0)
	h = append(h, make([]byte, 18)...)
	h = binary.LittleEndian.AppendUint32(h, crc32.Checksum(h, crc))
	b := []byte{blockEvents, 0, 0, 0}
	b = binary.LittleEndian.AppendUint32(b, uint32(len(payload)))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(payload)%7+1))
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, crc))
	b = append(b, payload...)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(payload, crc))
	return append(h, b...)
}

func BenchmarkAppend(b *testing.B) {
	events := load(10_000, 6)
	w, err := Create(filepath.Join(b.TempDir(), "h"), started)
	if err != nil {
		b.Fatal(err)
	}
	var base time.Duration
	for i := range b.N {
		e := events[i%len(events)]
		if i%len(events) == 0 && i > 0 {
			base += events[len(events)-1].At
		}
		e.At += base
		if err := w.Append(&e); err != nil {
			b.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
}

func BenchmarkNext(b *testing.B) {
	data := write(b, load(100_000, 7))
	var r *Reader
	var e Event
	for range b.N {
		if r == nil || r.Next(&e) != nil {
			var err error
			if r, err = NewReader(bytes.NewReader(data)); err != nil {
				b.Fatal(err)
			}
		}
	}
}
