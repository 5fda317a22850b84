package guest

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func FuzzDiskMounts(f *testing.F) {
	f.Add("36 35 0:50 / /run/holdfast/labs/1/a\\040b rw - " + FSType + " holdfast rw\n1 2 0:3 / / rw - ext4 /dev/x rw\n")
	f.Add("- " + FSType + " \n1 2 3 4 5 - " + FSType + " ")
	f.Fuzz(func(t *testing.T, table string) {
		points, err := DiskMounts(strings.NewReader(table))
		if err == nil && len(points) > strings.Count(table, FSType) {
			t.Fatalf("%q: %q", table, points)
		}
		for _, p := range points {
			if p == "" {
				t.Fatalf("%q: an empty mount point", table)
			}
		}
	})
}

// FuzzReceive: what comes on a host's socket is a message, whose rest is kept,
// or an error.
func FuzzReceive(f *testing.F) {
	f.Add([]byte(`{"path":"/bin/true","args":["a"],"env":["A=b"],"dir":"/","root":true}` + "\nrest"))
	f.Add([]byte(`{"status":256}` + "\n"))
	f.Add([]byte("{\n"))
	f.Add([]byte("no end"))
	f.Fuzz(func(t *testing.T, said []byte) {
		ours, theirs, err := Pair(unix.SOCK_STREAM)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = ours.Close() }()
		go func() {
			_, _ = theirs.Write(said)
			_ = theirs.Close()
		}()
		var r Request
		fds, rest, err := Receive(ours, &r)
		if err != nil {
			if len(fds) > 0 {
				t.Fatalf("%q: descriptors with %v", said, err)
			}
			return
		}
		tail, err := io.ReadAll(rest)
		if err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, os.ErrClosed) {
			t.Fatal(err)
		}
		if _, want, _ := strings.Cut(string(said), "\n"); string(tail) != want {
			t.Fatalf("%q: the rest is %q", said, tail)
		}
	})
}
