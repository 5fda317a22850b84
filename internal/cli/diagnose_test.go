package cli

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/diagnose"
	"github.com/holdfast-db/holdfast/internal/pgbench/pgtest"
)

func TestDiagnose(t *testing.T) {
	s := pgtest.Start(t, "fsync=off")
	page := filepath.Join(t.TempDir(), "d.html")
	code, out, errs := runMeasure(t.Context(), "", "diagnose", s.DSN(), "--for", "1s", "--json", "--html", page)
	if code != exitOK || errs != "" {
		t.Fatalf("exit %d, %s", code, errs)
	}
	var d diagnose.Diagnosis
	if err := json.Unmarshal([]byte(out), &d); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if d.Schema != diagnose.Schema || d.Verdict.Cause != diagnose.CauseIdle || len(d.Symptoms) != 5 || d.Sampling.Samples < 10 {
		t.Errorf("%s", out)
	}
	if html, err := os.ReadFile(page); err != nil || !strings.Contains(string(html), "Five symptoms") {
		t.Errorf("%v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(page), ".holdfast-*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	code, out, errs = runMeasure(t.Context(), "", "diagnose", s.DSN(), "--for", "1s")
	for _, want := range []string{"Verdict: idle", "Five symptoms", "Its own cost", "clock source"} {
		if code != exitOK || !strings.Contains(out, want) {
			t.Errorf("exit %d, %s: no %q in\n%s", code, errs, want, out)
		}
	}
	// A watch goes on until it is interrupted, one line each, and that is its end.
	ctx, cancel := context.WithTimeout(t.Context(), 3500*time.Millisecond)
	defer cancel()
	code, out, errs = runMeasure(ctx, "", "diagnose", s.DSN(), "--for", "1s", "--watch", "--json")
	if n := strings.Count(out, "\n"); n < 2 || n != strings.Count(out, `"schema":1`) {
		t.Errorf("%d lines:\n%s", n, out)
	}
	if code != exitOK && code != exitInterrupted {
		t.Errorf("exit %d, %s", code, errs)
	}
	// Interrupted, it says what it has seen until then.
	ctx, cancel = context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	code, out, _ = runMeasure(ctx, "", "diagnose", s.DSN(), "--for", "1m")
	if code != exitInterrupted || !strings.Contains(out, "stopped before its time") {
		t.Errorf("exit %d\n%s", code, out)
	}
}

func TestDiagnoseRefusals(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		args []string
		code int
		say  string
	}{
		{[]string{"a", "b"}, exitUsage, "give one DSN, in quotes"},
		{[]string{"postgres://mona:geheimnis@h:port/"}, exitUsage, "connection settings are not usable"},
		{[]string{"host=/nowhere user=x password=geheimnis"}, exitInfra, "nobody listens there"},
		{[]string{"host=/nowhere", "--for", "0s"}, exitUsage, "from 1s to 1h"},
		{[]string{"host=/nowhere", "--for", "2h"}, exitUsage, "from 1s to 1h"},
		{[]string{"host=/nowhere", "--interval", "0"}, exitUsage, "--interval"},
		{[]string{"host=/nowhere", "--for", "1s", "--interval", "1s"}, exitUsage, "a tenth of --for"},
		{[]string{"host=/nowhere", "--html", filepath.Join(dir, "none", "x.html")}, exitUsage, "there is no directory"},
		{[]string{"host=/nowhere", "--html", dir}, exitUsage, "it is a directory"},
	} {
		code, out, errs := runMeasure(t.Context(), "", append([]string{"diagnose"}, c.args...)...)
		if code != c.code || !strings.Contains(errs, c.say) || out != "" || strings.Contains(errs, "geheimnis") {
			t.Errorf("%v: exit %d, %q, %q", c.args, code, out, errs)
		}
	}
}

// TestDiagnoseServerDies: the diagnosis until then is printed, and the exit
// code says that the server failed.
func TestDiagnoseServerDies(t *testing.T) {
	s := pgtest.Start(t, "fsync=off")
	time.AfterFunc(1500*time.Millisecond, s.Kill)
	code, out, errs := runMeasure(t.Context(), "", "diagnose", s.DSN(), "--for", "3s", "--interval", "20ms")
	if code != exitInfra || !strings.Contains(out, "died") || !strings.Contains(errs, "died") && !strings.Contains(errs, "nobody listens") {
		t.Errorf("exit %d\n%s\n%s", code, out, errs)
	}
}
