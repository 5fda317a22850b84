package experiment

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/postgres"
	"github.com/holdfast-db/holdfast/internal/result"
)

const (
	// lookPause is the mean time between two looks at the sessions. The pauses
	// are drawn from an exponential distribution, so that the looks cannot run
	// in step with the commits; twenty milliseconds cost a server about 1 % of a
	// processor.
	lookPause = 20 * time.Millisecond
	// fewestLooks bound what may be said: with fifty, a part of one half is
	// known to within a seventh of the whole.
	fewestLooks = 50
	diskPause   = time.Second
)

// waitQuery counts what pgbench's sessions do right now. Followers of a group
// commit wait in the lock WALWrite for the leader's flush, so that both are the
// flush. Names changed their case in PostgreSQL 17.
const waitQuery = `SELECT count(*),
 count(*) FILTER (WHERE state = 'active' AND lower(wait_event) IN ('walsync', 'walwrite')),
 count(*) FILTER (WHERE state = 'active' AND lower(wait_event) = 'syncrep'),
 count(*) FILTER (WHERE state = 'active' AND wait_event_type = 'Lock'),
 count(*) FILTER (WHERE state = 'active' AND lower(wait_event) = 'datafileread')
FROM pg_stat_activity
WHERE application_name = 'pgbench' AND backend_type = 'client backend' AND query !~* '^\s*(vacuum|truncate)'`

// looks are the sessions seen, summed over looks, by what they waited for.
type looks struct {
	n, sessions, flush, replication, lock, read int
}

// metrics turn looks into ms per transaction: 1,000 × mean sessions in a wait ÷
// transactions a second. Too few looks say nothing.
func (l looks) metrics(tps float64) map[string]float64 {
	if l.n < fewestLooks || tps <= 0 {
		return nil
	}
	each := func(sessions int) float64 { return 1000 * float64(sessions) / float64(l.n) / tps }
	return map[string]float64{
		"commit_flush_ms": each(l.flush), "replication_ms": each(l.replication),
		"lock_ms": each(l.lock), "page_read_ms": each(l.read), "wait_samples": float64(l.n),
	}
}

// observer looks at the primary's sessions and at its disk while a load runs.
type observer struct {
	conn    *pgx.Conn
	disk    place.DiskStatser // nil where the disk keeps no counters of its own
	clients int
	began   time.Time
	cancel  context.CancelFunc
	ended   chan error

	seen    looks
	first   time.Time // all sessions were there
	samples []diskSample
}

type diskSample struct {
	at    time.Time
	stats map[string]float64
}

// observe begins; stop must be called.
func observe(ctx context.Context, env Env, pg *postgres.Instance, primary place.Host, clients int) (*observer, error) {
	conn, err := pg.Connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("watch the sessions: %w", err)
	}
	o := &observer{conn: conn, clients: clients, began: time.Now(), ended: make(chan error, 2)}
	o.disk, _ = primary.(place.DiskStatser)
	ctx, o.cancel = context.WithCancel(ctx)
	rng := rand.New(rand.NewPCG(env.Seed, 0x77616974))
	go func() { o.ended <- o.lookOn(ctx, rng) }()
	go func() { o.ended <- o.countOn(ctx) }()
	return o, nil
}

// stop ends it and says what went wrong.
func (o *observer) stop() error {
	o.cancel()
	err := errors.Join(<-o.ended, <-o.ended)
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if o.conn != nil {
		_ = o.conn.Close(ctx) // a look that was called off has closed it already
	}
	if err != nil {
		return fmt.Errorf("watch the load: %w", err)
	}
	return nil
}

func (o *observer) lookOn(ctx context.Context, rng *rand.Rand) error {
	for wait(ctx, min(time.Duration(rng.ExpFloat64()*float64(lookPause)), 10*lookPause)) {
		var l looks
		err := o.conn.QueryRow(ctx, waitQuery).Scan(&l.sessions, &l.flush, &l.replication, &l.lock, &l.read)
		switch {
		case ctx.Err() != nil: // called off in the middle of a look
			continue
		case err != nil:
			return fmt.Errorf("look at the sessions: %w", err)
		}
		if l.sessions != o.clients {
			continue // it is starting or ending
		}
		if o.first.IsZero() {
			o.first = time.Now()
		}
		o.seen.add(l)
	}
	return nil
}

func (l *looks) add(one looks) {
	l.n++
	l.sessions += one.sessions
	l.flush += one.flush
	l.replication += one.replication
	l.lock += one.lock
	l.read += one.read
}

func (o *observer) countOn(ctx context.Context) error {
	if o.disk == nil {
		return nil
	}
	for {
		stats, err := o.disk.DiskStats(ctx)
		switch {
		case ctx.Err() != nil: // called off half way
		case err != nil:
			return fmt.Errorf("read the disk's counters: %w", err)
		default:
			o.samples = append(o.samples, diskSample{time.Now(), stats})
		}
		if !wait(ctx, diskPause) {
			return nil
		}
	}
}

// wait returns false when ctx ended first.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// addTo puts what was seen into a cell; after stop.
func (o *observer) addTo(c *result.Cell) {
	for name, v := range o.seen.metrics(c.Metrics["tps"]) {
		c.Metrics[name] = v
	}
	if o.first.IsZero() {
		return
	}
	c.DiskSeries = diskSeries(o.samples, o.first)
	var total, most float64
	for _, s := range c.DiskSeries {
		total, most = total+s.Ops, max(most, s.Ops)
	}
	if n := len(c.DiskSeries); n > 0 {
		c.Metrics["disk_iops"], c.Metrics["disk_iops_max"] = total/float64(n), most
		if limit := o.samples[len(o.samples)-1].stats["iops_set"]; limit > 0 {
			c.Metrics["disk_iops_cap"] = limit
		}
	}
	if ms, ok := meanFlush(o.samples, o.first); ok {
		c.Metrics["disk_flush_mean_ms"] = ms
	}
}

// diskOps is what the disk itself did: where it has a cap, what is charged
// against that; elsewhere reads that no cache answered, writes that reached it
// and flushes, those that it carried out together counted once.
func diskOps(stats map[string]float64) float64 {
	if n, ok := stats["io_operations"]; ok {
		return n
	}
	return stats["device_reads"] + stats["writebacks"] + stats["flush_batches"]
}

// diskSeries is the difference from one sample to the next, a second, from
// zero on; what is not wholly within the load is left out.
func diskSeries(samples []diskSample, zero time.Time) []result.DiskSecond {
	var out []result.DiskSecond
	for i := 1; i < len(samples); i++ {
		a, b := samples[i-1], samples[i]
		took := b.at.Sub(a.at).Seconds()
		if a.at.Before(zero) || took <= 0 {
			continue
		}
		rate := func(of func(map[string]float64) float64) float64 { return max(0, of(b.stats)-of(a.stats)) / took }
		out = append(out, result.DiskSecond{
			T: round3(a.at.Sub(zero).Seconds()), Ops: round3(rate(diskOps)),
			Flushes: round3(rate(func(s map[string]float64) float64 { return s["flushes"] })),
			Bytes:   round3(rate(func(s map[string]float64) float64 { return s["write_bytes"] })),
		})
	}
	return out
}

func round3(v float64) float64 { return float64(int64(v*1000+0.5)) / 1000 }

// meanFlush is what programs waited for a flush of this disk during the load,
// by its own clock, in ms: the difference of the sums, since its mean is over
// all that it did since it was made.
func meanFlush(samples []diskSample, zero time.Time) (ms float64, ok bool) {
	var within []diskSample
	for _, s := range samples {
		if !s.at.Before(zero) {
			within = append(within, s)
		}
	}
	if len(within) < 2 {
		return 0, false
	}
	a, b := within[0].stats, within[len(within)-1].stats
	n := b["flushes"] - a["flushes"]
	if n < 1 {
		return 0, false
	}
	return (b["flush_total_ms"] - a["flush_total_ms"]) / n, b["flush_total_ms"] > 0
}
