package postgres

import "testing"

func FuzzLSN(f *testing.F) {
	for _, s := range []string{"0/0", "16/B374D848", "FFFFFFFF/FFFFFFFF", "/", "1/", "1/2/3", "+1/-2", "100000000/0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		l, err := ParseLSN(s)
		if err != nil {
			return
		}
		if again, err := ParseLSN(l.String()); err != nil || again != l {
			t.Fatalf("%q is %v, and that %v: %v", s, l, again, err)
		}
	})
}
