// Package driver is the load client: a separate process that writes rows,
// each in a transaction of its own, and reports every attempt and its outcome
// to the collector. DESIGN.md has the rules by which it judges an outcome.
package driver

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// Config is what the driver reads from its standard input, as JSON. It holds
// secrets, so none of it is ever an argument.
type Config struct {
	Name      string `json:"name"`      // for people; "driver" if empty
	Collector string `json:"collector"` // host:port, or the path of a unix socket
	Token     string `json:"token"`

	Targets  []string `json:"targets"` // host:port of every server that may become writable
	User     string   `json:"user"`
	Password string   `json:"password"`
	Database string   `json:"database"`
	Table    string   `json:"table"` // see CreateTable

	Writers        int     `json:"writers"`         // 1 if 0; each has one write in flight
	Rate           float64 `json:"rate"`            // writes a second over all writers; 0 is as fast as it goes
	ReadShare      float64 `json:"read_share"`      // of a writer's turns that read the newest acked write instead, 0 to 0.9
	PayloadBytes   int     `json:"payload_bytes"`   // of random bytes in each row
	Seed           uint64  `json:"seed"`            // of the payloads
	IDBase         uint64  `json:"id_base"`         // the first id; 1 if 0. No two drivers of a history share ids
	ConfirmIntents bool    `json:"confirm_intents"` // wait until the collector has the intent: for a driver on a host that loses power
	DurationMs     int64   `json:"duration_ms"`     // 0 is until it is stopped

	ConnectTimeoutMs   int64 `json:"connect_timeout_ms"`   // 1000 if 0
	WriteTimeoutMs     int64 `json:"write_timeout_ms"`     // 1500 if 0; after it the outcome is unknown
	ProbeEveryMs       int64 `json:"probe_every_ms"`       // 100 if 0
	ProbeTimeoutMs     int64 `json:"probe_timeout_ms"`     // 1000 if 0
	SuspectAfterMs     int64 `json:"suspect_after_ms"`     // 250 if 0: a write in flight for this long sets off probes of the other targets
	CollectorTimeoutMs int64 `json:"collector_timeout_ms"` // 3000 if 0: without a word from the collector for this long, the driver stops
}

// CreateTable is the table that the driver writes to. The index on id is not
// unique: a duplicate is to be seen, not suppressed.
const CreateTable = `CREATE TABLE %[1]s (id bigint NOT NULL, writer int NOT NULL, retry_of bigint NOT NULL, payload bytea NOT NULL);
CREATE INDEX ON %[1]s (id)`

// ReadConfig reads one JSON object, refuses what it does not know, and fills
// in the defaults.
func ReadConfig(r io.Reader) (*Config, error) {
	d := json.NewDecoder(r)
	d.DisallowUnknownFields()
	var c Config
	if err := d.Decode(&c); err != nil {
		return nil, fmt.Errorf("read the driver's configuration (JSON on standard input): %w", err)
	}
	if err := c.complete(); err != nil {
		return nil, fmt.Errorf("the driver's configuration: %w", err)
	}
	return &c, nil
}

// complete fills in defaults and refuses what cannot be.
func (c *Config) complete() error {
	c.Name = cmp.Or(c.Name, "driver")
	c.Writers = cmp.Or(c.Writers, 1)
	c.IDBase = cmp.Or(c.IDBase, 1)
	c.ConnectTimeoutMs = cmp.Or(c.ConnectTimeoutMs, 1000)
	c.WriteTimeoutMs = cmp.Or(c.WriteTimeoutMs, 1500)
	c.ProbeEveryMs = cmp.Or(c.ProbeEveryMs, 100)
	c.ProbeTimeoutMs = cmp.Or(c.ProbeTimeoutMs, 1000)
	c.SuspectAfterMs = cmp.Or(c.SuspectAfterMs, 250)
	c.CollectorTimeoutMs = cmp.Or(c.CollectorTimeoutMs, 3000)
	for _, x := range [][2]string{
		{"collector", c.Collector}, {"token", c.Token}, {"user", c.User}, {"database", c.Database}, {"table", c.Table},
	} {
		if x[1] == "" {
			return fmt.Errorf("%q is missing", x[0])
		}
	}
	if len(c.Targets) == 0 {
		return errors.New(`"targets" is empty`)
	}
	for _, t := range c.Targets {
		if _, _, err := net.SplitHostPort(t); err != nil {
			return fmt.Errorf("target %q: want host:port", t)
		}
	}
	for name, v := range map[string]int64{
		"writers": int64(c.Writers), "payload_bytes": int64(c.PayloadBytes), "duration_ms": c.DurationMs,
		"connect_timeout_ms": c.ConnectTimeoutMs, "write_timeout_ms": c.WriteTimeoutMs, "probe_every_ms": c.ProbeEveryMs,
		"probe_timeout_ms": c.ProbeTimeoutMs, "suspect_after_ms": c.SuspectAfterMs, "collector_timeout_ms": c.CollectorTimeoutMs,
	} {
		if v < 0 {
			return fmt.Errorf("%q is negative", name)
		}
	}
	switch {
	case !(c.Rate >= 0 && c.Rate <= 1e6):
		return errors.New(`"rate" is not between 0 and 1000000 writes a second`)
	case !(c.ReadShare >= 0 && c.ReadShare <= 0.9):
		return errors.New(`"read_share" is not between 0 and 0.9`)
	case c.Writers > 10_000:
		return errors.New(`"writers" is over 10000`)
	case c.PayloadBytes > 1<<20:
		return errors.New(`"payload_bytes" is over 1 MiB`)
	case c.IDBase > 1<<62:
		return errors.New(`"id_base" is over 2^62`)
	}
	return nil
}

func millis(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
