package experiment

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path"
	"path/filepath"
	"strconv"
	"time"

	"github.com/holdfast-db/holdfast/internal/lab/collector"
	"github.com/holdfast-db/holdfast/internal/lab/driver"
	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/lab/setup"
)

const (
	ledgerTable  = "holdfast_ledger"
	stopDeadline = 20 * time.Second
	liveEvery    = 250 * time.Millisecond

	outsideIDs = 1       // the first id of the driver on the client's host
	besideIDs  = 1 << 30 // and of the one beside the primary
	besideName = "beside"

	// Where its writes hang it has few turns, and what it is told is of interest.
	besideReads = 0.5

	// How long a driver hears nothing from the collector before it gives up. A host
	// that is frozen hears nothing for as long as that lasts, and so does everybody
	// on a machine that stands still. Drivers end with the lab in any case.
	patience = 5 * time.Minute

	// stoodStill is for how long the lab gets no processor before it says so: what
	// it measured of the time then is not what the setup took.
	stoodStill = time.Second
)

// load is what writes while a fault strikes: a driver on the client's host,
// perhaps another one beside the primary, and the collector that hears them.
type load struct {
	env     Env
	coll    *collector.Collector
	clients []*client
	ended   chan *client

	stalled time.Duration // the longest that the lab stood still; read after idle
	stopped bool
	quit    context.CancelFunc
	idle    chan struct{}
}

// client is one driver.
type client struct {
	base uint64
	proc place.Process
	said bytes.Buffer // its stderr; read after it has ended
}

// startLoad makes the ledger, starts a driver, and one more on the host beside
// if that is not nil, and waits for the first ack of each.
func startLoad(ctx context.Context, env Env, beside place.Host) (_ *load, err error) {
	cl, ok := env.System.(setup.Cluster)
	ledger, ok2 := env.System.(setup.Ledger)
	if !ok || !ok2 {
		return nil, fmt.Errorf("setup %s cannot be written to by the driver", env.Kind.Name)
	}
	if err := ledger.Prepare(ctx, ledgerTable); err != nil {
		return nil, err
	}
	began := time.Now()
	l := &load{env: env, idle: make(chan struct{}), ended: make(chan *client, 2)}
	configs, err := l.listen(ctx, cl, ledger, beside)
	if err != nil {
		return nil, err
	}
	live, quit := context.WithCancel(ctx)
	l.quit = quit
	go l.show(live)
	defer func() {
		if err != nil {
			err = errors.Join(err, l.stop(ctx))
		}
	}()
	for i, h := range []place.Host{env.Client, beside} {
		if i >= len(configs) {
			break
		}
		if err := l.startDriver(ctx, h, configs[i]); err != nil {
			return nil, err
		}
	}
	first, cancel := context.WithTimeoutCause(ctx, 15*time.Second, errors.New("no write came back within 15 s"))
	defer cancel()
	for _, c := range configs {
		if err := l.coll.WaitAckSentBy(first, c.IDBase, began); err != nil {
			return nil, fmt.Errorf("start the load: %w", errors.Join(err, context.Cause(first)))
		}
	}
	return l, nil
}

// listen starts the collector and returns what the drivers are to be told. The
// one beside the primary reports by a socket of its host's, which no partition
// reaches.
func (l *load) listen(ctx context.Context, cl setup.Cluster, ledger setup.Ledger, beside place.Host) ([]driver.Config, error) {
	env := l.env
	ln, err := env.Client.Listen(ctx, "tcp", net.JoinHostPort(env.Client.Addr(), "0"))
	if err != nil {
		return nil, fmt.Errorf("listen for the driver: %w", err)
	}
	token := rand.Text()
	configs := []driver.Config{driverConfig(env, cl, ledger, ln.Addr().String(), token)}
	all := []net.Listener{ln}
	if beside != nil {
		socket := path.Join(beside.RunDir(), "holdfast-collector")
		more, err := beside.Listen(ctx, "unix", socket)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("listen for the driver beside the primary: %w", err), ln.Close())
		}
		all = append(all, more)
		configs = append(configs, besideConfig(configs[0], beside, socket))
	}
	both := join(all...)
	l.coll, err = collector.New(both, token, filepath.Join(env.Dir, HistoryFile(env.Key)), collector.Options{})
	if err != nil {
		return nil, errors.Join(err, both.Close())
	}
	return configs, nil
}

func driverConfig(env Env, cl setup.Cluster, ledger setup.Ledger, addr, token string) driver.Config {
	login := ledger.Login()
	var targets []string
	for _, t := range cl.Targets() {
		targets = append(targets, net.JoinHostPort(t.Host, strconv.Itoa(t.Port)))
	}
	return driver.Config{
		Targets: targets, User: login.User, Password: login.Password, Database: login.Database, Table: ledgerTable,
		Writers: env.Spec.Writers, Rate: env.Spec.Rate, PayloadBytes: env.Spec.Payload, ReadShare: env.Spec.Reads,
		Collector: addr, Token: token, Seed: env.Seed, IDBase: outsideIDs, CollectorTimeoutMs: patience.Milliseconds(),
	}
}

// besideConfig is that of a driver which knows only the server on its own host.
func besideConfig(c driver.Config, h place.Host, socket string) driver.Config {
	var own []string
	for _, t := range c.Targets {
		if host, _, err := net.SplitHostPort(t); err == nil && host == h.Addr() {
			own = append(own, t)
		}
	}
	c.Name, c.Targets, c.Collector, c.IDBase = besideName, own, socket, besideIDs
	c.ConfirmIntents = true
	c.Writers, c.Rate = max(1, c.Writers/2), c.Rate/2
	if c.ReadShare > 0 {
		c.ReadShare = besideReads
	}
	return c
}

func (l *load) startDriver(ctx context.Context, h place.Host, cfg driver.Config) error {
	in, err := json.Marshal(cfg)
	if err != nil {
		return err
	}
	c := &client{base: cfg.IDBase}
	c.proc, err = h.Start(ctx, place.Cmd{
		Path: l.env.Binary, Args: []string{"lab-driver"}, Stdin: bytes.NewReader(in), Stderr: &c.said, Stdout: &c.said,
	})
	if err != nil {
		return fmt.Errorf("start the driver on %s: %w", h.Name(), err)
	}
	l.clients = append(l.clients, c)
	go func() {
		<-c.proc.Done()
		l.ended <- c
	}()
	return nil
}

// show keeps the progress line alive.
func (l *load) show(ctx context.Context) {
	defer close(l.idle)
	t := time.NewTicker(liveEvery)
	defer t.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			now := time.Now()
			if gap := now.Sub(last) - liveEvery; gap > stoodStill {
				l.env.Trace("the lab itself stood still for %s", gap.Round(time.Millisecond))
				l.stalled = max(l.stalled, gap)
			}
			last = now
			v := l.coll.Live()
			text := fmt.Sprintf("%d acknowledged, %d/s", v.Acked, v.LastSecond)
			if v.SinceLastAck > time.Second {
				text += fmt.Sprintf(", none for %.1f s", v.SinceLastAck.Seconds())
			}
			l.env.Live(text)
		}
	}
}

// run lets the load go on for d; it fails early when a driver ends.
func (l *load) run(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return l.coll.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	case c := <-l.ended:
		return fmt.Errorf("a driver ended during the load: %w", c.error())
	}
}

// waitAck waits until a write of the driver on the client's host that was sent
// after t is acked.
func (l *load) waitAck(ctx context.Context, t time.Time) error {
	return l.coll.WaitAckSentBy(ctx, outsideIDs, t)
}

// error is why an ended driver ended.
func (c *client) error() error {
	err := c.proc.Wait()
	if said := lastLines(c.said.String(), 3); said != "" {
		return fmt.Errorf("%w: %s", errors.Join(err, errors.New("it said")), said)
	}
	if err == nil {
		return errors.New("it said nothing")
	}
	return err
}

// stop ends the drivers and closes the history. An error means that the
// evidence is incomplete.
func (l *load) stop(ctx context.Context) error {
	if l.stopped {
		return nil
	}
	l.stopped = true
	l.quit()
	<-l.idle
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopDeadline)
	defer cancel()
	err := l.coll.Stop(ctx)
	for _, d := range l.coll.Drivers() {
		if d.State != collector.Finished {
			err = errors.Join(err, fmt.Errorf("the driver did not finish its writes: %s", d.Why))
		}
	}
	for _, c := range l.clients {
		select {
		case <-c.proc.Done():
		case <-ctx.Done():
			const sigkill = 9
			err = errors.Join(err, errors.New("the driver did not end"), c.proc.Signal(sigkill))
		}
		if werr := c.proc.Wait(); werr != nil && err == nil {
			err = fmt.Errorf("the driver failed: %w", c.error())
		}
	}
	return err
}

// reads adds up what the drivers read.
func (l *load) reads(into map[string]float64) {
	var r collector.Reads
	for _, d := range l.coll.Drivers() {
		r.Fresh, r.Failed = r.Fresh+d.Reads.Fresh, r.Failed+d.Reads.Failed
		if d.Reads.Stale == 0 {
			continue
		}
		if r.Stale == 0 || d.Reads.FirstStale < r.FirstStale {
			r.FirstStale = d.Reads.FirstStale
		}
		r.LastStale = max(r.LastStale, d.Reads.LastStale)
		r.Stale += d.Reads.Stale
	}
	into["reads"] = float64(r.Fresh + r.Stale + r.Failed)
	into["reads_stale"], into["reads_failed"] = float64(r.Stale), float64(r.Failed)
	if r.Stale > 0 {
		into["stale_ms"] = float64((r.LastStale - r.FirstStale).Microseconds()) / 1000
	}
}
