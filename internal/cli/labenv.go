package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/holdfast-db/holdfast/internal/config"
	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/lab/place/local"
	"github.com/holdfast-db/holdfast/internal/measure"
	"github.com/holdfast-db/holdfast/internal/result"
)

func newLocalPlace(opt local.Options) func(context.Context) (place.Place, error) {
	return func(context.Context) (place.Place, error) { return local.New(opt) }
}

// environment is what the numbers of a run rest on.
func environment(ctx context.Context, env Env, binDir string, opt local.Options) map[string]string {
	dir := opt.WorkDir
	if dir == "" {
		dir = local.DefaultWorkDir
	}
	facts := measure.DiskFacts(existing(dir))
	e := map[string]string{
		"cpu": facts["cpu"], "cores": fmt.Sprint(runtime.NumCPU()), "kernel": facts["kernel"],
		"filesystem": facts["filesystem"] + " (under the simulated disks)", "holdfast": env.Version, "go": runtime.Version(),
		"place": "local: every host is a set of namespaces on this machine, every disk is simulated",
	}
	if out, err := exec.CommandContext(ctx, filepath.Join(binDir, "postgres"), "--version").Output(); err == nil {
		e["postgres"] = strings.TrimSpace(strings.TrimPrefix(string(out), "postgres (PostgreSQL)"))
	}
	if data, err := os.ReadFile("/proc/meminfo"); err == nil {
		var kb int64
		if _, err := fmt.Sscanf(string(data), "MemTotal: %d kB", &kb); err == nil {
			e["memory"] = fmt.Sprintf("%.1f GiB", float64(kb)/(1<<20))
		}
	}
	return e
}

// existing is dir or its nearest ancestor that exists.
func existing(dir string) string {
	for dir != "/" && dir != "." {
		if _, err := os.Stat(dir); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	return dir
}

// selftestPass is what is remembered of the last selftest that passed.
type selftestPass struct {
	Version string `json:"version"`
	At      string `json:"at"`
}

func selftestFile(env Env) string {
	dir := stateDir(env)
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, "selftest.json")
}

// selftestNote says when the lab's own test last passed on this version.
func selftestNote(env Env, study *config.Study) string {
	if study.Name == result.StudySelftest {
		return "this run"
	}
	var p selftestPass
	data, err := os.ReadFile(selftestFile(env))
	if err != nil || json.Unmarshal(data, &p) != nil || p.Version != env.Version {
		return "has not passed on this version here: run `holdfast lab run selftest`"
	}
	return "last passed on this version at " + p.At
}

// finishSelftest exits 0 when all liars were caught, 2 when one was not.
func finishSelftest(env Env, run *result.Run) error {
	_, missed := result.Selftest(run)
	if len(missed) > 0 {
		return infraError(fmt.Errorf("the selftest failed: %s was not caught, so no verdict of this lab can be trusted here", strings.Join(missed, " and ")))
	}
	if result.Exit(run) != result.Held {
		return verdictError(run)
	}
	if err := rememberSelftest(env); err != nil {
		fmt.Fprintf(env.Stderr, "holdfast: the selftest passed, but that cannot be remembered: %v\n", err)
	}
	return nil
}

func rememberSelftest(env Env) error {
	name := selftestFile(env)
	if name == "" {
		return errors.New("no home directory")
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	data, err := json.Marshal(selftestPass{Version: env.Version, At: time.Now().UTC().Format(time.RFC3339)})
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(data, '\n'), 0o644)
}
