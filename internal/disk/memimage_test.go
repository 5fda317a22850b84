package disk

import (
	"bytes"
	"slices"
	"sync"
)

// memImage is an Image in memory. Discarded ranges turn to garbage, so that
// nothing can rely on them.
type memImage struct {
	mu      sync.Mutex
	objects map[uint64][]byte
	journal []byte
}

func newMemImage() *memImage { return &memImage{objects: map[uint64][]byte{}} }

func (m *memImage) ReadAt(ino uint64, p []byte, off int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(p)
	if o := m.objects[ino]; off < int64(len(o)) {
		copy(p, o[off:])
	}
	return nil
}

func (m *memImage) WriteAt(ino uint64, bufs [][]byte, off int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	data := bytes.Join(bufs, nil)
	o := m.objects[ino]
	if n := off + int64(len(data)) - int64(len(o)); n > 0 {
		o = append(o, make([]byte, n)...)
	}
	copy(o[off:], data)
	m.objects[ino] = o
	return nil
}

func (m *memImage) Discard(ino uint64, off, n int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.objects[ino]
	for i := off; i < min(off+n, int64(len(o))); i++ {
		o[i] = 0xdb
	}
	return nil
}

func (m *memImage) Remove(ino uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.objects, ino)
	return nil
}

func (m *memImage) Objects() ([]uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []uint64
	for ino := range m.objects {
		all = append(all, ino)
	}
	return all, nil
}

func (m *memImage) Append(frame []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.journal = append(m.journal, frame...)
	return nil
}

func (m *memImage) Replace(journal []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.journal = slices.Clone(journal)
	return nil
}

func (m *memImage) Journal() ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.journal), nil
}
