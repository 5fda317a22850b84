package fuse_test

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// sqlite feeds inserts to the sqlite3 shell until it ends, and counts the rows
// that it acknowledged by printing their id.
type sqlite struct {
	cmd   *exec.Cmd
	acked chan int // closed when it ends; holds each id
}

func startSQLite(t *testing.T, file, synchronous string, from int) *sqlite {
	t.Helper()
	s := &sqlite{cmd: exec.Command("stdbuf", "-oL", "sqlite3", "-batch", "-bail", file), acked: make(chan int, 1<<16)}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := s.cmd.StdinPipe()
	must(t, err)
	out, err := s.cmd.StdoutPipe()
	must(t, err)
	must(t, s.cmd.Start())
	go func() {
		_, err := fmt.Fprintf(in, ".output /dev/null\npragma journal_mode=wal;\n.output stdout\npragma synchronous=%s;\npragma wal_autocheckpoint=50;\ncreate table if not exists t (id integer primary key, v text);\n", synchronous)
		for id := from; err == nil; id++ {
			_, err = fmt.Fprintf(in, "insert into t values (%d, hex(randomblob(200)));\nselect 'row %d';\n", id, id)
		}
	}()
	go func() {
		defer close(s.acked)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if id, err := strconv.Atoi(strings.TrimPrefix(lines.Text(), "row ")); err == nil {
				select {
				case s.acked <- id:
				default:
					return
				}
			}
		}
		_, _ = io.Copy(io.Discard, out)
	}()
	return s
}

func sqliteQuery(t *testing.T, file, sql string) string {
	t.Helper()
	out, err := exec.Command("sqlite3", "-batch", "-bail", file, sql).CombinedOutput()
	if err != nil {
		t.Fatalf("sqlite3 %q: %v: %s", sql, err, out)
	}
	return strings.TrimSpace(string(out))
}

// sqliteCuts cuts the power a number of times while rows are written, and
// returns how many acknowledged rows were there and how many of them are lost.
func sqliteCuts(t *testing.T, synchronous string, cuts int) (acked, lost int) {
	t.Helper()
	if _, err := exec.LookPath("sqlite3"); err != nil {
		t.Skip("needs the SQLite shell: apt-get install sqlite3")
	}
	d := mount(t, "null", "lose-all")
	file := d.path("db")
	from := 1
	for cut := range cuts {
		s := startSQLite(t, file, synchronous, from)
		deadline := time.After(20 * time.Second)
		last, n := from-1, 0
		for n < 40+cut*7 { // not always at the same place between two checkpoints
			select {
			case id, ok := <-s.acked:
				if !ok {
					t.Fatalf("sqlite3 ended after row %d", last)
				}
				last = id
				n++
			case <-deadline:
				t.Fatalf("sqlite3 hangs after row %d", last)
			}
		}
		_, err := d.Cut(d.ctx())
		must(t, err)
		_ = s.cmd.Process.Kill()
		for id := range s.acked {
			last = id
		}
		_ = s.cmd.Wait()
		_, err = d.On(d.ctx())
		must(t, err)
		if ok := sqliteQuery(t, file, "pragma integrity_check;"); ok != "ok" {
			t.Fatalf("cut %d: integrity_check: %s", cut, ok)
		}
		there := 0
		if sqliteQuery(t, file, "select count(*) from sqlite_master where name='t';") == "1" {
			there, err = strconv.Atoi(sqliteQuery(t, file, fmt.Sprintf("select count(*) from t where id between %d and %d;", from, last)))
			must(t, err)
		}
		acked += last - from + 1
		lost += last - from + 1 - there
		from = last + 1000
	}
	return acked, lost
}

func TestSQLiteFullLosesNothing(t *testing.T) {
	acked, lost := sqliteCuts(t, "full", 20)
	t.Logf("%d rows acknowledged over 20 cuts, %d lost", acked, lost)
	if lost != 0 {
		t.Errorf("%d of %d acknowledged rows are lost", lost, acked)
	}
}

func TestSQLiteNormalLosesSome(t *testing.T) {
	acked, lost := sqliteCuts(t, "normal", 5)
	t.Logf("%d rows acknowledged over 5 cuts, %d lost", acked, lost)
	if lost == 0 || lost > acked {
		t.Errorf("of %d acknowledged rows %d are lost, want some", acked, lost)
	}
}
