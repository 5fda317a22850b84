package cluster

import (
	"slices"
	"strconv"
)

// slotWarning is when a slot that holds WAL back is told of; long before the
// cap that EnsureSlot sets.
const slotWarning = 1 << 30

// upkeep repairs what is ours and tells of what only people can repair.
func (m *machine) upkeep() {
	if m.cfg.Witness || !m.pgKnown || !m.pg.Exists {
		return
	}
	m.alarm(AlarmReloadRejected, m.pg.ReloadRejected, "an error in the settings: reloads apply nothing; see pg_file_settings")
	m.alarmf(AlarmShutdownBlocked, m.pg.ShutdownBlocked != "", "the stop waits for ", m.pg.ShutdownBlocked)
	m.alarm(AlarmWaitCancelled, m.pg.WaitsCancelled > 0, "sessions cancelled their synchronous wait: their commits are visible, not confirmed")
	if m.pg.Running && len(m.pg.Senders) > 0 {
		m.names()
	}
	if m.pg.Running && (m.lead.phase >= leadConfirm || m.follow.epoch != 0) {
		m.keepSlots()
	}
	lost, heavy := "", ""
	for _, s := range m.pg.Slots {
		if s.Lost && s.Logical {
			lost = s.Name
		}
		if s.Kept > slotWarning {
			heavy = s.Name + " holds back " + strconv.FormatInt(s.Kept>>20, 10) + " MB"
		}
	}
	m.alarmf(AlarmSlotLost, lost != "", "a logical slot has a gap, its consumer has to start anew: ", lost)
	m.alarmf(AlarmSlotHoldsWAL, heavy != "", "slot ", heavy)
}

// names ends both streams where two use one member's name: neither can be told
// for the member's own.
func (m *machine) names() {
	twice := false
	for _, l := range m.sync.links {
		if l.twice {
			twice = true
			if m.alarms&(1<<AlarmDuplicateName) == 0 {
				m.emit(EndSenders{Member: l.member})
			}
		}
	}
	m.alarm(AlarmDuplicateName, twice, "two receivers use one member's name")
}

// keepSlots has a slot for every other member, on members too: whoever is
// promoted still has the WAL that the others need.
func (m *machine) keepSlots() {
	if m.now-m.slotsAt > m.cfg.Timing.Retry {
		m.slots, m.slotsAt = nil, m.now // whatever is not there by now is asked for again
	}
	for _, s := range m.reg.S {
		if s.Node == m.cfg.Self {
			continue
		}
		i := slices.IndexFunc(m.pg.Slots, func(x Slot) bool { return x.Member == s && !x.Lost })
		if i >= 0 {
			if j := slices.Index(m.slots, s); j >= 0 {
				m.slots = slices.Delete(slices.Clone(m.slots), j, j+1)
			}
			continue
		}
		if !slices.Contains(m.slots, s) {
			m.slots = append(slices.Clip(m.slots), s) // asked for; seen again before it is asked for once more
			m.emit(EnsureSlot{Member: s})
		}
	}
}

// SlotName is what a member's physical slot is called.
func SlotName(m Member) string {
	return string(m.Node) + "_" + strconv.FormatUint(uint64(m.Incarnation), 10)
}
