package pgbench

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// Summary is what pgbench prints at its end, versions 13 to 18. A pointer is
// nil where the version, or an early end, does not say.
type Summary struct {
	Version        string // as printed, "15.8 (Debian …)"; "" before 14
	Transactions   int64
	Failed         *int64   // from 15 on
	LatencyMs      *float64 // average
	ConnectMs      *float64 // initial connection time, from 14 on
	TPS            *float64 // without initial connection time
	AbortedClients int
	Incomplete     bool // pgbench says so itself
}

var (
	reVersion = regexp.MustCompile(`^pgbench \((?:PostgreSQL\) )?(.+)\)$`)
	reCount   = regexp.MustCompile(`^number of transactions actually processed: (\d+)`)
	reFailed  = regexp.MustCompile(`^number of failed transactions: (\d+)`)
	reLatency = regexp.MustCompile(`^latency average = ([0-9.]+) ms`)
	reConnect = regexp.MustCompile(`^initial connection time = ([0-9.]+) ms`)
	reTPS     = regexp.MustCompile(`^tps = ([0-9.]+) \((?:without initial connection time|excluding connections establishing)\)`)
	reAborted = regexp.MustCompile(`client (\d+) (?:script \d+ )?aborted`)
)

// ParseOutput reads pgbench's stdout and stderr. It is an error when stdout is
// no pgbench summary: the count of transactions is missing or not a number.
func ParseOutput(stdout, stderr string) (Summary, error) {
	var s Summary
	counted := false
	for line := range strings.Lines(stdout) {
		line = strings.TrimRight(line, "\r\n")
		var err error
		switch {
		case match(reVersion, line) != "":
			s.Version = match(reVersion, line)
		case match(reCount, line) != "":
			s.Transactions, err = strconv.ParseInt(match(reCount, line), 10, 64)
			counted = true
		case match(reFailed, line) != "":
			var n int64
			n, err = strconv.ParseInt(match(reFailed, line), 10, 64)
			s.Failed = &n
		case match(reLatency, line) != "":
			s.LatencyMs, err = number(match(reLatency, line))
		case match(reConnect, line) != "":
			s.ConnectMs, err = number(match(reConnect, line))
		case match(reTPS, line) != "":
			s.TPS, err = number(match(reTPS, line))
		}
		if err != nil {
			return Summary{}, fmt.Errorf("read pgbench's line %q: %w", line, err)
		}
	}
	s.AbortedClients = aborted(stderr)
	s.Incomplete = strings.Contains(stderr, "Run was aborted")
	if !counted {
		return s, fmt.Errorf("pgbench printed no number of transactions; it said: %s", gist(stderr))
	}
	return s, nil
}

func match(re *regexp.Regexp, line string) string {
	m := re.FindStringSubmatch(line)
	if m == nil {
		return ""
	}
	return m[1]
}

func number(s string) (*float64, error) {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
		return nil, fmt.Errorf("%q is not a number", s)
	}
	return &f, nil
}

func aborted(stderr string) int {
	seen := map[string]bool{}
	for _, m := range reAborted.FindAllStringSubmatch(stderr, -1) {
		seen[m[1]] = true
	}
	return len(seen)
}

// gist is the last line of stderr that says something, for an error message.
func gist(stderr string) string {
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		l := strings.TrimSpace(lines[i])
		if l != "" && !strings.Contains(l, "Run was aborted") {
			if len(l) > 300 {
				l = l[:300] + "…"
			}
			return l
		}
	}
	return "nothing"
}
