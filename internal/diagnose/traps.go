package diagnose

import (
	"fmt"
	"slices"
	"strings"
)

// tornFree are file systems that write a page whole or not at all, so that
// full_page_writes may be off on them.
var tornFree = []string{"zfs", "btrfs"}

// slowClockNs is a reading of the clock that goes through the kernel; with the
// processor's own counter it takes 20 to 50 ns.
const slowClockNs = 300

// traps looks for what makes a server unsafe, or a measurement mean less than it seems.
func (a *assessor) traps() {
	add := func(name, level, text string, args ...any) {
		a.d.Traps = append(a.d.Traps, Trap{Name: name, Level: level, Text: fmt.Sprintf(text, args...)})
	}
	set := a.e.setting
	if set("fsync") == "off" {
		add("fsync", Danger, "fsync is off: a crash of the machine can destroy the whole database, and nothing here says what a commit would cost with it on")
	}
	switch v := set("synchronous_commit"); v {
	case "off", "local", "remote_write":
		add("synchronous_commit", Warning, "synchronous_commit is %s for this session: %s", v, syncText(v))
	}
	a.loweredFor(add)
	if set("full_page_writes") == "off" {
		fs := ""
		if h := a.d.Host; h != nil && h.Data != nil {
			fs = h.Data.FileSystem
		}
		switch {
		case slices.Contains(tornFree, fs):
			add("full_page_writes", Notice, "full_page_writes is off, which %s allows", fs)
		case fs == "":
			add("full_page_writes", Danger, "full_page_writes is off: unless the file system writes pages whole (ZFS, btrfs), a crash of the machine can tear them for good")
		default:
			add("full_page_writes", Danger, "full_page_writes is off on %s, which can tear a page in a crash of the machine: that page is then lost", fs)
		}
	}
	if set("data_checksums") == "off" {
		add("data_checksums", Warning, "data checksums are off: a disk that returns wrong pages is not noticed (pg_checksums --enable, with the server stopped)")
	}
	if h := a.d.Host; h != nil && h.SameDevice != nil && *h.SameDevice && h.Data != nil && (h.Data.Plateau != "" || a.d.Storage.Limit == "rate") {
		add("one throttled device", Warning, "data and WAL share one device that is at its cap: page reads take operations from commits")
	}
	for _, h := range a.hazard {
		add(h.name, h.level, "%s", h.text)
	}
	if set("track_io_timing") == "off" {
		add("track_io_timing", Notice, "track_io_timing is off: times of reads come from sampled waits here, and pg_stat_statements has none for I/O")
	}
	if set("track_activities") == "off" {
		add("track_activities", Warning, "track_activities is off: sessions do not say what they do, and nothing can be sampled")
	}
	a.clock(add)
	if set("autovacuum") == "off" {
		add("autovacuum", Danger, "autovacuum is off: dead rows pile up, and in the end the server refuses writes")
	}
}

func syncText(v string) string {
	switch v {
	case "off":
		return "a commit is confirmed before it is on disk, and a crash loses the last ones"
	case "local":
		return "no standby is waited for"
	}
	return "a standby confirms before it has flushed, and if both crash a commit can be lost"
}

// loweredFor names the roles and databases that commit with less than the rest.
func (a *assessor) loweredFor(add func(name, level, text string, args ...any)) {
	if a.e.Begin == nil {
		return
	}
	for _, r := range a.e.Begin.Views["role_settings"] {
		for _, kv := range strings.Fields(r.Text("config")) {
			name, v, _ := strings.Cut(kv, "=")
			if name != "synchronous_commit" || v == "on" || v == "remote_apply" || v == a.e.setting("synchronous_commit") {
				continue
			}
			var who []string
			if role := r.Text("role"); role != "" {
				who = append(who, fmt.Sprintf("the role %q", role))
			}
			if db := r.Text("database"); db != "" {
				who = append(who, fmt.Sprintf("the database %q", db))
			}
			if len(who) == 0 {
				who = []string{"all roles"}
			}
			add("synchronous_commit", Warning, "synchronous_commit is lowered to %s for %s: %s", v, strings.Join(who, " in "), syncText(v))
		}
	}
}

func (a *assessor) clock(add func(name, level, text string, args ...any)) {
	ns, known := deref(a.e.ClockNs), a.e.ClockNs != nil
	name := ""
	if h := a.d.Host; h != nil {
		name = h.Clock
	}
	slow := known && ns >= slowClockNs
	switch {
	case slow && name != "":
		add("clock source", Warning, "reading the clock takes %.0f ns (clock source %s): timing options and EXPLAIN ANALYZE slow statements down", ns, name)
	case slow:
		add("clock source", Warning, "reading the server's clock takes %.0f ns: its machine has a slow clock source, and timing options and EXPLAIN ANALYZE slow statements down", ns)
	case name == "acpi_pm" || name == "hpet" || name == "jiffies":
		add("clock source", Warning, "the clock source is %s, which is slow to read: timing options and EXPLAIN ANALYZE slow statements down", name)
	}
}
