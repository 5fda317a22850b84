package instance

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/holdfast-db/holdfast/internal/cluster"
	"github.com/holdfast-db/holdfast/internal/node/instance/wal"
)

// This file is restore_command: what a standby may take from elsewhere than its
// upstream. A segment is refused where the register's history has left its
// timeline before its end: a standby that replayed it would diverge.

const forksName = "forks"

// SetChain tells the register's history, as read linearizably. Until it is told,
// and after a reboot, nothing is restored.
func (i *Instance) SetChain(chain []cluster.Branch) error {
	if len(chain) == 0 {
		return nil
	}
	var b strings.Builder
	for _, x := range chain {
		fmt.Fprintf(&b, "%d %s\n", x.Timeline, wal.Text(x.Fork))
	}
	path := filepath.Join(i.cfg.RunDir, forksName)
	if have, err := os.ReadFile(path); err == nil && string(have) == b.String() {
		return nil
	}
	return i.writeVolatile(path, []byte(b.String()))
}

// readForks reads what SetChain wrote.
func readForks(text string) ([]cluster.Branch, error) {
	var chain []cluster.Branch
	for line := range strings.Lines(text) {
		var t uint32
		var at string
		if _, err := fmt.Sscan(line, &t, &at); err != nil {
			return nil, fmt.Errorf("the register's forks: %q: %w", line, err)
		}
		l, err := wal.ParseLSN(at)
		if err != nil {
			return nil, fmt.Errorf("the register's forks: %w", err)
		}
		chain = append(chain, cluster.Branch{Timeline: cluster.Timeline(t), Fork: l})
	}
	return chain, nil
}

// mayRestore says whether a file of WAL lies on the chain as a whole.
func mayRestore(chain []cluster.Branch, name string, size uint64) error {
	var t uint32
	if n, err := fmt.Sscanf(name, "%08X.history", &t); n == 1 && err == nil && wal.HistoryName(cluster.Timeline(t)) == name {
		for _, b := range chain {
			if b.Timeline == cluster.Timeline(t) {
				return nil
			}
		}
		return fmt.Errorf("timeline %d is not in the register's history", t)
	}
	s, ok := wal.ParseSegment(name, size)
	if !ok {
		return fmt.Errorf("%q is no WAL file that is kept", name)
	}
	for n, b := range chain {
		if b.Timeline != s.Timeline {
			continue
		}
		if n+1 < len(chain) && (s.Number+1)*size > uint64(chain[n+1].Fork) {
			return fmt.Errorf("%s goes beyond %s, where the register's history leaves timeline %d", name, wal.Text(chain[n+1].Fork), b.Timeline)
		}
		return nil
	}
	return fmt.Errorf("timeline %d is not in the register's history", s.Timeline)
}

// ErrNotRestored says that the file is not to be had, or must not be. Postgres goes on without it.
var ErrNotRestored = errors.New("not restored")

// Restore puts the WAL file called name to target, if the register's history has
// it and it was kept aside. It is what Postgres runs as restore_command.
func Restore(runDir, stateDir, name, target string) error {
	text, err := os.ReadFile(filepath.Join(runDir, forksName))
	if err != nil {
		return fmt.Errorf("%w: the register's history is not known yet", ErrNotRestored)
	}
	chain, err := readForks(string(text))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotRestored, err)
	}
	dirs, err := os.ReadDir(filepath.Join(stateDir, "aside"))
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNotRestored
	}
	if err != nil {
		return err
	}
	for n := len(dirs) - 1; n >= 0; n-- { // the latest first
		from := filepath.Join(stateDir, "aside", dirs[n].Name(), name)
		st, err := os.Stat(from)
		if err != nil {
			continue
		}
		if err := mayRestore(chain, name, uint64(st.Size())); err != nil {
			return fmt.Errorf("%w: %w", ErrNotRestored, err)
		}
		return copyFile(from, target)
	}
	return ErrNotRestored
}

// restoreCommand is the setting. It is empty unless something is kept aside that
// the register's history has: each look for more WAL, or for a newer timeline,
// runs it, and that is what a promotion waits for. It runs as Postgres's user,
// which can read the state directory only if that is the agent's user too.
func (i *Instance) restoreCommand() string {
	if i.cfg.Exe == "" || i.user.switches || !i.canRestore() {
		return ""
	}
	quote := func(s string) string {
		return "'" + strings.ReplaceAll(strings.ReplaceAll(s, "%", "%%"), "'", `'\''`) + "'"
	}
	return fmt.Sprintf(`%s wal-restore --run-dir %s --state-dir %s %%f "%%p"`, quote(i.cfg.Exe), quote(i.cfg.RunDir), quote(i.cfg.StateDir))
}

// canRestore says whether any segment that is kept aside may be restored.
func (i *Instance) canRestore() bool {
	text, err := os.ReadFile(filepath.Join(i.cfg.RunDir, forksName))
	if err != nil {
		return false
	}
	chain, err := readForks(string(text))
	if err != nil {
		return false
	}
	kept, err := filepath.Glob(filepath.Join(i.asideDir(), "*", "????????????????????????"))
	if err != nil {
		return false
	}
	return slices.ContainsFunc(kept, func(path string) bool {
		st, err := os.Stat(path)
		return err == nil && mayRestore(chain, filepath.Base(path), uint64(st.Size())) == nil
	})
}
