package diagnose

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// probe is one reading of the statistics. It asks for whole rows as JSON, so
// that a column which this version calls differently, or has not, is no error.
type probe struct {
	name  string
	needs []string // views or functions of pg_catalog; absent ones skip the probe
	once  bool     // at the beginning only
	sql   string
}

// settingNames are the settings that a verdict or a trap looks at.
var settingNames = []string{
	"fsync", "synchronous_commit", "full_page_writes", "data_checksums", "wal_sync_method", "track_io_timing", "track_wal_io_timing",
	"track_activities", "track_counts", "max_wal_size", "checkpoint_timeout", "checkpoint_completion_target", "shared_buffers", "autovacuum",
	"autovacuum_vacuum_scale_factor", "autovacuum_vacuum_threshold", "autovacuum_freeze_max_age", "autovacuum_max_workers",
	"autovacuum_vacuum_cost_delay", "autovacuum_vacuum_cost_limit", "vacuum_cost_limit", "synchronous_standby_names", "max_connections", "wal_level",
	"max_slot_wal_keep_size", "idle_in_transaction_session_timeout", "wal_buffers", "commit_delay", "io_method", "effective_io_concurrency",
	"hot_standby_feedback", "wal_compression", "block_size", "wal_block_size", "wal_init_zero", "default_transaction_isolation", "log_checkpoints",
}

const currentLSN = `CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END`

func probes() []probe {
	view := func(v string) probe {
		return probe{name: v, needs: []string{v}, sql: "SELECT to_jsonb(x)::text FROM pg_catalog." + v + " x"}
	}
	return []probe{
		view("pg_stat_database"), view("pg_stat_bgwriter"), view("pg_stat_checkpointer"), view("pg_stat_wal"), view("pg_stat_io"),
		view("pg_stat_archiver"), view("pg_stat_subscription"), view("pg_stat_progress_vacuum"), view("pg_prepared_xacts"),
		{name: "settings", once: true, sql: `SELECT jsonb_build_object('name', name, 'setting', setting, 'unit', unit, 'source', source)::text
 FROM pg_catalog.pg_settings WHERE name IN ('` + strings.Join(settingNames, "','") + `')`},
		{name: "role_settings", once: true, sql: `SELECT jsonb_build_object('database', coalesce(d.datname, ''), 'role', coalesce(r.rolname, ''),
 'config', array_to_string(s.setconfig, ' '))::text
 FROM pg_catalog.pg_db_role_setting s LEFT JOIN pg_catalog.pg_database d ON d.oid = s.setdatabase LEFT JOIN pg_catalog.pg_roles r ON r.oid = s.setrole`},
		{name: "replication", needs: []string{"pg_stat_replication"}, sql: `SELECT (to_jsonb(x) || jsonb_build_object(
 'behind', pg_wal_lsn_diff(` + currentLSN + `, x.replay_lsn), 'unsent', pg_wal_lsn_diff(` + currentLSN + `, x.sent_lsn),
 'replay_lag_s', extract(epoch FROM x.replay_lag), 'flush_lag_s', extract(epoch FROM x.flush_lag)))::text FROM pg_catalog.pg_stat_replication x`},
		{name: "slots", needs: []string{"pg_replication_slots"}, sql: `SELECT (to_jsonb(x) || jsonb_build_object(
 'retained', pg_wal_lsn_diff(` + currentLSN + `, x.restart_lsn), 'behind', pg_wal_lsn_diff(` + currentLSN + `, x.confirmed_flush_lsn),
 'xmin_age', greatest(age(x.xmin), age(x.catalog_xmin))))::text FROM pg_catalog.pg_replication_slots x`},
		{name: "recovery", sql: `SELECT jsonb_build_object('standby', pg_is_in_recovery(),
 'replay_delay_s', CASE WHEN pg_is_in_recovery() AND pg_last_wal_receive_lsn() IS DISTINCT FROM pg_last_wal_replay_lsn()
  THEN extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()) END,
 'unreplayed', CASE WHEN pg_is_in_recovery() THEN pg_wal_lsn_diff(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()) END)::text`},
		{name: "holders", needs: []string{"pg_stat_activity"}, sql: `SELECT jsonb_build_object('pid', pid, 'user', usename, 'database', datname, 'app', application_name,
 'state', state, 'backend', backend_type, 'xmin_age', age(backend_xmin), 'xid_age', age(backend_xid),
 'in_tx_s', extract(epoch FROM clock_timestamp() - xact_start), 'in_state_s', extract(epoch FROM clock_timestamp() - state_change))::text
 FROM pg_catalog.pg_stat_activity WHERE pid <> pg_backend_pid() AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL OR state LIKE 'idle in transaction%')
 ORDER BY xact_start LIMIT 50`},
		{name: "tables", needs: []string{"pg_stat_user_tables"}, sql: `SELECT jsonb_build_object('table', t.schemaname || '.' || t.relname, 'dead', t.n_dead_tup, 'live', t.n_live_tup,
 'last_autovacuum', t.last_autovacuum, 'autovacuums', t.autovacuum_count, 'vacuums', t.vacuum_count, 'xid_age', age(c.relfrozenxid), 'tuples', c.reltuples,
 'options', array_to_string(c.reloptions, ' '))::text
 FROM pg_catalog.pg_stat_user_tables t JOIN pg_catalog.pg_class c ON c.oid = t.relid ORDER BY t.n_dead_tup DESC NULLS LAST LIMIT 20`},
		{name: "databases", once: true, sql: `SELECT jsonb_build_object('database', datname, 'xid_age', age(datfrozenxid))::text FROM pg_catalog.pg_database WHERE datallowconn`},
	}
}

const catalogQuery = `SELECT c.relname::text FROM pg_catalog.pg_class c
 WHERE c.relnamespace = 'pg_catalog'::regnamespace AND c.relkind = 'v' AND (c.relname LIKE 'pg\_stat\_%' OR c.relname IN ('pg_replication_slots', 'pg_prepared_xacts'))
 UNION ALL SELECT 'extension ' || quote_ident(n.nspname) FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace
 WHERE e.extname = 'pg_stat_statements'`

// catalog is what this server has.
type catalog struct {
	views      map[string]bool
	statements string // schema of pg_stat_statements, "" without it
	columns    []string
}

func (s *session) catalog(ctx context.Context) (catalog, error) {
	c := catalog{views: map[string]bool{}}
	names, err := s.strings(ctx, catalogQuery)
	if err != nil {
		return c, err
	}
	for _, n := range names {
		if schema, ok := strings.CutPrefix(n, "extension "); ok {
			c.statements = schema
			continue
		}
		c.views[n] = true
	}
	if c.statements != "" {
		c.columns, err = s.statementColumns(ctx, c.statements)
	}
	return c, err
}

// statementColumns asks for the columns without a row; none where the library
// is not loaded or may not be read.
func (s *session) statementColumns(ctx context.Context, schema string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, s.deadline)
	defer cancel()
	defer s.count(time.Now())
	rows, err := s.conn.Query(ctx, "SELECT * FROM "+schema+".pg_stat_statements(false) LIMIT 0")
	if err != nil {
		return nil, ignoreRefusal(err)
	}
	defer rows.Close()
	var cols []string
	for _, f := range rows.FieldDescriptions() {
		cols = append(cols, f.Name)
	}
	rows.Close()
	if rows.Err() != nil {
		return nil, ignoreRefusal(rows.Err())
	}
	return cols, nil
}

// ignoreRefusal keeps only errors after which the connection is of no use.
func ignoreRefusal(err error) error {
	var pe *pgconn.PgError
	if errors.As(err, &pe) && pe.Severity != "FATAL" && pe.Severity != "PANIC" {
		return nil
	}
	return err
}

func (s *session) strings(ctx context.Context, sql string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, s.deadline)
	defer cancel()
	defer s.count(time.Now())
	rows, err := s.conn.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// read takes a snapshot. missing says what the server refused.
func (s *session) read(ctx context.Context, c catalog, at time.Duration, first bool) (snap *Snapshot, missing []string, err error) {
	snap = &Snapshot{At: at, Views: map[string][]Row{}}
	for _, p := range probes() {
		if p.once && !first || slices.ContainsFunc(p.needs, func(n string) bool { return !c.views[n] }) {
			continue
		}
		rows, err := s.rows(ctx, p.sql)
		if err != nil {
			if err := ignoreRefusal(err); err != nil {
				return nil, nil, fmt.Errorf("read %s: %w", p.name, err)
			}
			if first {
				missing = append(missing, refusal(p.name, err))
			}
			continue
		}
		snap.Views[p.name] = rows
	}
	if len(c.columns) > 0 {
		rows, err := s.rows(ctx, statementsQuery(c))
		if err := ignoreRefusal(err); err != nil {
			return nil, nil, fmt.Errorf("read pg_stat_statements: %w", err)
		}
		if err == nil {
			snap.Views["pg_stat_statements"] = rows
		}
	}
	return snap, missing, nil
}

func refusal(what string, err error) string {
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		return fmt.Sprintf("%s: %s", what, redact(pe.Message, ""))
	}
	return what + ": " + err.Error()
}

func (s *session) rows(ctx context.Context, sql string) ([]Row, error) {
	texts, err := s.strings(ctx, sql)
	if err != nil {
		return nil, err
	}
	rows := make([]Row, 0, len(texts))
	for _, t := range texts {
		var r Row
		if err := json.Unmarshal([]byte(t), &r); err != nil {
			return nil, fmt.Errorf("read a row as JSON: %w", err)
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// statementsQuery reads the counters without the statements' text, which is
// in a file that would have to be read whole. The I/O times got other names in 17.
func statementsQuery(c catalog) string {
	cols := []string{"'id', s.userid::text || '/' || s.dbid::text || '/' || coalesce(s.queryid, 0)::text"}
	for _, name := range []string{
		"queryid", "calls", "total_exec_time", "shared_blks_read", "blk_read_time", "blk_write_time", "shared_blk_read_time", "shared_blk_write_time",
		"wal_bytes", "wal_fpi",
	} {
		if slices.Contains(c.columns, name) {
			cast := ""
			if name == "queryid" { // as text: its 64 bits do not fit a JSON number
				cast = "::text"
			}
			cols = append(cols, "'"+name+"', s."+name+cast)
		}
	}
	return "SELECT jsonb_build_object(" + strings.Join(cols, ", ") + ")::text FROM " + c.statements +
		".pg_stat_statements(false) s ORDER BY s.calls DESC LIMIT 5000"
}

// texts are the texts of statements by their id.
func (s *session) texts(ctx context.Context, c catalog, ids []string) (map[string]string, error) {
	out := map[string]string{}
	if len(ids) == 0 || c.statements == "" {
		return out, nil
	}
	for _, id := range ids {
		if strings.Trim(id, "-0123456789") != "" {
			return out, nil // not a number: nothing that we asked for
		}
	}
	rows, err := s.rows(ctx, "SELECT jsonb_build_object('id', queryid::text, 'query', left(min(query), 300))::text FROM "+c.statements+
		".pg_stat_statements(true) WHERE queryid IN ("+strings.Join(ids, ",")+") GROUP BY queryid")
	if err != nil {
		return out, ignoreRefusal(err)
	}
	for _, r := range rows {
		out[r.Text("id")] = r.Text("query")
	}
	return out, nil
}
