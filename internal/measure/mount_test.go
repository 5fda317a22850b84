package measure

import (
	"strings"
	"testing"
)

func TestParseMount(t *testing.T) {
	m, dev, ok := parseMount(`36 35 98:0 /root /mnt\040two rw,noatime master:1 - ext3 /dev/a\011b rw,errors=continue`)
	if want := (mount{point: "/mnt two", fstype: "ext3", source: "/dev/a\tb", options: "rw,noatime,errors=continue"}); !ok || dev != "98:0" || m != want {
		t.Errorf("%+v, %q, %v", m, dev, ok)
	}
}

func FuzzMount(f *testing.F) {
	f.Add(`36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`)
	f.Add(`1 2 0:3 / / rw - overlay overlay rw,lowerdir=/a\040b:/c`)
	f.Add(`1 2 0:3 / /x rw - fuse.holdfast holdfast`)
	f.Add(`1 2 3 - 4`)
	f.Fuzz(func(t *testing.T, line string) {
		m, dev, ok := parseMount(line)
		if ok != (dev != "") || ok && (m.point == "" || m.fstype == "" || m.source == "" || m.options == "" || !strings.Contains(line, dev)) {
			t.Fatalf("%q: %+v, %q, %v", line, m, dev, ok)
		}
	})
}
