package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-db/holdfast/internal/result"
)

// TestWrongInput: one clear message and the right exit code each.
func TestWrongInput(t *testing.T) {
	b := newBench(t)
	good := "study: s\nsetups: [{setup: pg-single}]\nexperiments: [{experiment: commit}]\n"
	cases := map[string]struct {
		study string
		args  []string
		code  int
		says  []string
	}{
		"unknown study":           {args: []string{"lab", "run", "nosuch"}, code: 1, says: []string{"nosuch", "quick"}},
		"unknown key":             {study: strings.Replace(good, "setups:", "setup:", 1), args: []string{"lab", "run", "study.yaml"}, code: 1, says: []string{"study.yaml", "[2:1]", "setup"}},
		"unknown setup":           {study: strings.Replace(good, "pg-single", "pg-any2", 1), args: []string{"lab", "run", "study.yaml"}, code: 1, says: []string{"pg-any2"}},
		"unknown experiment":      {study: strings.Replace(good, "commit", "comit", 1), args: []string{"lab", "run", "study.yaml"}, code: 1, says: []string{"comit", "commit"}},
		"unknown disk":            {study: strings.Replace(good, "pg-single", "pg-single, disk: floppy", 1), args: []string{"lab", "run", "study.yaml"}, code: 1, says: []string{"floppy", "local-nvme"}},
		"not YAML":                {study: "{{{", args: []string{"lab", "run", "study.yaml"}, code: 1, says: []string{"study.yaml"}},
		"a folder for a study":    {args: []string{"lab", "run", "."}, code: 1, says: []string{"directory"}},
		"unknown flag":            {args: []string{"lab", "run", "--fast"}, code: 1, says: []string{"--fast"}},
		"two studies":             {args: []string{"lab", "run", "quick", "selftest"}, code: 1},
		"bad seed":                {args: []string{"lab", "run", "--seed", "x"}, code: 1, says: []string{"--seed"}},
		"bad repeat":              {args: []string{"lab", "run", "--repeat", "-1"}, code: 1, says: []string{"--repeat"}},
		"no repeat":               {args: []string{"lab", "run", "--repeat", "0"}, code: 1, says: []string{"--repeat"}},
		"unknown command":         {args: []string{"lba"}, code: 1, says: []string{"lba"}},
		"report without a folder": {args: []string{"lab", "report"}, code: 1, says: []string{"run folder"}},
		"report of nothing":       {args: []string{"lab", "report", "nowhere"}, code: 1, says: []string{"nowhere"}},
		"list of no folder":       {args: []string{"lab", "list", "nowhere"}, code: 1, says: []string{"nowhere"}},
		"recheck of nothing":      {args: []string{"lab", "recheck", "nowhere"}, code: 1, says: []string{"nowhere"}},
		"measure without a path":  {args: []string{"measure", "disk"}, code: 1, says: []string{"directory"}},
		"measure a file":          {args: []string{"measure", "disk", "holdfast"}, code: 1, says: []string{"holdfast"}},
		"no such control socket":  {args: []string{"simdisk", "stats", "nowhere.sock"}, code: 2, says: []string{"nowhere.sock"}},
		"unknown disk to mount":   {args: []string{"simdisk", "--disk", "floppy", "a", "b"}, code: 1, says: []string{"floppy", "local-nvme"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if c.study != "" {
				b.study(c.study)
			}
			o := b.run(c.args...)
			o.want(t, c.code, c.says...)
			if n := strings.Count(o.stderr, "\n"); n > 12 {
				t.Errorf("%d lines are not one clear message:\n%s", n, o.stderr)
			}
		})
	}
	if _, err := os.Stat(filepath.Join(b.dir, "holdfast-runs")); err == nil {
		t.Error("a refused run left a folder")
	}
}

// keep writes a run.json as a folder of its own.
func (b *bench) keep(name string, run any) string {
	b.t.Helper()
	dir := filepath.Join(b.dir, name)
	if err := os.MkdirAll(filepath.Join(dir, "histories"), 0o755); err != nil {
		b.t.Fatal(err)
	}
	data, err := json.Marshal(run)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "run.json"), data, 0o644); err != nil {
		b.t.Fatal(err)
	}
	return dir
}

// TestRunFolders: newer, truncated and occupied ones.
func TestRunFolders(t *testing.T) {
	b := newBench(t)
	b.keep("newer", map[string]any{"schema": 2, "study": "x", "cells": []any{}})
	for _, verb := range []string{"report", "recheck"} {
		b.run("lab", verb, "newer").want(t, 1, "schema 2", "newer holdfast")
	}
	dir := b.keep("cut", map[string]any{"schema": 1})
	if err := os.WriteFile(filepath.Join(dir, "run.json"), []byte(`{"schema":1,"study":"x","cel`), 0o644); err != nil {
		t.Fatal(err)
	}
	b.run("lab", "report", "cut").want(t, 1, "run.json")

	before, err := os.ReadFile(filepath.Join(b.dir, "newer", "run.json"))
	if err != nil {
		t.Fatal(err)
	}
	b.run("lab", "run", "quick", "--out", "newer").want(t, 4, "holds a run")
	after, err := os.ReadFile(filepath.Join(b.dir, "newer", "run.json"))
	if err != nil || string(after) != string(before) {
		t.Errorf("the run that was there was touched (%v)", err)
	}
}

// TestTruncatedHistory: evidence that is not whole leaves no verdict.
func TestTruncatedHistory(t *testing.T) {
	needLab(t)
	b := newBench(t)
	b.labRun(b.study(`
study: tiny
setups: [{setup: pg-single}]
experiments: [{experiment: power-off, seconds: 1, after: 1, rate: 100, repeat: 2}]
`)).want(t, 0)
	run := b.result()
	name := filepath.Join(b.dir, "out", run.Cells[0].History)
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for what, data := range map[string][]byte{
		"truncated":     whole[:len(whole)*2/3],
		"corrupt":       append(append([]byte{}, whole[:len(whole)/2]...), append([]byte{whole[len(whole)/2] ^ 0x55}, whole[len(whole)/2+1:]...)...),
		"not a history": []byte("hello"),
	} {
		if err := os.WriteFile(name, data, 0o644); err != nil {
			t.Fatal(err)
		}
		o := b.run("lab", "recheck", "out")
		o.want(t, 2, what, run.Cells[0].History)
		// The other one is judged all the same.
		if !strings.Contains(o.stdout, "DAMAGED") || !strings.Contains(o.stdout, run.Cells[1].History) {
			t.Errorf("after a history that is %s, recheck says\n%s", what, o.stdout)
		}
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	b.run("lab", "recheck", "out").want(t, 2, run.Cells[0].History)
	if err := os.WriteFile(name, whole, 0o644); err != nil {
		t.Fatal(err)
	}
	// A verdict that the evidence does not bear out is not believed.
	run.Cells[0].Metrics["lost"] = 3
	if err := result.Write(filepath.Join(b.dir, "out"), run); err != nil {
		t.Fatal(err)
	}
	b.run("lab", "recheck", "out").want(t, 2, "lost was 3 and is 0")
	run.Cells[0].Metrics["lost"] = 0
	run.Summary[0].Sentence = "Nothing was ever lost."
	if err := result.Write(filepath.Join(b.dir, "out"), run); err != nil {
		t.Fatal(err)
	}
	b.run("lab", "recheck", "out").want(t, 2, "the run's summary: it does not follow from the cells")
	b.clean()
}
