package measure

import (
	"fmt"
	"slices"
	"strings"
)

// Words of a verdict. There is none for "safe": that a flush is real can be
// disproved without a power cut, never proved.
const (
	Suspicious = "suspicious" // faster than a disk can be
	Unproven   = "unproven"   // nothing speaks against it, and nothing proves it
	Memory     = "memory"     // tmpfs and the like: nothing outlives the machine
	Elsewhere  = "elsewhere"  // FUSE, network: another program or machine decides
	Nothing    = "nothing-measured"
)

// Verdict is what may be said of the disk's honesty.
type Verdict struct {
	Word string `json:"word"`
	Text string `json:"text"`
}

// suspectMs is 20 µs: about what the way through the kernel and over the bus
// and back takes alone, and below what flash without a protected cache can do.
const suspectMs = 0.020

// kind sorts a file system by who answers for a flush.
func kind(fstype string) string {
	base, _, _ := strings.Cut(fstype, ".")
	switch {
	case slices.Contains([]string{"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"}, base):
		return Memory
	case slices.Contains([]string{"fuse", "fuseblk", "nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "ceph", "lustre", "glusterfs", "afs", "vboxsf"}, base):
		return Elsewhere
	}
	return "disk"
}

func suspicion(r StepResult, facts map[string]string) string {
	if r.Latency == nil || r.P50Ms >= suspectMs || kind(facts["filesystem"]) != "disk" {
		return ""
	}
	return fmt.Sprintf("half of the flushes took less than %.0f µs", 1000*max(r.P50Ms, 0.001))
}

func judge(steps []StepResult, facts map[string]string) Verdict {
	const cut = "Only a power cut can prove that a flush is kept; this measurement cannot."
	fs := facts["filesystem"]
	var quick []string
	measured := 0
	for _, s := range steps {
		if s.Count > 0 {
			measured++
		}
		if s.Suspicious != "" {
			quick = append(quick, s.String())
		}
	}
	switch {
	case measured == 0:
		return Verdict{Nothing, "No step was measured. " + cut}
	case kind(fs) == Memory:
		return Verdict{Memory, fs + " is memory: a flush does nothing, and everything in it is gone with the machine's power."}
	case fs == "fuse.holdfast":
		return Verdict{Elsewhere, "This is holdfast's simulated disk " + facts["device"] + ": the figures are set, and hold the way to its daemon and back (near 0.1 ms). " +
			"Whether it keeps a flush was set as well; holdfast simdisk cut shows it."}
	case kind(fs) == Elsewhere && strings.HasPrefix(fs, "fuse"):
		return Verdict{Elsewhere, fs + " is a FUSE file system: its daemon decides what a flush does, and the figures hold the way to it and back. " + cut}
	case kind(fs) == Elsewhere:
		return Verdict{Elsewhere, fs + " answers from another machine or from the hypervisor: what it keeps is that side's promise. " + cut}
	case len(quick) > 0:
		why := "a cache that ignores flushes, or one that a battery or capacitor keeps"
		if c := facts["write_cache"]; c != NA && c != "" {
			why += fmt.Sprintf(" (the kernel sees %q, fua %s)", c, facts["fua"])
		}
		return Verdict{Suspicious, fmt.Sprintf("%d of %d steps took under %.0f µs at the median (%s): %s. %s",
			len(quick), measured, 1000*suspectMs, strings.Join(quick[:min(3, len(quick))], ", "), why, cut)}
	}
	text := "No flush was faster than a disk can be. " + cut
	if fs == "overlay" || fs == NA {
		text = "The disk beneath is not visible from here (" + fs + "). " + text
	}
	return Verdict{Unproven, text}
}

// Compared sets the WAL flush beside a known disk.
type Compared struct {
	Name    string  `json:"name"`
	FlushMs float64 `json:"flush_ms"`
	Times   float64 `json:"times"` // ours over theirs
	Source  string  `json:"source"`
}

// Published is a figure of others' machines: never in one column with ours.
type Published struct {
	What, Figure, Source string
}

const cnpg = `"Postgres with CloudNativePG on Hetzner Cloud and Kubernetes" (2026), cpx32`

// compare holds the WAL flush against the simulator's named disks, whose flush
// latencies are those of the published measurements.
func compare(p50 float64) []Compared {
	known := []Compared{
		{Name: "local-nvme", FlushMs: 0.34, Source: "holdfast's simulated disk, after " + cnpg},
		{Name: "cloud-volume", FlushMs: 2.7, Source: "holdfast's simulated disk, after " + cnpg},
	}
	for i := range known {
		known[i].Times = p50 / known[i].FlushMs
	}
	return known
}

// PublishedFlushes are flush latencies that others measured, to be read beside
// a ladder.
func PublishedFlushes() []Published {
	const litestream = `"SQLite with Litestream on Hetzner Cloud" (2026), the same servers`
	return []Published{
		{"flush, local NVMe", "0.34-0.38 ms", cnpg + "; fio and pg_test_fsync"},
		{"flush, network volume", "about 2.7 ms", cnpg + "; fio and pg_test_fsync"},
		{"flush, DRBD with two replicas", "0.95 ms", cnpg + "; pg_test_fsync"},
		{"flush, local NVMe", "0.28 ms", litestream},
		{"SQLite commit (WAL, FULL), local NVMe", "0.33-0.38 ms", litestream},
		{"flush, network volume", "2.43 ms", litestream},
		{"WAL fsync wait under load, NVMe / gp3", "1.5 / 11 ms", `"Postgres Isn't Slow. Your Storage Is." (POSETTE 2026), m6id.4xlarge, 64 clients`},
	}
}
