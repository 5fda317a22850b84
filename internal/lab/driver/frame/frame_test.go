package frame

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"
)

func draw(rt *rapid.T) Frame {
	text := func(n int) []byte { return []byte(rapid.StringN(0, n, 1500).Draw(rt, "text")) }
	f := Frame{Type: rapid.SampledFrom([]Type{Hello, Intent, Outcome, Note, Bye, Ping, Welcome, Reject, Confirm, Stop, Read, Newest}).Draw(rt, "type")}
	switch f.Type {
	case Hello:
		f.Version, f.ID, f.Confirm = rapid.Uint64().Draw(rt, "version"), rapid.Uint64().Draw(rt, "base"), rapid.Bool().Draw(rt, "confirm")
		f.Reads = rapid.Bool().Draw(rt, "reads")
		f.Token, f.Text = text(100), text(20)
	case Intent:
		f.ID, f.RetryOf, f.Writer = rapid.Uint64().Draw(rt, "id"), rapid.Uint64().Draw(rt, "retry"), rapid.Uint32().Draw(rt, "writer")
	case Outcome:
		f.ID, f.Outcome, f.Micros = rapid.Uint64().Draw(rt, "id"), uint8(rapid.IntRange(1, 3).Draw(rt, "outcome")), rapid.Uint64().Draw(rt, "µs")
		f.Code = text(40)
	case Note, Bye, Reject:
		f.Text = text(1500)
	case Read:
		f.ID, f.Outcome, f.Micros = rapid.Uint64().Draw(rt, "id"), uint8(rapid.IntRange(Fresh, Failed).Draw(rt, "answer")), rapid.Uint64().Draw(rt, "µs")
	case Confirm, Newest:
		f.ID = rapid.Uint64().Draw(rt, "id")
	}
	return f
}

// same compares frames; an empty text and none are the same.
func same(a, b Frame) bool {
	for _, f := range []*Frame{&a, &b} {
		f.Token, f.Code, f.Text = append([]byte{}, f.Token...), append([]byte{}, f.Code...), append([]byte{}, f.Text...)
	}
	return reflect.DeepEqual(a, b)
}

// TestRoundTrip: any sequence of frames arrives as it was sent, however the
// bytes are cut into reads.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		want := rapid.SliceOfN(rapid.Custom(draw), 0, 50).Draw(rt, "frames")
		var b []byte
		for i := range want {
			b = Append(b, &want[i])
		}
		var src io.Reader = bytes.NewReader(b)
		switch rapid.IntRange(0, 2).Draw(rt, "cut") {
		case 1:
			src = iotest.OneByteReader(src)
		case 2:
			src = iotest.HalfReader(src)
		}
		r := NewReader(src)
		for i := range want {
			var f Frame
			if err := r.Read(&f); err != nil {
				rt.Fatalf("frame %d: %v", i, err)
			}
			if !same(f, want[i]) {
				rt.Fatalf("frame %d: %+v, want %+v", i, f, want[i])
			}
		}
		if err := r.Read(&Frame{}); !errors.Is(err, io.EOF) {
			rt.Fatalf("at the end: %v", err)
		}
	})
}

func TestLongTextIsCut(t *testing.T) {
	b := Append(nil, &Frame{Type: Note, Text: []byte(strings.Repeat("x", 1<<20))})
	var f Frame
	if n, err := Decode(b, &f); err != nil || n != len(b) || len(f.Text) != maxText {
		t.Fatalf("%d of %d bytes, text of %d: %v", n, len(b), len(f.Text), err)
	}
}

func TestMalformed(t *testing.T) {
	for name, b := range map[string][]byte{
		"empty frame":       {0},
		"unknown type":      {1, 99},
		"too long":          {0xff, 0xff, 0xff, 0x7f},
		"endless length":    bytes.Repeat([]byte{0x80}, 10),
		"overlong length":   bytes.Repeat([]byte{0xff}, 11),
		"missing field":     {2, byte(Intent), 1},
		"trailing byte":     {2, byte(Ping), 0},
		"outcome 0":         {5, byte(Outcome), 1, 0, 1, 0},
		"outcome 4":         {5, byte(Outcome), 1, 4, 1, 0},
		"text past the end": {3, byte(Note), 9, 'x'},
	} {
		if _, err := Decode(b, &Frame{}); !errors.Is(err, ErrBad) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	buf := make([]byte, 0, 256)
	in := Frame{Type: Outcome, ID: 1 << 40, Outcome: 3, Micros: 1000, Code: []byte("timeout")}
	var out Frame
	if n := testing.AllocsPerRun(100, func() {
		b := Append(buf, &in)
		if _, err := Decode(b, &out); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations for a frame", n)
	}
}

func FuzzDecode(f *testing.F) {
	for _, fr := range []Frame{
		{Type: Hello, Version: 1, ID: 1, Confirm: true, Token: []byte("t"), Text: []byte("n")},
		{Type: Intent, ID: 300, RetryOf: 299, Writer: 7},
		{Type: Outcome, ID: 300, Outcome: 2, Micros: 1234, Code: []byte("57P01")},
		{Type: Read, ID: 300, Outcome: Stale, Micros: 99},
		{Type: Newest, ID: 1 << 40},
		{Type: Note, Text: bytes.Repeat([]byte("x"), 200)},
	} {
		f.Add(Append(nil, &fr))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var fr, again Frame
		n, err := Decode(b, &fr)
		if n < 0 || n > len(b) || err != nil && n != 0 {
			t.Fatalf("%d of %d bytes, %v", n, len(b), err)
		}
		if n == 0 {
			return
		}
		enc := Append(nil, &fr)
		if m, err := Decode(enc, &again); err != nil || m != len(enc) || !same(fr, again) {
			t.Fatalf("%+v again: %+v, %v", fr, again, err)
		}
	})
}
