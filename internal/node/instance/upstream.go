package instance

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/holdfast-db/holdfast/internal/cluster"
	"github.com/holdfast-db/holdfast/internal/node/instance/wal"
)

// tlsConfig admits us to the one server that its root certificate belongs to.
// The server's name is not compared: no other server has a certificate of that root.
func (c Credential) tlsConfig() (*tls.Config, error) {
	cert, err := tls.X509KeyPair(c.CertPEM, c.KeyPEM)
	if err != nil {
		return nil, fmt.Errorf("the certificate for its Postgres: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(c.RootPEM) {
		return nil, errors.New("the certificate for its Postgres comes without a root")
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true, // checked below
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 {
				return errors.New("the server shows no certificate")
			}
			between := x509.NewCertPool()
			for _, c := range s.PeerCertificates[1:] {
				between.AddCert(c)
			}
			_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between})
			return err
		},
	}, nil
}

// dial opens a session at another node's Postgres: for replication commands, or
// for the reading role's SQL.
func (i *Instance) dial(ctx context.Context, at Endpoint, cred Credential, replication bool) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig("host=/nowhere port=1 sslmode=disable user=x dbname=postgres")
	if err != nil {
		return nil, err
	}
	if cfg.TLSConfig, err = cred.tlsConfig(); err != nil {
		return nil, err
	}
	cfg.Host, cfg.Port, cfg.Fallbacks, cfg.Password = at.Host, uint16(at.Port), nil, ""
	cfg.ConnectTimeout = 2 * time.Second
	cfg.User = roleRewind
	cfg.RuntimeParams = map[string]string{"application_name": StrangerName("agent", i.cfg.Self)}
	if replication {
		cfg.User, cfg.RuntimeParams["replication"] = roleReplication, "true"
		cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	}
	c, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to Postgres at %s:%d: %w", at.Host, at.Port, err)
	}
	return c, nil
}

// tend looks after a stream that was just permitted: its slot at the upstream is
// made, and if no stream comes about, whether the upstream still has the WAL.
func (i *Instance) tend(p pass, x cluster.Follow, at Endpoint, cred Credential) {
	i.upstream.mu.Lock()
	seq := i.upstream.seq
	i.upstream.mu.Unlock()
	i.wg.Add(1)
	go func() {
		defer i.wg.Done()
		slot, made := SlotName(x.Name), false
		for wait := time.Duration(0); ; wait = 300 * time.Millisecond {
			if sleep(p.ctx, wait) != nil || !i.stillFollows(seq) {
				return
			}
			if !made {
				err := i.makeSlot(p.ctx, at, cred, slot)
				made = err == nil
				if err != nil && p.ctx.Err() == nil {
					i.log.Info("no slot at the upstream yet", "slot", slot, "error", err)
				}
				continue
			}
			if s, ok := i.streams(p.ctx); !ok || s {
				i.setLacksWAL(i.lacksWAL() && !s)
				wait = time.Second
				if sleep(p.ctx, wait) != nil {
					return
				}
				continue
			}
			if !i.stillFollows(seq) {
				return
			}
			made = i.askUpstream(p.ctx, at, cred, slot)
			if sleep(p.ctx, time.Second) != nil {
				return
			}
		}
	}()
}

func (i *Instance) stillFollows(seq uint64) bool {
	i.upstream.mu.Lock()
	defer i.upstream.mu.Unlock()
	return i.upstream.seq == seq
}

// makeSlot makes a physical slot that keeps WAL from now on.
func (i *Instance) makeSlot(ctx context.Context, at Endpoint, cred Credential, slot string) error {
	ctx, end := context.WithTimeout(ctx, 3*time.Second)
	defer end()
	c, err := i.dial(ctx, at, cred, true)
	if err != nil {
		return err
	}
	defer closeConn(c)
	_, err = c.Exec(ctx, `CREATE_REPLICATION_SLOT "`+slot+`" PHYSICAL RESERVE_WAL`)
	if code(err) == "42710" { // it is there
		return nil
	}
	return err
}

// dropSlot removes a slot of ours; one that is not there is no error.
func (i *Instance) dropSlot(ctx context.Context, at Endpoint, cred Credential, slot string) error {
	ctx, end := context.WithTimeout(ctx, 3*time.Second)
	defer end()
	c, err := i.dial(ctx, at, cred, true)
	if err != nil {
		return err
	}
	defer closeConn(c)
	_, err = c.Exec(ctx, `DROP_REPLICATION_SLOT "`+slot+`"`)
	if code(err) == "42704" {
		return nil
	}
	return err
}

func code(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// streams says whether a walreceiver streams; ok is false where that cannot be told.
func (i *Instance) streams(ctx context.Context) (yes, ok bool) {
	ctx, end := context.WithTimeout(ctx, time.Second)
	defer end()
	c, err := i.connect(ctx)
	if err != nil {
		return false, false
	}
	defer closeConn(c)
	err = c.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming')").Scan(&yes)
	return yes, err == nil
}

// askUpstream asks for the WAL that we need next, as the walreceiver does, to
// learn why no stream comes about. It returns false if the slot has to be made again.
func (i *Instance) askUpstream(ctx context.Context, at Endpoint, cred Credential, slot string) (slotGood bool) {
	i.held.mu.Lock()
	rep := i.held.report
	i.held.mu.Unlock()
	if rep.SegSize == 0 {
		return true
	}
	ctx, end := context.WithTimeout(ctx, 3*time.Second)
	defer end()
	c, err := i.dial(ctx, at, cred, true)
	if err != nil {
		return true
	}
	defer func() { _ = c.PgConn().Conn().Close() }() // a stream does not end politely
	from := uint64(rep.End) / rep.SegSize * rep.SegSize
	tl := rep.History[len(rep.History)-1].Timeline
	err = startStream(ctx, c, slot, cluster.LSN(from), tl)
	switch code(err) {
	case "58P01":
		i.log.Warn("the upstream no longer has the WAL that this standby needs", "error", err)
		i.setLacksWAL(true)
	case "55000":
		// The slot held back more than its cap allows, and lost it.
		if err := i.dropSlot(ctx, at, cred, slot); err != nil {
			i.log.Warn("drop a slot that was lost", "slot", slot, "error", err)
		}
		return false
	case "42704":
		return false
	}
	return true
}

// startStream asks for WAL and reads until the first of it comes, or an error.
func startStream(ctx context.Context, c *pgx.Conn, slot string, from cluster.LSN, tl cluster.Timeline) error {
	if d, ok := ctx.Deadline(); ok {
		_ = c.PgConn().Conn().SetDeadline(d)
	}
	q := "START_REPLICATION "
	if slot != "" {
		q += `SLOT "` + slot + `" `
	}
	f := c.PgConn().Frontend()
	f.SendQuery(&pgproto3.Query{String: q + "PHYSICAL " + wal.Text(from) + " TIMELINE " + strconv.FormatUint(uint64(tl), 10)})
	if err := f.Flush(); err != nil {
		return err
	}
	for {
		m, err := f.Receive()
		if err != nil {
			return err
		}
		switch m := m.(type) {
		case *pgproto3.ErrorResponse:
			return pgconn.ErrorResponseToPgError(m)
		case *pgproto3.CopyData:
			if strings.HasPrefix(string(m.Data), "w") {
				return nil
			}
		case *pgproto3.CopyDone, *pgproto3.CommandComplete, *pgproto3.ReadyForQuery:
			return nil
		}
	}
}
