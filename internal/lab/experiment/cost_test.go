package experiment

import (
	"bytes"
	"os"
	"testing"
)

const twoServers = `7 (postgres) S 1 7 7 0 -1 4194560 1 2 3 4 100 20 3000 400 20 0 1 0 5 6 7
8 (a) b (c)) S 1 7 7 0 -1 4194560 1 2 3 4 9 9 9 9 20 0 1 0 5 6 7
9 (postgres) S 7 9 9 0 -1 4194560 1 2 3 4 5 6 0 0 20 0 1 0 5 6 7
`

func TestSumTicks(t *testing.T) {
	n, err := sumTicks([]byte(twoServers), "postgres")
	if err != nil || n != 3531 {
		t.Errorf("%d, %v; want 3531", n, err)
	}
	if n, err := sumTicks([]byte(twoServers), "a) b (c)"); err != nil || n != 36 {
		t.Errorf("a name with parentheses: %d, %v", n, err)
	}
	for _, bad := range []string{"nothing\n", "7 (postgres) S 1\n", "7 (postgres) S 1 7 7 0 -1 4194560 1 2 3 4 x 20 3000 400 20\n"} {
		if _, err := sumTicks([]byte(bad), "postgres"); err == nil {
			t.Errorf("%q is taken for a process", bad)
		}
	}
}

func TestSumPss(t *testing.T) {
	if n, err := sumPss([]byte("Pss:   120 kB\nPss: 3 kB\n")); err != nil || n != 123 {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := sumPss([]byte("Rss: 1 kB\n")); err == nil {
		t.Error("another field is taken for Pss")
	}
}

// FuzzProc: what /proc says is added up or refused; of what is added up, no line
// is anything else.
func FuzzProc(f *testing.F) {
	f.Add([]byte(twoServers))
	f.Add([]byte("Pss: 1 kB\nPss:\t120 kB\n"))
	f.Add([]byte("7 (postgres) S 1\n"))
	f.Add([]byte("7 (postgres) S 1 7 7 0 -1 4194560 1 2 3 4 18446744073709551615 9223372036854775807 9223372036854775807 1 20 0\n"))
	if own, err := os.ReadFile("/proc/self/stat"); err == nil {
		f.Add(own)
	}
	if own, err := os.ReadFile("/proc/self/smaps_rollup"); err == nil {
		f.Add(own)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if n, err := sumTicks(data, "postgres"); err == nil && n > 0 && !bytes.Contains(data, []byte("(postgres)")) {
			t.Fatalf("%q: %d ticks of no postgres", data, n)
		}
		n, err := sumPss(data)
		if err == nil && n > 0 && !bytes.Contains(data, []byte("Pss:")) {
			t.Fatalf("%q: %d kB of nothing", data, n)
		}
	})
}
