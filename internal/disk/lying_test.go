package disk

import (
	"bytes"
	"errors"
	"syscall"
	"testing"
	"time"
)

// cuttingImage cuts the power in the middle of a write-back.
type cuttingImage struct {
	*memImage
	left int // writes until the cut
	cut  func()
}

func (c *cuttingImage) WriteAt(ino uint64, bufs [][]byte, off int64) error {
	if c.left--; c.left == 0 {
		c.cut()
	}
	return c.memImage.WriteAt(ino, bufs, off)
}

// TestLyingDestageIsWhole cuts the power within the destage of a lying disk: it
// must come back as of one moment, never with some files newer than others.
func TestLyingDestageIsWhole(t *testing.T) {
	const files = 6
	for at := 1; at <= files; at++ {
		img := &cuttingImage{memImage: newMemImage()}
		d, err := Open(img, Options{Policy: Lying, RootMode: 0o755})
		if err != nil {
			t.Fatal(err)
		}
		s, _, err := d.PowerOn(0)
		if err != nil {
			t.Fatal(err)
		}
		var inos []uint64
		write := func(b byte) {
			for _, ino := range inos {
				if err := s.Write(ino, bytes.Repeat([]byte{b}, 100), 0, 0); err != nil {
					t.Fatal(err)
				}
			}
		}
		for i := range files {
			a, err := s.Create(Root, string(rune('a'+i)), NewNode{Mode: syscall.S_IFREG | 0o600}, 0)
			if err != nil {
				t.Fatal(err)
			}
			inos = append(inos, a.Ino)
		}
		write('1')
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		write('2')
		img.left, img.cut = at, s.Cut
		if err := s.Tick(int64(6 * time.Second)); !errors.Is(err, syscall.EIO) {
			t.Fatalf("the destage under which the power went: %v", err)
		}
		if s, _, err = d.PowerOn(0); err != nil {
			t.Fatal(err)
		}
		for _, ino := range inos {
			b := make([]byte, 1)
			if _, _, err := s.Read(ino, b, 0); err != nil || b[0] != '2' {
				t.Errorf("cut at write %d: inode %d reads %q (%v)", at, ino, b, err)
			}
		}
	}
}
