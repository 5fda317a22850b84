package instance

import "testing"

func TestWaitCancelled(t *testing.T) {
	for line, want := range map[string]bool{
		"2026-01-01 10:00:00 UTC [7] WARNING:  canceling wait for synchronous replication due to user request":                                         true,
		"2026-01-01 10:00:00 UTC [7] WARNING:  canceling the wait for synchronous replication and terminating connection due to administrator command": false,
		"2026-01-01 10:00:00 UTC [7] LOG:  canceling wait for synchronous replication":                                                                 false,
	} {
		if got := waitCancelled(line); got != want {
			t.Errorf("%q: %t", line, got)
		}
	}
}
