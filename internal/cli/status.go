package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-db/holdfast/internal/cluster"
	"github.com/holdfast-db/holdfast/internal/node"
)

// finder is how a command finds the agent on this host.
type finder struct{ config string }

func (f *finder) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.config, "config", "", "a node's configuration (default: $HOLDFAST_CONFIG, then the agent that runs on this host)")
}

// where is the admin socket to ask.
func (f *finder) where(env Env) (string, error) {
	if f.config != "" || env.Getenv("HOLDFAST_CONFIG") != "" {
		c, err := loadNode(env, f.config)
		if err != nil {
			return "", err
		}
		return node.AdminSocket(c.Run), nil
	}
	found, err := filepath.Glob("/run/holdfast/*/admin.sock")
	switch {
	case err != nil:
		return "", err
	case len(found) == 1:
		return found[0], nil
	case len(found) == 0:
		return "", errors.New("no agent runs on this host with the usual directories: say --config FILE, or set HOLDFAST_CONFIG")
	}
	return "", fmt.Errorf("several agents run on this host (%s): say which with --config FILE", strings.Join(found, ", "))
}

// call asks the agent on this host.
func (f *finder) call(ctx context.Context, env Env, method, path string, in, out any) error {
	socket, err := f.where(env)
	if err != nil {
		return err
	}
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	cl := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}}
	defer cl.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, body)
	if err != nil {
		return err
	}
	resp, err := cl.Do(req)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) && op.Op == "dial" {
			return infraError(fmt.Errorf("no agent answers at %s (%w): is `holdfast node` running, and are you root or its user?", socket, op.Err))
		}
		return infraError(err)
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return infraError(err)
	}
	if resp.StatusCode != http.StatusOK {
		return infraError(errors.New(strings.TrimSpace(string(b))))
	}
	return json.Unmarshal(b, out)
}

func newStatusCmd(env Env) *cobra.Command {
	var f finder
	var asJSON, watch bool
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Show the cluster: who leads, who follows, what is waited for",
		Example: "  holdfast status\n  holdfast status --watch\n  holdfast status --json | jq .primary",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for {
				var s node.Status
				err := f.call(cmd.Context(), env, http.MethodGet, "/status", nil, &s)
				switch {
				case cmd.Context().Err() != nil && watch:
					return nil
				case err != nil && !watch:
					return err
				case err != nil: // the agent may be about to come back
					fmt.Fprintln(env.Stderr, err)
				default:
					if err := showStatus(env, s, asJSON, watch); err != nil || !watch {
						return err
					}
				}
				select {
				case <-cmd.Context().Done():
					return nil
				case <-time.After(time.Second):
				}
			}
		},
	}
	f.flags(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&watch, "watch", false, "again every second, until interrupted")
	return cmd
}

func showStatus(env Env, s node.Status, asJSON, again bool) error {
	if asJSON {
		enc := json.NewEncoder(env.Stdout)
		if !again {
			enc.SetIndent("", "  ")
		}
		return enc.Encode(s)
	}
	if again && isTerminal(env.Stdout) {
		fmt.Fprint(env.Stdout, "\x1b[H\x1b[2J")
	}
	_, err := fmt.Fprint(env.Stdout, renderStatus(s, time.Now()))
	return err
}

// renderStatus is the text of a status.
func renderStatus(s node.Status, now time.Time) string {
	var b strings.Builder
	state := "takes writes"
	switch {
	case !s.Known:
		state = "unknown: no majority of the register answers"
	case s.Electing:
		state = "an election is under way"
	case !s.Open:
		state = "takes no writes"
	case s.Degraded != nil:
		state = "takes writes, confirmed by the primary alone"
	}
	fmt.Fprintf(&b, "cluster %s: %s\n", s.Cluster, state)
	if s.Known {
		whom := "nobody"
		if len(s.S) > 0 {
			whom = fmt.Sprintf("%d of {%s}", s.K, strings.Join(s.S, ", "))
		}
		fmt.Fprintf(&b, "epoch %d, timeline %d, mode %s, commits wait for %s", s.Epoch, s.Timeline, s.Mode, whom)
		if s.Paused {
			b.WriteString(", paused")
		}
		b.WriteString("\n")
	}
	if s.Degraded != nil {
		if s.Degraded.Since.Unix() <= 0 {
			b.WriteString("alone: no standby has joined yet\n")
		} else {
			fmt.Fprintf(&b, "alone since %s, from %s on\n", s.Degraded.Since.UTC().Format(time.RFC3339), s.Degraded.LSN)
		}
	}
	for _, w := range s.Waiting {
		fmt.Fprintf(&b, "waiting: %s\n", w)
	}
	b.WriteString("\n")
	rows := [][]string{{"NODE", "ROLE", "STATE", "IN S", "TIMELINE", "WAL END", "LAG", "ZONE", "REGISTER"}}
	for _, m := range s.Members {
		lag, inS, reg := "", "", ""
		if m.LagBytes != nil {
			lag = byteText(*m.LagBytes)
		}
		if m.InS {
			inS = "yes"
		}
		if m.Voter {
			reg = "votes"
		}
		if m.Leads {
			reg = "leads"
		}
		tl := ""
		if m.Timeline != 0 {
			tl = fmt.Sprint(m.Timeline)
		}
		st := m.State
		if m.Error != "" {
			st += " (" + m.Error + ")"
		}
		rows = append(rows, []string{m.Node, m.Role, st, inS, tl, m.LSN, lag, m.Zone, reg})
	}
	b.WriteString(columns(rows))
	alarms := false
	for _, m := range s.Members {
		for k, t := range m.Alarms {
			if !alarms {
				b.WriteString("\n")
			}
			alarms = true
			fmt.Fprintf(&b, "alarm on %s: %s: %s\n", m.Node, k, t)
		}
	}
	if len(s.Failovers) > 0 {
		b.WriteString("\n")
		rows := [][]string{{"EPOCH", "WHEN", "FROM", "TO", "DETECTED", "NAMED", "PROMOTED", "WRITES AGAIN"}}
		for _, f := range s.Failovers {
			rows = append(rows, []string{fmt.Sprint(f.Epoch), now.Sub(f.At).Round(time.Second).String() + " ago", f.From, f.To,
				msText(f.Detected), msText(f.Named), msText(f.Promoted), msText(f.Opened)})
		}
		b.WriteString(columns(rows))
	}
	return b.String()
}

func msText(v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.0f ms", *v)
}

func byteText(n int64) string {
	switch {
	case n < 10<<10:
		return fmt.Sprintf("%d B", n)
	case n < 10<<20:
		return fmt.Sprintf("%d kB", n>>10)
	}
	return fmt.Sprintf("%d MB", n>>20)
}

// columns aligns cells; an empty one is a dash.
func columns(rows [][]string) string {
	width := make([]int, len(rows[0]))
	for _, r := range rows {
		for i := range r {
			if r[i] == "" {
				r[i] = "-"
			}
			width[i] = max(width[i], len(r[i]))
		}
	}
	var b strings.Builder
	for _, r := range rows {
		line := ""
		for i, c := range r {
			line += c + strings.Repeat(" ", width[i]-len(c)+2)
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}

// order sends one command and prints the answer.
func order(ctx context.Context, env Env, f *finder, c cluster.Command) (node.Reply, error) {
	var r node.Reply
	if err := f.call(ctx, env, http.MethodPost, "/command", c, &r); err != nil {
		return r, err
	}
	if !r.OK {
		return r, withCode(exitRefused, errors.New(r.Text))
	}
	return r, nil
}
