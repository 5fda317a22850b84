package instance

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

const incarnationName = "holdfast.incarnation"

// drawIncarnation draws a number that no directory ever had, of at most 16
// digits, so that names stay short.
func drawIncarnation() (cluster.Incarnation, error) {
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		return 0, err
	}
	return cluster.Incarnation(binary.LittleEndian.Uint64(b[:])&(1<<53-1) | 1<<52), nil
}

// saveIncarnation writes n into the data directory dir and the agent's state,
// flushed, the directory first: only what both agree on is ours.
func (i *Instance) saveIncarnation(dir string, n cluster.Incarnation) error {
	text := []byte(strconv.FormatUint(uint64(n), 10) + "\n")
	if err := i.writeDurable(filepath.Join(dir, incarnationName), text); err != nil {
		return err
	}
	if err := i.writeDurable(filepath.Join(i.cfg.StateDir, "incarnation"), text); err != nil {
		return err
	}
	i.mu.Lock()
	i.incarnation = n
	i.mu.Unlock()
	return nil
}

// readIncarnation reads a file of saveIncarnation; 0 if there is none.
func readIncarnation(path string) (cluster.Incarnation, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s does not hold a number: %w", path, err)
	}
	return cluster.Incarnation(n), nil
}

// Create makes a new data directory and its incarnation. The directory must not
// exist, or be empty. What fails leaves nothing behind.
func (i *Instance) Create(ctx context.Context) (cluster.Incarnation, error) {
	dir := i.cfg.DataDir
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	if exists(filepath.Join(dir, "PG_VERSION")) {
		return 0, fmt.Errorf("%s already holds a data directory: adopt it, or name another place (postgres.data)", dir)
	}
	if len(entries) > 0 {
		return 0, fmt.Errorf("%s is not empty (%s): empty it, or name another place (postgres.data)", dir, entries[0].Name())
	}
	if err := checkRoom(filepath.Dir(dir)); err != nil {
		return 0, err
	}
	if err := i.makeDir(dir, 0o700); err != nil {
		return 0, err
	}
	n, err := i.create(ctx)
	if err != nil {
		err = fmt.Errorf("make the data directory %s: %w", dir, err)
		if rmErr := emptyDir(dir); rmErr != nil {
			return 0, errors.Join(err, rmErr)
		}
		return 0, err
	}
	return n, nil
}

func (i *Instance) create(ctx context.Context) (cluster.Incarnation, error) {
	// A promotion copies the last segment, with nobody writing meanwhile: of 4 MB in a
	// quarter of the time of the usual 16. Nobody has a password yet, so nobody gets in by one; the agent does by peer.
	_, err := i.output(i.command(ctx, "initdb", "-D", i.cfg.DataDir, "-U", "postgres", "--auth-local=peer", "--auth-host=scram-sha-256", "-k",
		"-E", "UTF8", "--locale=C", "--no-instructions", "--wal-segsize=4"))
	if err != nil {
		return 0, err
	}
	return i.takeIn(ctx)
}

// takeIn makes a stopped directory one of ours: denial, roles, incarnation.
func (i *Instance) takeIn(ctx context.Context) (cluster.Incarnation, error) {
	if err := i.writeConfig(nobody); err != nil {
		return 0, err
	}
	if err := i.singleUser(ctx, rolesSQL+epochsSQL); err != nil {
		return 0, fmt.Errorf("make the roles: %w", err)
	}
	n, err := drawIncarnation()
	if err != nil {
		return 0, err
	}
	return n, i.saveIncarnation(i.cfg.DataDir, n)
}

// rolesSQL makes our roles. Those that pg_rewind and streams use have no
// password and no right beyond what they are for. One statement a line.
const rolesSQL = `DO $$BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'holdfast') THEN CREATE ROLE holdfast SUPERUSER LOGIN; ELSE ALTER ROLE holdfast SUPERUSER LOGIN CONNECTION LIMIT -1; END IF; END$$;
DO $$BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'holdfast_replication') THEN CREATE ROLE holdfast_replication REPLICATION LOGIN; END IF; END$$;
DO $$BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'holdfast_rewind') THEN CREATE ROLE holdfast_rewind LOGIN; END IF; END$$;
GRANT EXECUTE ON FUNCTION pg_catalog.pg_ls_dir(text, boolean, boolean) TO holdfast_rewind;
GRANT EXECUTE ON FUNCTION pg_catalog.pg_stat_file(text, boolean) TO holdfast_rewind;
GRANT EXECUTE ON FUNCTION pg_catalog.pg_read_binary_file(text) TO holdfast_rewind;
GRANT EXECUTE ON FUNCTION pg_catalog.pg_read_binary_file(text, bigint, bigint, boolean) TO holdfast_rewind;
DO $$BEGIN IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'pg_checkpoint') THEN GRANT pg_checkpoint TO holdfast_rewind; END IF; END$$;
`

// singleUser runs statements, one a line, on the stopped directory. Nobody else
// can connect meanwhile, and nobody is waited for. It recovers a directory that was not shut down cleanly.
func (i *Instance) singleUser(ctx context.Context, sql string) error {
	args := []string{"--single", "-D", i.cfg.DataDir}
	for _, kv := range []string{"exit_on_error=on", "synchronous_commit=local", "log_min_messages=warning", "log_destination=stderr", "logging_collector=off", "fsync=on",
		"data_directory=" + i.cfg.DataDir, "hba_file=" + filepath.Join(i.cfg.DataDir, "pg_hba.conf"), "ident_file=" + filepath.Join(i.cfg.DataDir, "pg_ident.conf")} {
		args = append(args, "-c", kv)
	}
	c := i.command(ctx, "postgres", append(args, "postgres")...)
	c.Stdin = strings.NewReader(sql)
	var complaint bytes.Buffer
	c.Stderr = &complaint
	err := c.Run()
	for line := range strings.Lines(complaint.String()) {
		if strings.Contains(line, "ERROR:") || strings.Contains(line, "FATAL:") {
			return errors.New(strings.TrimSpace(line))
		}
	}
	if err != nil {
		return fmt.Errorf("postgres --single: %w: %s", err, lastLines(complaint.String(), 3))
	}
	return nil
}

// Adopt takes an existing directory over: it must be stopped. Its settings stay,
// but for what the cluster manages.
func (i *Instance) Adopt(ctx context.Context) (cluster.Incarnation, error) {
	dir := i.cfg.DataDir
	if err := i.checkAdopt(ctx, dir); err != nil {
		return 0, err
	}
	if have, err := readIncarnation(filepath.Join(dir, incarnationName)); err != nil {
		return 0, err
	} else if have != 0 && have != i.Incarnation() {
		return 0, fmt.Errorf("%s belongs to another node or another cluster: if it is to begin a new cluster, remove %s in it", dir, incarnationName)
	}
	n, err := i.takeIn(ctx)
	if err != nil {
		return 0, fmt.Errorf("adopt %s: %w", dir, err)
	}
	return n, nil
}

// checkAdopt refuses what cannot be adopted, before anything is touched.
func (i *Instance) checkAdopt(ctx context.Context, dir string) error {
	if !exists(filepath.Join(dir, "PG_VERSION")) {
		return fmt.Errorf("%s holds no data directory", dir)
	}
	if err := checkMajor(dir, i.cfg.BinDir, i.major); err != nil {
		return err
	}
	if s := i.current(); s != nil {
		return fmt.Errorf("a server runs on %s (pid %d): stop it and keep its unit from starting it again (systemctl disable --now postgresql), then adopt", dir, s.pid)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if uid := owner(info); uid != i.user.uid {
		return notOwned(dir, info, i.user)
	}
	for _, name := range []string{"standby.signal", "recovery.signal", "backup_label"} {
		if exists(filepath.Join(dir, name)) {
			return fmt.Errorf("%s is a standby or a backup that was not finished (%s is there): adopt the primary's directory; the others are cloned from it", dir, name)
		}
	}
	if err := checkRoom(dir); err != nil {
		return err
	}
	data, err := i.controlData(ctx)
	if err != nil {
		return err
	}
	if state := data["Database cluster state"]; state != "shut down" {
		return fmt.Errorf("%s was not shut down cleanly (%q): start it once and stop it, then adopt", dir, state)
	}
	return nil
}

// controlData is what pg_controldata prints, by its labels.
func (i *Instance) controlData(ctx context.Context) (map[string]string, error) {
	out, err := i.output(i.command(ctx, "pg_controldata", "-D", i.cfg.DataDir))
	if err != nil {
		return nil, fmt.Errorf("read the control file of %s: %w", i.cfg.DataDir, err)
	}
	data := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if k, v, ok := strings.Cut(line, ":"); ok {
			data[k] = strings.TrimSpace(v)
		}
	}
	return data, nil
}

// SystemIdentifier tells the clusters of the world apart: initdb draws it, and
// copies keep it.
func (i *Instance) SystemIdentifier(ctx context.Context) (string, error) {
	data, err := i.controlData(ctx)
	if err != nil {
		return "", err
	}
	id := data["Database system identifier"]
	if id == "" {
		return "", fmt.Errorf("the control file of %s names no system identifier", i.cfg.DataDir)
	}
	return id, nil
}

// emptyDir removes what is in a directory, not the directory.
func emptyDir(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return err
}
