package instance

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Processes are looked up in /proc alone: no disk of the data directory can
// hold that up.

// process is one process, and a title by which Postgres says what it does.
type process struct {
	pid, ppid int
	start     uint64 // clock ticks since boot: tells a reused pid apart
	title     string // the command line, arguments separated by blanks
}

// same says whether the process still lives.
func (p process) same() bool {
	q, ok := readProcess(p.pid)
	return ok && q.start == p.start
}

// readProcess reads a living process; the dead that nobody has waited for are none.
func readProcess(pid int) (process, bool) {
	p, _, ok := readStat(pid)
	return p, ok
}

func readStat(pid int) (p process, name string, ok bool) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return process{}, "", false
	}
	return parseStat(pid, string(data))
}

// parseStat reads "pid (name) state ppid …"; the name may hold anything.
func parseStat(pid int, stat string) (p process, name string, ok bool) {
	open, last := strings.IndexByte(stat, '('), strings.LastIndexByte(stat, ')')
	if open < 0 || last < open {
		return process{}, "", false
	}
	f := strings.Fields(stat[last+1:])
	const state, ppid, start = 0, 1, 19
	if len(f) <= start || f[state] == "Z" || f[state] == "X" {
		return process{}, "", false
	}
	p.pid = pid
	parent, err1 := strconv.Atoi(f[ppid])
	began, err2 := strconv.ParseUint(f[start], 10, 64)
	p.ppid, p.start = parent, began
	return p, stat[open+1 : last], err1 == nil && err2 == nil
}

// processesOn returns every Postgres process that works in a data directory.
func processesOn(dir string) []process {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var out []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		p, name, ok := readStat(pid)
		if !ok || name != "postgres" && name != "postmaster" {
			continue
		}
		if cwd, err := os.Readlink(filepath.Join("/proc", e.Name(), "cwd")); err != nil || cwd != dir {
			continue
		}
		p.title = titleOf(pid)
		out = append(out, p)
	}
	return out
}

func titleOf(pid int) string {
	data, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	return strings.TrimSpace(string(bytes.ReplaceAll(data, []byte{0}, []byte{' '})))
}

// startup says whether the title is that of the process that replays WAL.
func (p process) startup(clusterName string) bool {
	what, ok := strings.CutPrefix(p.title, "postgres: ")
	return ok && strings.HasPrefix(strings.TrimPrefix(what, clusterName+": "), "startup")
}

// child says whether the title is one that Postgres gives to its own children.
func (p process) child() bool { return strings.HasPrefix(p.title, "postgres: ") }

// serves says whether a process is a server's main one: not a child, and not one
// that runs alone for a moment (initdb's, single-user).
func (p process) serves() bool {
	for _, arg := range []string{" --single", " --boot", " --check", " -C "} {
		if strings.Contains(p.title, arg) {
			return false
		}
	}
	return p.title != "" && !p.child()
}

// childrenOf returns the processes that a postmaster has started. The kernel keeps
// a list of them, of one built without that /proc is read.
func childrenOf(dir string, postmaster int) []process {
	var out []process
	path := fmt.Sprintf("/proc/%d/task/%d/children", postmaster, postmaster)
	if list, err := os.ReadFile(path); err == nil {
		for _, f := range strings.Fields(string(list)) {
			pid, err := strconv.Atoi(f)
			if err != nil {
				continue
			}
			if p, _, ok := readStat(pid); ok && p.ppid == postmaster {
				p.title = titleOf(pid)
				out = append(out, p)
			}
		}
		return out
	}
	for _, p := range processesOn(dir) {
		if p.ppid == postmaster {
			out = append(out, p)
		}
	}
	return out
}

// clientUser is the role of the client that a child serves; ok is false for
// Postgres's own helpers. Titles read "postgres: [cluster name:] user database
// host(port) activity", for walsenders "walsender user [database] host(port)".
func (p process) clientUser() (user string, ok bool) {
	what, ok := strings.CutPrefix(p.title, "postgres: ")
	if !ok {
		return "", false
	}
	f := strings.Fields(what)
	host := slices.IndexFunc(f, func(s string) bool { return s == "[local]" || strings.HasSuffix(s, ")") && strings.Contains(s, "(") })
	if host < 0 {
		return "", false
	}
	f = f[:host]
	for n := len(f) - 1; n >= 0; n-- {
		if strings.HasSuffix(f[n], ":") {
			f = f[n+1:]
			break
		}
	}
	switch {
	case len(f) > 1 && f[0] == "walsender":
		return f[1], true
	case len(f) > 0:
		return f[0], true
	}
	return "", false
}

// client says whether a child serves somebody whom the door keeps out.
func (p process) client() bool {
	user, ok := p.clientUser()
	return ok && user != roleAgent && user != roleReplication && user != roleRewind
}

// startedBy is the value of the mark that our own starts leave in their environment.
func (p process) startedBy() string {
	data, _ := os.ReadFile("/proc/" + strconv.Itoa(p.pid) + "/environ")
	for _, kv := range bytes.Split(data, []byte{0}) {
		if v, ok := bytes.CutPrefix(kv, []byte(startMark+"=")); ok {
			return string(v)
		}
	}
	return ""
}

const startMark = "HOLDFAST_START"

func signal(p process, sig syscall.Signal) error {
	if !p.same() {
		return nil
	}
	return syscall.Kill(p.pid, sig)
}
