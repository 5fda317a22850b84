package result_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/holdfast-db/holdfast/internal/result"
	"github.com/holdfast-db/holdfast/internal/result/resulttest"
)

const tiny = `{"schema":1,"study":"quick","seed":1,"started":"2026-03-14T09:26:53Z","command":"holdfast lab run","simulated":true,
"environment":{},"cells":[{"setup":"pg-single","experiment":"commit","params":{"disk":"local-nvme"},"repetition":1,
"silent":false,"simulated":true,"metrics":{"tps":1},"verdict":"held","started_s":0}]}`

func TestWriteThenRead(t *testing.T) {
	dir := t.TempDir()
	run := resulttest.Sample(7, 3)
	if err := result.Write(dir, run); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, filepath.Join(dir, "run.json")} {
		got, err := result.Read(path)
		if err != nil {
			t.Fatal(err)
		}
		a, err := json.Marshal(run)
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a, b) {
			t.Errorf("read from %s is not what was written", path)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
	info, err := entries[0].Info()
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o644 {
		t.Errorf("mode %v, others cannot read it", info.Mode())
	}
}

func TestEncodeIsStableAndPlainJSON(t *testing.T) {
	run := resulttest.Sample(7, 2)
	run.Command = "a && b < c"
	a, err := result.Encode(run)
	if err != nil {
		t.Fatal(err)
	}
	b, err := result.Encode(run)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, b) {
		t.Error("two encodings of one run differ")
	}
	if !bytes.Contains(a, []byte("a && b < c")) {
		t.Error("the command is escaped beyond recognition")
	}
	// The encoder writes the struct by hand: it must hold exactly its fields.
	var ours, std map[string]any
	plain, err := json.Marshal(run)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(a, &ours); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(plain, &std); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(ours, std) {
		t.Error("Encode and encoding/json disagree on the contents")
	}
	if got, want := bytes.Count(a, []byte("\n  {\"setup\"")), len(run.Cells); got != want {
		t.Errorf("%d lines hold a cell, want %d", got, want)
	}
}

func TestWriteKeepsTheFormerRun(t *testing.T) {
	dir := t.TempDir()
	good := resulttest.Sample(1, 1)
	if err := result.Write(dir, good); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(result.File(dir))
	if err != nil {
		t.Fatal(err)
	}
	bad := resulttest.Sample(1, 1)
	bad.Cells[0].Metrics["tps"] = math.NaN()
	if err := result.Write(dir, bad); err == nil {
		t.Fatal("a NaN was written")
	}
	after, err := os.ReadFile(result.File(dir))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(before, after) {
		t.Error("a refused write changed the file")
	}
	if err := result.Write(filepath.Join(dir, "missing"), good); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("into a missing folder: %v", err)
	}
	if err := result.Write(dir, nil); err == nil {
		t.Error("no run was written")
	}
}

// TestWriteOntoAFolder checks the failure after the temporary file exists.
func TestWriteCleansUp(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "run.json", "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := result.Write(dir, resulttest.Sample(1, 1)); err == nil {
		t.Fatal("a folder named run.json was replaced")
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
}

func TestReadSaysWhatIsWrong(t *testing.T) {
	tests := []struct{ name, data, want string }{
		{"newer", `{"schema":2,"cells":"other"}`, "has schema 2, this holdfast reads up to 1: use a newer holdfast"},
		{"no schema", `{"study":"x"}`, `there is no "schema"`},
		{"schema 0", `{"schema":0}`, "schema 0 never existed"},
		{"empty", "", "the file is empty"},
		{"truncated", tiny[:200], "run.json is truncated: it ends at byte 200 (line 2)"},
		{"not JSON", "{\n \"schema\": 1,\n oops}", "line 3, column 2): this is not JSON"},
		{"trailing", tiny + "}", "this is not JSON"},
		{"a list", "[]", "a array does not belong here"},
		{"wrong type", strings.Replace(tiny, `"tps":1`, `"tps":"fast"`, 1), `is a string where a number belongs`},
		{"negative seed", strings.Replace(tiny, `"seed":1`, `"seed":-1`, 1), "a whole number of at least 0"},
		{"null metric", strings.Replace(tiny, `"tps":1`, `"tps":null`, 1), "cells[0].metrics.tps is null: what was not measured must be absent"},
		{"unknown verdict", strings.Replace(tiny, `"held"`, `"fine"`, 1), `cells[0].verdict (pg-single commit) is "fine"`},
		{"negative count", strings.Replace(tiny, `"tps":1`, `"lost":-4`, 1), "is -4: a count cannot be negative"},
		{"huge number", strings.Replace(tiny, `"tps":1`, `"tps":1e999`, 1), `where a number belongs`},
		{"bad time", strings.Replace(tiny, `2026-03-14T09:26:53Z`, `yesterday`, 1), `started is "yesterday"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "run.json")
			if err := os.WriteFile(file, []byte(tt.data), 0o600); err != nil {
				t.Fatal(err)
			}
			run, err := result.Read(dir)
			if err == nil || run != nil {
				t.Fatalf("read it: %v", run)
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %q\nwants %q", err, tt.want)
			}
			if !strings.Contains(err.Error(), file) {
				t.Errorf("error %q does not name the file", err)
			}
		})
	}
	var se *result.SchemaError
	if _, err := result.Decode([]byte(`{"schema":9}`)); !errors.As(err, &se) || se.Schema != 9 || se.Supported != result.Schema {
		t.Errorf("a newer schema gives %v", err)
	}
	if _, err := result.Read(t.TempDir()); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "not the folder of a run") {
		t.Errorf("an empty folder gives %v", err)
	}
}

// TestEveryTruncation cuts a run at each byte: it must never read as whole.
func TestEveryTruncation(t *testing.T) {
	whole := strings.TrimSpace(tiny)
	for n := range len(whole) {
		run, err := result.Decode([]byte(whole[:n]))
		if err == nil {
			t.Fatalf("cut at byte %d, it reads as a whole run: %+v", n, run)
		}
		var fe *result.FormatError
		if !errors.As(err, &fe) || n > 0 && !fe.Truncated {
			t.Fatalf("cut at byte %d: %v", n, err)
		}
	}
}

// TestPublishedSchemas reads a run of every schema that was ever written.
func TestPublishedSchemas(t *testing.T) {
	files, err := filepath.Glob("testdata/run-schema*.json")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < result.Schema {
		t.Fatalf("%d files for %d schemas: each schema needs one in testdata", len(files), result.Schema)
	}
	for _, f := range files {
		run, err := result.Read(f)
		if err != nil {
			t.Errorf("%s: %v", f, err)
			continue
		}
		if len(run.Cells) == 0 || len(run.Summary) == 0 || run.Cells[0].Params["disk"] == nil {
			t.Errorf("%s: its contents were not read", f)
		}
	}
}

func TestUnknownFieldsAreIgnored(t *testing.T) {
	if _, err := result.Decode([]byte(strings.Replace(tiny, `"seed":1`, `"seed":1,"later":{"a":[1]}`, 1))); err != nil {
		t.Error(err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(tiny))
	f.Add([]byte(`{"schema":2}`))
	f.Add([]byte(tiny[:100]))
	f.Add([]byte(strings.Replace(tiny, `"tps":1`, `"tps":null`, 1)))
	if data, err := result.Encode(resulttest.Sample(3, 1)); err == nil {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		run, err := result.Decode(data)
		if err != nil {
			if err.Error() == "" || run != nil {
				t.Fatalf("run %v with error %q", run, err)
			}
			return
		}
		again, err := result.Encode(run)
		if err != nil {
			t.Fatalf("read but cannot be written: %v", err)
		}
		back, err := result.Decode(again)
		if err != nil {
			t.Fatalf("written but cannot be read: %v", err)
		}
		third, err := result.Encode(back)
		if err != nil || !bytes.Equal(again, third) {
			t.Fatalf("does not settle: %v", err)
		}
		result.Summarise(run)
		result.Exit(run)
	})
}
