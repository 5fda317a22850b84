package local

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// memoryGroup bounds the memory of a machine's programs, what the kernel caches
// of their files included. It has no group where the machine lends none.
type memoryGroup struct {
	dir string // "" for none
	own bool   // made for this alone, not shared with the freezer
	v2  bool
}

// newMemoryGroup takes the freezer's group where that can bound memory (version
// 2, where a program is in one group), else makes one of version 1.
func (l *lab) newMemoryGroup(host string, f freezer) (memoryGroup, error) {
	if c, ok := f.(*cgroupFreezer); ok && c.v2 {
		if _, err := os.Stat(filepath.Join(c.dir, "memory.max")); err == nil {
			return memoryGroup{dir: c.dir, v2: true}, nil
		}
	}
	for _, parent := range l.memory {
		g := memoryGroup{dir: filepath.Join(parent, "holdfast-"+l.state.id+"-"+host), own: true}
		if os.Mkdir(g.dir, 0o755) != nil {
			continue
		}
		if _, err := os.Stat(g.file()); err != nil {
			_ = os.Remove(g.dir)
			continue
		}
		if err := l.state.note(noteCgroup, g.dir); err != nil {
			return memoryGroup{}, errors.Join(err, os.Remove(g.dir))
		}
		return g, nil
	}
	return memoryGroup{}, nil
}

func (g memoryGroup) file() string {
	if g.v2 {
		return filepath.Join(g.dir, "memory.max")
	}
	return filepath.Join(g.dir, "memory.limit_in_bytes")
}

// adopt takes in the first process before it has started any other.
func (g memoryGroup) adopt(pid int) error {
	if !g.own {
		return nil
	}
	return (&cgroupFreezer{dir: g.dir}).adopt(pid)
}

func (g memoryGroup) remove() error {
	if !g.own {
		return nil
	}
	return removeEmptyCgroup(g.dir)
}

var errNoMemoryLimit = errors.New("this machine has no control group in which memory could be limited")

// limit bounds the memory, or lifts the bound if bytes is 0. What is in use beyond
// it is given back first, as far as it can be.
func (g memoryGroup) limit(bytes int64) error {
	if g.dir == "" {
		if bytes == 0 {
			return nil
		}
		return errNoMemoryLimit
	}
	value := strconv.FormatInt(bytes, 10)
	switch {
	case bytes > 0:
	case g.v2:
		value = "max"
	default:
		value = "-1"
	}
	// The kernel gives up at the first try that frees nothing, though the next may.
	for end := time.Now().Add(limitDeadline); ; time.Sleep(10 * time.Millisecond) {
		err := os.WriteFile(g.file(), []byte(value), 0)
		if !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EINTR) || time.Now().After(end) {
			return err
		}
	}
}

// limitDeadline bounds how long it may take to give back what is beyond a new limit.
const limitDeadline = 10 * time.Second

// memoryParents are this process's own control groups of version 1 that bound memory.
func memoryParents() []string {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil
	}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	defer f.Close()
	return boundingParents(string(own), f)
}

// boundingParents are those of a /proc/PID/cgroup and a mountinfo file.
func boundingParents(own string, mountinfo io.Reader) []string {
	const controller = "memory"
	path := ""
	for line := range strings.Lines(own) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) == 3 && hasWord(fields[1], controller) {
			path = fields[2]
		}
	}
	var parents []string
	sc := bufio.NewScanner(mountinfo)
	for sc.Scan() {
		before, after, _ := strings.Cut(sc.Text(), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if len(left) >= 5 && len(right) >= 3 && right[0] == "cgroup" && hasWord(right[2], controller) && path != "" {
			parents = append(parents, below(left[4], left[3], path))
		}
	}
	return parents
}

// LimitMemory bounds the memory of all programs of the host together, what is
// cached of their files included; it holds over power cycles. 0 lifts it.
func (h *host) LimitMemory(_ context.Context, bytes int64) error {
	h.power.Lock()
	defer h.power.Unlock()
	m, err := h.running()
	if err == nil {
		err = m.memory.limit(bytes)
	}
	if err != nil {
		return fmt.Errorf("limit the memory of host %s to %d bytes: %w", h.spec.Name, bytes, err)
	}
	h.memoryLimit = bytes
	return nil
}
