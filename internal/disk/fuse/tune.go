package fuse

import (
	"os"
	"runtime"
	"runtime/debug"
	"strconv"

	"golang.org/x/sys/unix"
)

// Tune prepares a process whose only work is one simulated disk.
func Tune() {
	// Most threads here wait in the kernel, each for one request: with as many
	// scheduling slots as cores they would wait for each other as well.
	runtime.GOMAXPROCS(max(16, 2*runtime.NumCPU()))
	debug.SetGCPercent(400) // the heap is small, and each collection a stall
	// A disk does not wait for a processor. Only root may say so; threads made
	// later inherit it.
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, t := range tasks {
		if tid, err := strconv.Atoi(t.Name()); err == nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, tid, -20)
		}
	}
}
