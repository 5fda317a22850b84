package node

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

func TestPromise(t *testing.T) {
	dir := t.TempDir()
	open := func(wantFound bool, want cluster.Epoch) *promises {
		t.Helper()
		p, found, err := openPromise(dir)
		if err != nil || found != wantFound || p.have != want {
			t.Fatalf("opened: found %v, epoch %d, %v; want %v, %d", found, p.have, err, wantFound, want)
		}
		return p
	}
	p := open(false, 0)
	if err := p.close(); err != nil {
		t.Fatal(err)
	}
	p = open(false, 0) // made, and never written: no promise
	for _, e := range []cluster.Epoch{0, 3, 7, 5} {
		if err := p.save(e); err != nil {
			t.Fatal(err)
		}
	}
	_ = p.close()
	p = open(true, 7) // it never falls
	before, err := os.ReadFile(filepath.Join(dir, promiseFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.save(9); err != nil {
		t.Fatal(err)
	}
	_ = p.close()
	after, err := os.ReadFile(filepath.Join(dir, promiseFile))
	if err != nil || len(after) != len(before) {
		t.Fatalf("the file changed its size from %d to %d (%v)", len(before), len(after), err)
	}
	// A write that was torn at any byte leaves the former promise or the new one.
	for cut := range after {
		if cut > 20 && cut < promiseSlot || cut > promiseSlot+20 {
			continue
		}
		torn := append(append([]byte(nil), after[:cut]...), before[cut:]...)
		if err := os.WriteFile(filepath.Join(dir, promiseFile), torn, 0o600); err != nil {
			t.Fatal(err)
		}
		p, found, err := openPromise(dir)
		if err != nil || !found || p.have != 7 && p.have != 9 {
			t.Fatalf("torn at byte %d: found %v, epoch %d, %v", cut, found, p.have, err)
		}
		_ = p.close()
	}
}
