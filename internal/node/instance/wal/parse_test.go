package wal

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

func TestHistory(t *testing.T) {
	file := []byte("1\t0/3000060\tno recovery target specified\n\n# words\n3\t0/5000000\tholdfast: timeline 7 of epoch 4\n")
	h, reserved, err := ParseHistory(7, file)
	want := []cluster.Branch{{Timeline: 1}, {Timeline: 3, Fork: 0x3000060}, {Timeline: 7, Fork: 0x5000000}}
	if err != nil || reserved || !slices.Equal(h, want) {
		t.Fatalf("%v %v %v", h, reserved, err)
	}
	again, reserved, err := ParseHistory(7, FormatHistory(h, "x"))
	if err != nil || reserved || !slices.Equal(again, want) {
		t.Fatalf("written and read again: %v %v %v", again, reserved, err)
	}
	if h, reserved, err = ParseHistory(7, []byte(Reserved)); err != nil || !reserved || len(h) != 1 {
		t.Fatalf("a number that is reserved: %v %v %v", h, reserved, err)
	}
	for _, bad := range []string{"7\t0/1\tx", "1\t0/2\tx\n2\t0/1\tx", "2\t0/1\n1\t0/2", "1", "x\t0/1", "1\tx", "0\t0/1\tx"} {
		if h, _, err := ParseHistory(7, []byte(bad)); err == nil {
			t.Errorf("%q is taken for %v", bad, h)
		}
	}
}

func TestSegmentNames(t *testing.T) {
	for _, size := range []uint64{1 << 20, 16 << 20, 1 << 30} {
		for _, n := range []uint64{1, 255, 256, 4095, 4096, 1 << 20} {
			s := Segment{7, n}
			if got, ok := ParseSegment(s.Name(size), size); !ok || got != s {
				t.Errorf("%v of %d bytes is %q, and that %v", s, size, s.Name(size), got)
			}
		}
	}
	for _, bad := range []string{"", "0000000100000000000000FG", "00000001000000000000ff01", "000000010000000000000001.partial", "000000010000000000000100"} {
		if s, ok := ParseSegment(bad, 16<<20); ok {
			t.Errorf("%q is taken for %v", bad, s)
		}
	}
}

// segment is a file of WAL with records of the given sizes, and where they end.
func segment(sizes []int) (file []byte, ends []cluster.LSN) {
	const size = 1 << 20
	file = make([]byte, size)
	at, prev := uint64(size), uint64(0)
	put := func(rest int) {
		b, info, n := file[at-size:], uint16(0), shortHeader
		if at == size {
			info, n = hasLongHeader, longHeader
			binary.LittleEndian.PutUint64(b[24:], 99)
			binary.LittleEndian.PutUint32(b[32:], size)
			binary.LittleEndian.PutUint32(b[36:], blockSize)
		}
		if rest > 0 {
			info |= firstIsContinued
		}
		binary.LittleEndian.PutUint16(b, 0xD110)
		binary.LittleEndian.PutUint16(b[2:], info)
		binary.LittleEndian.PutUint32(b[4:], 1)
		binary.LittleEndian.PutUint64(b[8:], at)
		binary.LittleEndian.PutUint32(b[16:], uint32(rest))
		at += uint64(n)
	}
	for n, total := range sizes {
		rec := bytes.Repeat([]byte{byte(n + 1)}, total)
		binary.LittleEndian.PutUint32(rec, uint32(total))
		if at%blockSize == 0 {
			put(0)
		}
		binary.LittleEndian.PutUint64(rec[8:], prev)
		rec[16], rec[17] = 0, 10
		crc := crc32.Update(0, castagnoli, rec[headerSize:])
		binary.LittleEndian.PutUint32(rec[20:], crc32.Update(crc, castagnoli, rec[:20]))
		prev = at
		for len(rec) > 0 {
			if at%blockSize == 0 {
				put(len(rec))
			}
			k := copy(file[at-size:][:blockSize-at%blockSize], rec)
			rec, at = rec[k:], at+uint64(k)
		}
		at = align(at)
		ends = append(ends, cluster.LSN(at))
	}
	return file, ends
}

// directory holds one segment, and a pg_control that points at its beginning.
func directory(t testing.TB, file []byte) string {
	t.Helper()
	dir := t.TempDir()
	control := make([]byte, 8192)
	binary.LittleEndian.PutUint64(control, 99)
	binary.LittleEndian.PutUint32(control[8:], 1300)
	binary.LittleEndian.PutUint32(control[16:], uint32(InProduction))
	binary.LittleEndian.PutUint64(control[32:], 1<<20+longHeader)
	binary.LittleEndian.PutUint64(control[40:], 1<<20+longHeader)
	binary.LittleEndian.PutUint32(control[48:], 1)
	for name, b := range map[string][]byte{"global/pg_control": control, "pg_wal/000000010000000000000001": file} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestBorders puts records at every place relative to the end of a page.
func TestBorders(t *testing.T) {
	for last := 24; last < 8400; last += 8 {
		if last == 128 {
			last = 8000
		}
		file, ends := segment([]int{100, 7900, last, 40})
		r, err := Inspect(directory(t, file), Options{})
		if err != nil || r.End != ends[3] || r.Replayable != r.End {
			t.Fatalf("record of %d bytes: ends at %s, want %s: %v (%s)", last, Text(r.End), Text(ends[3]), err, r.Why)
		}
	}
}

// FuzzInspect: whatever lies in a segment, the end is the end of a record whose
// checksum is right, within the file.
func FuzzInspect(f *testing.F) {
	file, _ := segment([]int{100, 9000, 30, 20000, 64})
	f.Add(uint32(0), []byte{})
	f.Add(uint32(8192), []byte{0})
	f.Add(uint32(40), []byte{255, 255, 0, 0})
	f.Add(uint32(16384+2), []byte{8})
	f.Fuzz(func(t *testing.T, at uint32, patch []byte) {
		b := bytes.Clone(file)
		copy(b[int(at)%len(b):], patch)
		dir := directory(t, b)
		for _, o := range []Options{{}, {Fresh: true}, {From: 1<<20 + 9300}, {Received: 1<<20 + 20000}, {Received: 1<<20 + 20000, Live: true}} {
			r, err := Inspect(dir, o)
			if err != nil {
				continue
			}
			if r.Replayable > r.End || r.End > 2<<20 || r.Last >= r.Replayable || r.Replayable&7 != 0 {
				t.Fatalf("%+v of %+v", r, o)
			}
		}
	})
}

func FuzzHistory(f *testing.F) {
	f.Add(uint32(7), []byte("1\t0/3000060\tx\n3\t0/5000000\ty\n"))
	f.Fuzz(func(t *testing.T, tl uint32, file []byte) {
		h, _, err := ParseHistory(cluster.Timeline(tl), file)
		if err != nil {
			return
		}
		again, _, err := ParseHistory(cluster.Timeline(tl), FormatHistory(h, "x"))
		if err != nil || !slices.Equal(h, again) {
			t.Fatalf("%v, written and read again: %v, %v", h, again, err)
		}
	})
}

func FuzzControl(f *testing.F) {
	f.Add(make([]byte, 64), "START WAL LOCATION: 0/2000028 (file 000000010000000000000002)\nSTART TIMELINE: 1\n")
	f.Fuzz(func(t *testing.T, b []byte, label string) {
		if c, err := ParseControl(b); err == nil && (c.Timeline == 0 || c.Redo > c.Checkpoint) {
			t.Fatalf("%+v", c)
		}
		if _, tl, ok := parseLabel(label); ok && tl == 0 {
			t.Fatalf("%q", label)
		}
	})
}
