package setup

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

func (p *plain) Login() Login {
	m := p.members[p.primary]
	return Login{User: m.User, Password: m.Password, Database: "postgres"}
}

// Prepare replaces the ledger. Its index is not unique, so that a write that
// came through twice is seen instead of being suppressed.
func (p *plain) Prepare(ctx context.Context, table string) error {
	m := p.members[p.primary]
	name := pgx.Identifier{table}.Sanitize()
	err := m.Exec(ctx,
		"DROP TABLE IF EXISTS "+name,
		"CREATE TABLE "+name+" (id bigint NOT NULL, writer int NOT NULL, retry_of bigint NOT NULL, payload bytea NOT NULL)",
		"CREATE INDEX ON "+name+" (id)",
		"CHECKPOINT",
	)
	if err != nil {
		return fmt.Errorf("make the ledger: %w", err)
	}
	return m.WaitStandbys(ctx, p.standbyNames()...)
}

func (p *plain) Survivors(ctx context.Context, table string, scan Scan, sink func(uint64)) error {
	m := p.members[p.primary]
	c, err := m.Connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	set := "SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off"
	order := ""
	if scan == ByIndex {
		set, order = "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off", " ORDER BY id"
	}
	if _, err := c.Exec(ctx, set); err != nil {
		return err
	}
	rows, err := c.Query(ctx, "SELECT id FROM "+pgx.Identifier{table}.Sanitize()+order)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return err
		}
		sink(uint64(id))
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read survivors by %s: %w", scan, err)
	}
	return nil
}
