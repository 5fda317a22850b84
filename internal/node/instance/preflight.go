package instance

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// CheckDirectory refuses a data directory that no agent of this node made, before
// anything is touched. mayAdopt: one that no agent made at all may be taken over,
// which Adopt itself checks.
func CheckDirectory(ctx context.Context, cfg Config, mayAdopt bool) error {
	mine, err := readIncarnation(filepath.Join(cfg.StateDir, "incarnation"))
	if err != nil || mine != 0 {
		return err // what it is now, the agent finds out: a rebuild may have been under way
	}
	dir := cfg.DataDir
	if !exists(filepath.Join(dir, "PG_VERSION")) {
		if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
			return fmt.Errorf("%s is not empty (%s), and no data directory: empty it, or name another one in postgres.data", dir, entries[0].Name())
		}
		return nil
	}
	made, err := readIncarnation(filepath.Join(dir, incarnationName))
	if err != nil || made == 0 && mayAdopt {
		return err
	}
	i := &Instance{cfg: cfg}
	if i.user, err = lookupUser(cfg.OSUser); err != nil {
		return err
	}
	id, err := i.SystemIdentifier(ctx)
	if err != nil {
		return err
	}
	return fmt.Errorf("%s (system identifier %s) was not made by this agent: move it away, or name another directory in postgres.data; this node then copies the primary's", dir, id)
}
