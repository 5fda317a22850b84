package instance

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// closeDoor rejects clients at once: rules on tmpfs, a signal, and the end of
// their sessions, found by their processes. It needs neither SQL nor a disk. An
// OpenDoor of before does not undo it.
func (i *Instance) closeDoor() {
	i.shutDoor()
	s := i.current()
	if s == nil {
		return
	}
	if err := signal(s.process, syscall.SIGHUP); err != nil {
		i.log.Error("close the door", "error", err)
	}
	i.changed()
	i.wg.Add(1)
	go func() {
		defer i.wg.Done()
		i.endClients(i.ctx, s, endClientsFor)
	}()
}

// endClientsFor is how long new clients are looked for after the door was
// closed: one that was let in just before shows up within it. Watch looks for
// stragglers as long as the door stays closed.
const endClientsFor = 500 * time.Millisecond

// endClients ends every client's session of s, again and again for a while, or
// until the door is open again.
func (i *Instance) endClients(ctx context.Context, s *server, during time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, during)
	defer cancel()
	_ = poll(ctx, 10*time.Millisecond, func() bool {
		if i.current() != s || i.doorState() != doorClosed {
			return true
		}
		for _, p := range childrenOf(i.cfg.DataDir, s.pid) {
			if p.client() {
				_ = signal(p, syscall.SIGTERM)
			}
		}
		return false
	})
}

func (i *Instance) doorState() door {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.door
}

// shutDoor writes the closed door, for good: what was asked for before does not
// open it again.
func (i *Instance) shutDoor() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.doorSeq++
	if err := i.writeDoor(doorClosed); err != nil {
		i.log.Error("close the door", "error", err)
	}
}

// doorNow is a ticket for setDoor: it is void once the door was closed again.
func (i *Instance) doorNow() uint64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.doorSeq
}

func (i *Instance) openDoor() task {
	seq := i.doorNow()
	return task{files: func(context.Context) error {
		if err := i.setDoor(doorOpen, seq); err != nil {
			i.log.Error("open the door", "error", err)
		}
		return nil
	}}
}

// setDoor lets clients in as d says, unless the door was closed since seq. It is
// for a running Postgres of ours: one that is started finds the door closed.
func (i *Instance) setDoor(d door, seq uint64) error {
	s := i.current()
	if s == nil || !s.ours {
		return nil
	}
	i.mu.Lock()
	if i.doorSeq != seq {
		i.mu.Unlock()
		return nil
	}
	err := i.writeDoor(d)
	i.mu.Unlock()
	i.changed()
	return errors.Join(err, signal(s.process, syscall.SIGHUP))
}

// writeDoor writes the rules of our own starts, with mu held. It touches tmpfs only.
func (i *Instance) writeDoor(d door) error {
	if err := i.writeVolatile(i.hbaPath(), []byte(hbaText(d, i.cfg.HBA, false))); err != nil {
		return err
	}
	i.door = d
	return nil
}

// endSenders ends the walsenders under a member's name.
func (i *Instance) endSenders(x cluster.EndSenders) task {
	return task{rest: func(ctx context.Context) cluster.Done {
		ctx, cancel := context.WithTimeout(ctx, 2*connectWithin)
		defer cancel()
		err := i.exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_replication WHERE application_name = $1", MemberName(i.cfg.Cluster, x.Member))
		if err != nil {
			i.log.Error("end walsenders", "member", x.Member, "error", err)
		}
		i.changed()
		return cluster.Done{OK: err == nil}
	}}
}
