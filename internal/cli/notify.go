package cli

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// A service manager that does not read must not hold the agent up.
const notifyWithin = 20 * time.Millisecond

// newNotifier tells the service manager how the node does, where one started it
// (sd_notify); otherwise nobody. It is called by the agent's loop only, and so
// that loop is what WATCHDOG=1 proves to go round; it is passed on four times
// within the watchdog's time.
func newNotifier(ctx context.Context, getenv func(string) string) (func(string), error) {
	path := getenv("NOTIFY_SOCKET")
	if path == "" {
		return func(string) {}, nil
	}
	if strings.HasPrefix(path, "@") {
		path = "\x00" + path[1:]
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "unixgram", path)
	if err != nil {
		return nil, fmt.Errorf("reach the service manager at NOTIFY_SOCKET: %w", err)
	}
	usec, err := strconv.ParseUint(getenv("WATCHDOG_USEC"), 10, 53)
	watched := err == nil && usec > 0
	if pid := getenv("WATCHDOG_PID"); pid != "" && pid != strconv.Itoa(os.Getpid()) {
		watched = false
	}
	var last time.Time
	return func(state string) {
		if state == "WATCHDOG=1" {
			if !watched || time.Since(last) < time.Duration(usec)*time.Microsecond/4 {
				return
			}
			last = time.Now()
		}
		_ = c.SetWriteDeadline(time.Now().Add(notifyWithin))
		_, _ = c.Write([]byte(state))
	}, nil
}
