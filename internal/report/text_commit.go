package report

import (
	"slices"
	"strings"
)

// parts are what commits are made of: means with their 95 % intervals.
func (t *text) parts(charts []partsChart) {
	for _, c := range charts {
		headers := []string{"setup", "disk", "whole", "flush", "replication", "rest", "1 flush"}
		if c.Locks {
			headers = slices.Insert(headers, 5, "row locks")
		}
		rows := [][]string{}
		for _, r := range c.Rows {
			row := []string{r.Setup, r.Disk + tilde(r.Mark), both(r.Whole), both(r.Flush), both(r.Replication), r.Rest.Main, r.DiskFlush.Main}
			if c.Locks {
				row = slices.Insert(row, 5, both(r.Locks))
			}
			rows = append(rows, row)
		}
		t.table("What a commit is made of, "+c.Title+" (ms; means and their 95 % intervals, from what sessions waited for; rest: the difference; 1 flush: by the disk's own clock)", headers, rows, 2)
		for _, n := range c.Notes {
			t.wrapped("", "", n)
		}
	}
}

func (t *text) disks(charts []diskChart) {
	rows := [][]string{}
	for _, c := range charts {
		for _, l := range c.Lines {
			limit := "none"
			if c.Cap != "" {
				limit = c.Cap + " (" + l.Share + ")"
			}
			rows = append(rows, []string{c.Disk + tilde(c.Mark), l.Label, l.Mean, l.Most, limit, l.Flushes})
		}
	}
	t.table("Operations of the primary's disk a second, by its own counters",
		[]string{"disk", "on it", "mean", "highest", "cap", "flushes asked for"}, rows, 2)
}

func (t *text) costs(p *page) {
	rows := [][]string{}
	for _, r := range p.Costs {
		rows = append(rows, []string{r.Setup, r.Disk + tilde(r.Mark), r.Clients, r.CPU.Main, r.Memory.Main, r.Space.Main})
	}
	t.table("What a setup costs besides time (all its hosts; medians)",
		[]string{"setup", "disk", "clients", "CPU s/1,000", "memory MB", "on disk MB"}, rows, 2)
	rows = [][]string{}
	for _, r := range p.OpenLoops {
		rows = append(rows, []string{r.Setup, r.Disk + tilde(r.Mark), r.Clients, r.Rate, both(r.Response), r.Response99.Main, both(r.Service), r.Service99.Main})
	}
	t.table("On a schedule (response from when a transaction was due, service from when it began)",
		[]string{"setup", "disk", "clients", "due/s", "response ms", "p99", "service ms", "p99"}, rows, 2)
}

// courses says of each fault group how its quickest and its slowest fault went.
func (t *text) courses(p *page) {
	for _, g := range p.Groups {
		if g.Courses == nil {
			continue
		}
		t.line("")
		t.wrapped("", "  ", g.Title+tilde(g.Mark)+":")
		first, last := g.Courses.Rows[0], g.Courses.Rows[len(g.Courses.Rows)-1]
		if first.Label == last.Label {
			t.wrapped("  ", "    ", strings.TrimSpace(first.Line))
			continue
		}
		t.wrapped("  ", "    ", "quickest: "+first.Line)
		t.wrapped("  ", "    ", "slowest: "+last.Line)
	}
}
