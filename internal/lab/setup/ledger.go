package setup

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-db/holdfast/internal/lab/driver"
	"github.com/holdfast-db/holdfast/internal/postgres"
)

func (p *plain) Login() Login {
	m := p.members[p.primary]
	return Login{User: m.User, Password: m.Password, Database: "postgres"}
}

// Prepare replaces the ledger.
func (p *plain) Prepare(ctx context.Context, table string) error {
	m := p.members[p.primary]
	if err := m.Exec(ctx, ledgerStatements(table)...); err != nil {
		return fmt.Errorf("make the ledger: %w", err)
	}
	return m.WaitStandbys(ctx, p.standbyNames()...)
}

func ledgerStatements(table string) []string {
	name := pgx.Identifier{"public", table}.Sanitize()
	return []string{"DROP TABLE IF EXISTS " + name, fmt.Sprintf(driver.CreateTable, name), "CHECKPOINT"}
}

// Survivors reads both ways in one snapshot: a commit that a dead client left
// behind could otherwise finish between them and look like a damaged index.
func (p *plain) Survivors(ctx context.Context, table string, sink func(Scan, uint64)) error {
	return survivors(ctx, p.members[p.primary], table, sink)
}

func survivors(ctx context.Context, m *postgres.Instance, table string, sink func(Scan, uint64)) error {
	c, err := m.Connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	if _, err := c.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"); err != nil {
		return err
	}
	name := pgx.Identifier{"public", table}.Sanitize()
	for _, r := range []struct {
		scan     Scan
		set, sql string
	}{
		{BySequence, "SET LOCAL enable_indexscan = off; SET LOCAL enable_indexonlyscan = off; SET LOCAL enable_bitmapscan = off", "SELECT id FROM " + name},
		{ByIndex, "RESET ALL; SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off", "SELECT id FROM " + name + " ORDER BY id"},
	} {
		if _, err := c.Exec(ctx, r.set); err != nil {
			return err
		}
		rows, err := c.Query(ctx, r.sql)
		if err != nil {
			return fmt.Errorf("read survivors by %s: %w", r.scan, err)
		}
		var id int64
		_, err = pgx.ForEachRow(rows, []any{&id}, func() error {
			sink(r.scan, uint64(id))
			return nil
		})
		if err != nil {
			return fmt.Errorf("read survivors by %s: %w", r.scan, err)
		}
	}
	_, err = c.Exec(ctx, "COMMIT")
	return err
}
