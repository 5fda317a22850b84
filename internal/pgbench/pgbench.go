// Package pgbench builds pgbench's command line and judges what it prints and
// logs. It runs nothing: the caller does, on whatever host, and brings back the
// output and the per-transaction logs.
//
// pgbench alone cannot be believed: on a frozen server -T does not stop it, and
// on a killed one it still ends in a TPS and "failed 0". So the caller must
// stop it hard after Deadline (SIGKILL, and say so in Output.HardStopped), and
// must print a figure only of a Result that is Valid.
package pgbench

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// Scripts that come with pgbench.
const (
	SimpleUpdate = "simple-update" // -N: one account, one history row
	TPCB         = "tpcb-like"     // contends for branches and tellers as well
	SelectOnly   = "select-only"   // -S
)

// Grace is the time after the asked one in which pgbench may still vacuum
// before, connect, finish its last transactions and print.
const Grace = 15 * time.Second

// Config is one run of pgbench. Zero values take pgbench's defaults, save where
// noted.
type Config struct {
	Script   string // SimpleUpdate if empty and File is
	File     string // a script of one's own, on the host that runs pgbench
	Clients  int    // 1 if 0
	Jobs     int    // threads; 1 if 0, at most Clients
	Seconds  int    // -T; must be positive
	Protocol string // simple (the default), extended or prepared
	Rate     float64
	Seed     uint64 // --random-seed; pgbench's own choice if 0
	NoVacuum bool   // -n: skip the vacuum of pgbench's tables before the run

	LogPrefix string // path on the host; logs are written where it is set

	Host     string // address, or directory of the unix socket
	Port     int
	User     string
	Database string // required. A password goes into the environment (PGPASSWORD, PGPASSFILE)

	MinTransactions int           // fewer make a result invalid; 100 if 0
	StallLimit      time.Duration // so long without any commit makes it invalid; 1 s if 0
}

func (c Config) withDefaults() Config {
	if c.Script == "" && c.File == "" {
		c.Script = SimpleUpdate
	}
	c.Clients = max(c.Clients, 1)
	c.Jobs = min(max(c.Jobs, 1), c.Clients)
	if c.Protocol == "" {
		c.Protocol = "simple"
	}
	if c.MinTransactions == 0 {
		c.MinTransactions = 100
	}
	if c.StallLimit == 0 {
		c.StallLimit = time.Second
	}
	return c
}

// Validate says what pgbench would refuse, or would take for something else.
func (c Config) Validate() error {
	d := c.withDefaults()
	switch {
	case c.Seconds <= 0:
		return fmt.Errorf("pgbench for %d s: give a positive number of seconds", c.Seconds)
	case c.Clients < 0 || c.Jobs < 0 || c.Rate < 0 || c.Port < 0 || c.Port > 65535 || c.MinTransactions < 0 || c.StallLimit < 0:
		return errors.New("pgbench: clients, jobs, rate, port and limits must not be negative")
	case c.Script != "" && c.File != "":
		return fmt.Errorf("pgbench: script %s and file %s exclude each other", c.Script, c.File)
	case c.File == "" && !slices.Contains([]string{SimpleUpdate, TPCB, SelectOnly}, d.Script):
		return fmt.Errorf("pgbench: no script %q: give %s, %s or %s", c.Script, SimpleUpdate, TPCB, SelectOnly)
	case !slices.Contains([]string{"simple", "extended", "prepared"}, d.Protocol):
		return fmt.Errorf("pgbench: no protocol %q: give simple, extended or prepared", c.Protocol)
	case c.Database == "" || c.Database[0] == '-':
		return fmt.Errorf("pgbench: database %q: give the name of a database", c.Database)
	}
	return nil
}

// Args is the command line without the program's name.
func Args(cfg Config) []string {
	c := cfg.withDefaults()
	var args []string
	switch {
	case c.File != "":
		args = append(args, "-f", c.File)
	case c.Script == SimpleUpdate:
		args = append(args, "-N")
	case c.Script == SelectOnly:
		args = append(args, "-S")
	default:
		args = append(args, "-b", c.Script)
	}
	args = append(args, "-c", strconv.Itoa(c.Clients), "-j", strconv.Itoa(c.Jobs), "-T", strconv.Itoa(c.Seconds), "-M", c.Protocol)
	if c.Rate > 0 {
		args = append(args, "-R", strconv.FormatFloat(c.Rate, 'g', -1, 64))
	}
	if c.Seed != 0 {
		// pgbench takes 64 bits, but reads them as a signed number in some versions.
		args = append(args, "--random-seed="+strconv.FormatUint(c.Seed>>1, 10))
	}
	if c.NoVacuum {
		args = append(args, "-n")
	}
	if c.LogPrefix != "" {
		args = append(args, "-l", "--log-prefix="+c.LogPrefix)
	}
	return append(args, connection(c)...)
}

// InitArgs is the command line that makes pgbench's tables, scale × 100,000
// accounts.
func InitArgs(cfg Config, scale int) []string {
	return append([]string{"-i", "-q", "-s", strconv.Itoa(max(scale, 1))}, connection(cfg)...)
}

func connection(c Config) []string {
	var args []string
	if c.Host != "" {
		args = append(args, "-h", c.Host)
	}
	if c.Port != 0 {
		args = append(args, "-p", strconv.Itoa(c.Port))
	}
	if c.User != "" {
		args = append(args, "-U", c.User)
	}
	return append(args, c.Database)
}

// Deadline is when a run that has not ended must be killed.
func Deadline(cfg Config) time.Duration { return time.Duration(cfg.Seconds)*time.Second + Grace }

// LogNames are the files that a run with logs writes: one per thread, by the
// process id that pgbench itself saw (in a PID namespace not the one outside;
// give each run a prefix of its own and list PREFIX.* there).
func LogNames(cfg Config, pid int) []string {
	c := cfg.withDefaults()
	names := make([]string, c.Jobs)
	for i := range names {
		names[i] = fmt.Sprintf("%s.%d", c.LogPrefix, pid)
		if i > 0 {
			names[i] += fmt.Sprintf(".%d", i)
		}
	}
	return names
}
