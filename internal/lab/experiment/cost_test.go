package experiment

import "testing"

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

func FuzzProc(f *testing.F) {
	f.Add([]byte(twoServers))
	f.Add([]byte("Pss: 1 kB\n"))
	f.Fuzz(func(_ *testing.T, data []byte) {
		_, _ = sumTicks(data, "postgres")
		_, _ = sumPss(data)
	})
}
