package experiment

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
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
)

// load is a driver on the client's host and the collector that hears it.
type load struct {
	env  Env
	coll *collector.Collector
	proc place.Process
	said bytes.Buffer // the driver's stderr; read after it has ended

	stopped bool
	quit    context.CancelFunc
	idle    chan struct{}
}

// startLoad makes the ledger, starts a driver and waits for its first ack.
func startLoad(ctx context.Context, env Env) (_ *load, err error) {
	cl, ok := env.System.(setup.Cluster)
	ledger, ok2 := env.System.(setup.Ledger)
	if !ok || !ok2 {
		return nil, fmt.Errorf("setup %s cannot be written to by the driver", env.Kind.Name)
	}
	if err := ledger.Prepare(ctx, ledgerTable); err != nil {
		return nil, err
	}
	ln, err := env.Client.Listen(ctx, "tcp", net.JoinHostPort(env.Client.Addr(), "0"))
	if err != nil {
		return nil, fmt.Errorf("listen for the driver: %w", err)
	}
	token := rand.Text()
	l := &load{env: env, idle: make(chan struct{})}
	l.coll, err = collector.New(ln, token, filepath.Join(env.Dir, HistoryFile(env.Key)), collector.Options{})
	if err != nil {
		_ = ln.Close()
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
	if err := l.startDriver(ctx, driverConfig(env, cl, ledger, ln.Addr().String(), token)); err != nil {
		return nil, err
	}
	first, cancel := context.WithTimeoutCause(ctx, 15*time.Second, errors.New("no write came back within 15 s"))
	defer cancel()
	if err := l.coll.WaitAcks(first, 1); err != nil {
		return nil, fmt.Errorf("start the load: %w", errors.Join(err, context.Cause(first)))
	}
	return l, nil
}

func driverConfig(env Env, cl setup.Cluster, ledger setup.Ledger, addr, token string) driver.Config {
	login := ledger.Login()
	var targets []string
	for _, t := range cl.Targets() {
		targets = append(targets, net.JoinHostPort(t.Host, strconv.Itoa(t.Port)))
	}
	return driver.Config{
		Targets: targets, User: login.User, Password: login.Password, Database: login.Database, Table: ledgerTable,
		Writers: env.Spec.Writers, Rate: env.Spec.Rate, PayloadBytes: env.Spec.Payload,
		Collector: addr, Token: token, Seed: env.Seed, IDBase: 1,
	}
}

func (l *load) startDriver(ctx context.Context, cfg driver.Config) error {
	in, err := json.Marshal(cfg)
	if err != nil {
		return err
	}
	l.proc, err = l.env.Client.Start(ctx, place.Cmd{
		Path: l.env.Binary, Args: []string{"lab-driver"}, Stdin: bytes.NewReader(in), Stderr: &l.said, Stdout: &l.said,
	})
	if err != nil {
		return fmt.Errorf("start the driver: %w", err)
	}
	return nil
}

// show keeps the progress line alive.
func (l *load) show(ctx context.Context) {
	defer close(l.idle)
	t := time.NewTicker(liveEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			v := l.coll.Live()
			text := fmt.Sprintf("%d acknowledged, %d/s", v.Acked, v.LastSecond)
			if v.SinceLastAck > time.Second {
				text += fmt.Sprintf(", none for %.1f s", v.SinceLastAck.Seconds())
			}
			l.env.Live(text)
		}
	}
}

// run lets the load go on for d; it fails early when the driver ends.
func (l *load) run(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return l.coll.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-l.proc.Done():
		return fmt.Errorf("the driver ended during the load: %w", l.driverError())
	}
}

func (l *load) driverError() error {
	err := l.proc.Wait()
	if said := lastLines(l.said.String(), 3); said != "" {
		return fmt.Errorf("%w: %s", errors.Join(err, errors.New("it said")), said)
	}
	if err == nil {
		return errors.New("it said nothing")
	}
	return err
}

// stop ends the driver and closes the history. An error means that the
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
	if l.proc == nil {
		return err
	}
	select {
	case <-l.proc.Done():
	case <-ctx.Done():
		const sigkill = 9
		err = errors.Join(err, errors.New("the driver did not end"), l.proc.Signal(sigkill))
	}
	if werr := l.proc.Wait(); werr != nil && err == nil {
		err = fmt.Errorf("the driver failed: %w", l.driverError())
	}
	return err
}
