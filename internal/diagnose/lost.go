package diagnose

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// recover tries to come back after an error in the middle, until the time is
// over. It is true when the same run of the same server is back, and sampling
// may go on: its counters still are what they were.
func (c *collector) recover(ctx context.Context, cause error) bool {
	lost := &Interrupted{AtS: c.at().Seconds()}
	c.ev.Lost = lost
	before := c.s.id
	hung := isTimeout(cause)
	c.s.close()
	var last error
	for tries := 1; ; tries++ {
		attempt, cancel := context.WithTimeout(ctx, min(2*time.Second, c.opts.deadline))
		s, err := open(attempt, c.cfg, c.opts.deadline)
		cancel()
		if err == nil {
			lost.Alive = true
			return c.resume(ctx, s, before, lost, cause)
		}
		last = err
		// Twice at least: the first may have waited while this program itself stood still.
		if c.at() >= c.opts.For && tries > 1 || sleep(ctx, 250*time.Millisecond) != nil {
			break
		}
	}
	lost.What, lost.Text = c.gone(last, hung, cause)
	return false
}

// resume compares who answers now with who answered before.
func (c *collector) resume(ctx context.Context, s *session, before identity, lost *Interrupted, cause error) bool {
	now := s.id
	xacts, spent := c.s.xacts, c.s.spent
	c.s = s
	c.s.xacts, c.s.spent = c.s.xacts+xacts, c.s.spent+spent
	back := c.at().Seconds() - lost.AtS
	switch {
	case now.system != before.system && now.system != "" && before.system != "":
		lost.What = "failed over"
		lost.Text = fmt.Sprintf("after %.1f s the same address leads to another database cluster (system identifier %s instead of %s)", back, now.system, before.system)
	case before.recovery && !now.recovery:
		lost.What = "failed over"
		lost.Text = fmt.Sprintf("the standby was promoted and is a primary on timeline %s now; it answered again after %.1f s", now.timeline, back)
	case !before.recovery && now.recovery:
		lost.What = "failed over"
		lost.Text = fmt.Sprintf("the address leads to a standby now, after %.1f s: the primary is elsewhere", back)
	case now.timeline != before.timeline && now.timeline != "" && before.timeline != "",
		now.addr != before.addr && !now.started.Equal(before.started):
		lost.What = "failed over"
		lost.Text = fmt.Sprintf("another server answers as primary on timeline %s (before: %s), after %.1f s", now.timeline, before.timeline, back)
	case !now.started.Equal(before.started):
		lost.What = "restarted"
		lost.Text = fmt.Sprintf("the server restarted (%s) and answered again after %.1f s; its counters may have begun anew", lastWords(cause), back)
	case now.worker != nil && before.worker != nil && !now.worker.Equal(*before.worker):
		lost.What = "restarted"
		lost.Text = fmt.Sprintf("one of the server's processes crashed, and it recovered and answered again after %.1f s; its counters begin anew: look into its log", back)
	default:
		return c.carryOn(ctx, lost, cause, back)
	}
	return false
}

// carryOn goes on with the same server: only the connection was lost.
func (c *collector) carryOn(ctx context.Context, lost *Interrupted, cause error, back float64) bool {
	lost.What = "connection lost"
	lost.Text = fmt.Sprintf("the connection was lost (%s) and made again after %.1f s; the server itself went on", lastWords(cause), back)
	if isTimeout(cause) {
		lost.What = "hangs"
		lost.Text = fmt.Sprintf("the server did not answer for %.1f s and then went on", back+c.opts.deadline.Seconds())
	}
	if c.m != nil && !c.s.id.pooler {
		// Another backend: its processor time counts from its own beginning.
		spent := time.Duration(0)
		if old, ok := c.m.ownCPU(); ok {
			spent = old - c.cpuLoop
		}
		c.m.backend = c.s.id.pid
		if now, ok := c.m.ownCPU(); ok {
			c.cpuLoop = now - spent
		}
	}
	if c.sampleSQL != sampleQuery {
		if err := c.prepareStatements(ctx); err != nil {
			lost.Alive = false
			lost.What, lost.Text = c.gone(err, isTimeout(err), err)
			return false
		}
	}
	return true
}

// gone puts a server that did not come back into words.
func (c *collector) gone(last error, hung bool, cause error) (what, text string) {
	reason, say := explain(c.cfg, last)
	after := c.at().Seconds() - c.ev.Lost.AtS
	switch reason {
	case "hangs":
		if hung {
			return "hangs", fmt.Sprintf("the server does not answer and takes no new connection either (for %.0f s): it hangs, or the network to it is cut", after+c.opts.deadline.Seconds())
		}
		return "hangs", fmt.Sprintf("the connection broke (%s), and for %.0f s no new one was answered: the machine hangs, or the network to it is cut", lastWords(cause), after)
	case "unreachable":
		if hung && c.s.id.pooler {
			return "hangs", "nothing comes through the pooler any more: " + say
		}
	case "starting":
		return "restarted", fmt.Sprintf("the server went down (%s) and is not back after %.0f s: %s", lastWords(cause), after, say)
	case "refuses", "not postgres":
		return "refuses", fmt.Sprintf("the connection was lost (%s), and a new login is refused: %s", lastWords(cause), say)
	}
	return "died", fmt.Sprintf("the server died (%s) and is not back after %.0f s: %s", lastWords(cause), after, say)
}

// lastWords are what the server said when the connection ended.
func lastWords(err error) string {
	var pe *pgconn.PgError
	switch {
	case errors.As(err, &pe):
		return redact(pe.Message, "")
	case isTimeout(err):
		return "no answer in time"
	}
	return "it closed the connection without a word"
}
