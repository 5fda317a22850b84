package report

import (
	"fmt"

	"github.com/holdfast-db/holdfast/internal/result"
)

// of lists the anchors of a group's cells.
func (ids cellIDs) of(g *result.Group) []string {
	var out []string
	for _, c := range g.Cells {
		out = append(out, ids[c])
	}
	return out
}

// costRow is what a setup costs besides time, over all of its hosts.
type costRow struct {
	Setup, Disk, Mark, Clients string
	CPU, Memory, Space         cellValue
}

func costRows(groups []result.Group) []costRow {
	var rows []costRow
	clients, by := commitsBy(groups)
	for _, n := range clients {
		for _, g := range by[n] {
			_, cpu := g.Spread("cpu_s_per_1000")
			_, memory := g.Spread("rss_mb")
			space, onDisk := g.Spread("disk_bytes")
			if !cpu && !memory && !onDisk {
				continue
			}
			rows = append(rows, costRow{Setup: g.Setup, Disk: diskAndSpecials(g), Mark: mark(g.Simulated), Clients: result.Count(n),
				CPU: figure(g, "cpu_s_per_1000"), Memory: figure(g, "rss_mb"),
				Space: valueOf(space, onDisk, func(v float64) string { return result.Figure(v / 1e6) })})
		}
	}
	return rows
}

// openRow is a load on a schedule: what a client waits, from the moment at which
// its transaction was due, and what the transaction itself took.
type openRow struct {
	Setup, Disk, Mark, Clients, Rate string
	Response, Response99             cellValue
	Service, Service99               cellValue
}

func openRows(groups []result.Group) []openRow {
	var rows []openRow
	clients, by := commitsBy(groups)
	for _, n := range clients {
		for _, g := range by[n] {
			if _, ok := g.Spread("service_mean_ms"); ok {
				rows = append(rows, openRow{g.Setup, result.DiskLabel(g.Params), mark(g.Simulated), result.Count(n), result.ParamText(g.Params["rate"]),
					figure(g, "latency_mean_ms"), figure(g, "latency_p99_ms"), figure(g, "service_mean_ms"), figure(g, "service_p99_ms")})
			}
		}
	}
	return rows
}

// commitCell is one repetition of a commit measurement.
type commitCell struct {
	badge
	ID, Title, Mark     string
	Mean, P50, P99, TPS string
	Parts               string // flush / replication / rest, "" where they were not measured
	Why                 string
}

func commitCells(groups []result.Group, ids cellIDs) []commitCell {
	var out []commitCell
	clients, by := commitsBy(groups)
	for _, n := range clients {
		for _, g := range by[n] {
			for _, c := range g.Cells {
				row := commitCell{badge: cellBadge(c, false), ID: ids[c], Title: fmt.Sprintf("%s, %s, #%d", onWithSpecials(g), clientsText(n), c.Repetition),
					Mark: mark(c.Simulated), Mean: metricOf(c, "latency_mean_ms"), P50: metricOf(c, "latency_p50_ms"), P99: metricOf(c, "latency_p99_ms"), TPS: metricOf(c, "tps"), Why: c.Why}
				one := result.Group{Cells: []*result.Cell{c}}
				if m, ok := result.Compose(&one); ok {
					for i, p := range m.Parts {
						if i > 0 {
							row.Parts += " + "
						}
						row.Parts += partText(p.Ms)
					}
				}
				out = append(out, row)
			}
		}
	}
	return out
}

func metricOf(c *result.Cell, name string) string {
	if v, ok := c.Metrics[name]; ok {
		return result.Figure(v)
	}
	return "–"
}
