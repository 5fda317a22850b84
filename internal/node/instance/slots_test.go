package instance

import (
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// TestStandbySlots: a standby's slot for another member keeps some WAL for it, and
// does not hold back all that comes.
func TestStandbySlots(t *testing.T) {
	p := newPeers(t, "a", "b")
	p.all["b"].cfg.SlotCap = 128 << 20
	p.begin("a", "b")
	other := cluster.Member{Node: "c", Incarnation: 1<<52 | 3}
	p.all["b"].Begin(cluster.EnsureSlot{Member: other}, func(cluster.Event) {})
	kept := "SELECT coalesce(max(pg_last_wal_replay_lsn() - restart_lsn), -1)::bigint::text FROM pg_replication_slots WHERE slot_name = '" + SlotName(other) + "'"
	p.until(10*time.Second, func() error {
		if p.query("b", kept) == "-1" {
			return errNotYet
		}
		return nil
	})
	for range 4 {
		p.exec("a", "INSERT INTO public.t (v) VALUES ('x')")
		p.exec("a", "SELECT pg_switch_wal()")
	}
	end := p.query("a", "SELECT pg_current_wal_flush_lsn()::text")
	p.until(20*time.Second, func() error {
		if p.query("b", "SELECT (pg_last_wal_replay_lsn() >= '"+end+"')::text") != "true" {
			return errNotYet
		}
		return nil
	})
	p.until(10*time.Second, func() error {
		w := &watcher{}
		defer w.drop()
		for _, s := range p.all["b"].lookWith(t.Context(), w).Slots {
			if s.Member == other && s.Kept > 0 && s.Kept <= 32<<20 {
				return nil
			}
		}
		return errNotYet
	})
}
