package setup

import (
	"context"
	"errors"

	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/postgres"
)

// Publishing is a setup with a second server that can subscribe to its primary.
// It is there to be measured: that server is no standby, and no fault is done to it.
type Publishing interface {
	SQL
	Subscriber() (place.Host, *postgres.Instance)
	// RestartSubscriber restarts the second server.
	RestartSubscriber(ctx context.Context) error
}

// logical is two servers on hosts of their own; who subscribes to what is up to
// the experiment.
type logical struct {
	*plain
	second *plain
}

func newLogical() System {
	with := plain{extra: postgres.Settings{"wal_level": "logical"}}
	return &logical{plain: newPlain(with)().(*plain), second: newPlain(with)().(*plain)}
}

func (l *logical) Deploy(ctx context.Context, env Env) error {
	first, second := env, env
	first.Hosts, second.Hosts = env.Hosts[:1], env.Hosts[1:]
	if err := l.plain.Deploy(ctx, first); err != nil {
		return err
	}
	return l.second.Deploy(ctx, second)
}

func (l *logical) Start(ctx context.Context) error {
	if err := l.plain.Start(ctx); err != nil {
		return err
	}
	return l.second.Start(ctx)
}

func (l *logical) Stop(ctx context.Context) error {
	return errors.Join(l.second.Stop(ctx), l.plain.Stop(ctx))
}

func (l *logical) Subscriber() (place.Host, *postgres.Instance) {
	return l.second.Primary(), l.second.Instance()
}

func (l *logical) RestartSubscriber(ctx context.Context) error {
	_, _, err := l.second.Restart(ctx)
	return err
}
