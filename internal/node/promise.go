package node

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// promiseFile keeps the recruit's promise. It has its size from the beginning and
// is written in place, so that a full disk cannot refuse it; of two slots, each in
// a block of its own, only one is written at a time, so that a torn write leaves
// the other.
const (
	promiseFile = "promise"
	promiseSlot = 4096
)

// promises is the file, open.
type promises struct {
	f    *os.File
	have cluster.Epoch
	next int64 // the slot to be written next
}

// openPromise opens the promise in dir; found says whether a whole one was there.
func openPromise(dir string) (_ *promises, found bool, err error) {
	f, err := os.OpenFile(filepath.Join(dir, promiseFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, false, fmt.Errorf("open the promise: %w", err)
	}
	p := &promises{f: f}
	buf := make([]byte, 2*promiseSlot)
	n, _ := f.ReadAt(buf, 0)
	for slot := range int64(2) {
		if b := buf[slot*promiseSlot:]; n >= int(slot*promiseSlot)+12 && crc32.ChecksumIEEE(b[:8]) == binary.BigEndian.Uint32(b[8:12]) {
			if e := cluster.Epoch(binary.BigEndian.Uint64(b)); !found || e >= p.have {
				p.have, p.next, found = e, 1-slot, true
			}
		}
	}
	if !found { // its size first: zeros carry no checksum that fits
		if _, err := f.WriteAt(make([]byte, 2*promiseSlot), 0); err != nil {
			_ = f.Close()
			return nil, false, fmt.Errorf("make room for the promise: %w", err)
		}
		if err := errors.Join(f.Sync(), syncDir(dir)); err != nil {
			_ = f.Close()
			return nil, false, fmt.Errorf("flush the promise: %w", err)
		}
	}
	return p, found, nil
}

// save makes the promise durable. It never falls.
func (p *promises) save(e cluster.Epoch) error {
	e = max(e, p.have)
	var b [12]byte
	binary.BigEndian.PutUint64(b[:], uint64(e))
	binary.BigEndian.PutUint32(b[8:], crc32.ChecksumIEEE(b[:8]))
	if _, err := p.f.WriteAt(b[:], p.next*promiseSlot); err != nil {
		return fmt.Errorf("write the promise: %w", err)
	}
	if err := p.f.Sync(); err != nil {
		return fmt.Errorf("flush the promise: %w", err)
	}
	p.have, p.next = e, 1-p.next
	return nil
}

func (p *promises) close() error { return p.f.Close() }

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
