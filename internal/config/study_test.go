package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

const good = `
study: mine
setups:
  - setup: pg-any1
  - setup: pg-single
    disk: cloud-volume
experiments:
  - experiment: power-off
    repeat: 3
    seconds: 5
    lag_ms: [0, 1500]
`

func TestParseStudyDefaults(t *testing.T) {
	s, err := ParseStudy("mine.yaml", []byte(good))
	if err != nil {
		t.Fatal(err)
	}
	if s.Setups[0].Disk != "local-nvme" || s.Setups[1].Disk != "cloud-volume" || s.Experiments[0].Writers != 4 {
		t.Fatalf("defaults: %+v", s)
	}
}

func TestParseStudyErrors(t *testing.T) {
	cases := map[string]struct{ yaml, want string }{
		"unknown key names line and column": {strings.Replace(good, "repeat: 3", "repaet: 3", 1), "[9:5]"},
		"unknown key is named":              {strings.Replace(good, "repeat: 3", "repaet: 3", 1), "repaet"},
		"wrong type":                        {strings.Replace(good, "repeat: 3", "repeat: many", 1), "[9:13]"},
		"empty":                             {"", "empty"},
		"no setups":                         {"study: x\nexperiments: [{experiment: commit}]\n", "setups"},
		"no experiments":                    {"study: x\nsetups: [{setup: pg-single}]\n", "experiments"},
		"no name":                           {"setups: [{setup: pg-single}]\nexperiments: [{experiment: commit}]\n", "name"},
		"negative repeat":                   {strings.Replace(good, "repeat: 3", "repeat: -3", 1), "repeat"},
		"not a number":                      {strings.Replace(good, "seconds: 5", "seconds: .nan", 1), "seconds"},
		"setup twice":                       {strings.Replace(good, "setup: pg-single\n    disk: cloud-volume", "setup: pg-any1", 1), "twice"},
		"filter names a setup that is not":  {good + "    setups: [pg-async]\n", "pg-async"},
		"two documents":                     {good + "---\n" + good, "more than one"},
		"three standbys":                    {good + "    standbys: [3]\n", "standbys"},
		"no way":                            {good + "    ways: [sideways]\n", "ways"},
		"no order":                          {good + "    order: [alphabetic]\n", "order"},
		"held for no time":                  {good + "    hold: -1\n", "hold"},
		"reads only":                        {good + "    reads: 1\n", "reads"},
		"never in a load":                   {good + "    repeat_in_load: -1\n", "repeat_in_load"},
		"slash in the name":                 {strings.Replace(good, "mine", "../mine", 1), "slash"},
		"out of range is placed":            {strings.Replace(good, "repeat: 3", "repeat: 99999", 1), "[9:13] experiments[0].repeat: 99999 is not between"},
		"an item of a list is placed":       {strings.Replace(good, "1500", "-1", 1), "[11:17] experiments[0].lag_ms[1]: -1"},
		"a filter is placed":                {good + "    disks: [floppy]\n", "[12:13] experiments[0].disks[0]"},
		"what is left out is placed":        {"study: x\nsetups: [{setup: pg-single}]\nexperiments:\n  - repeat: 2\n", "[4:5] experiments[0]: `experiment:` is missing"},
		"flush of no time":                  {good + "    flush_times: [0]\n", "flush_times[0]"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := ParseStudy("f.yaml", []byte(c.yaml))
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "f.yaml: ") {
				t.Fatalf("want an error of f.yaml with %q, have: %v", c.want, err)
			}
		})
	}
}

// TestUnused: what a study says and an experiment does not use is refused, and
// a study that was kept can be read again.
func TestUnused(t *testing.T) {
	s, err := ParseStudy("f.yaml", []byte(good))
	if err != nil {
		t.Fatal(err)
	}
	used := []string{"experiment", "repeat", "seconds"}
	if err := s.Unused(0, used); err == nil || !strings.HasPrefix(err.Error(), "f.yaml: [11:13] experiments[0].lag_ms: ") {
		t.Errorf("an unused key: %v", err)
	}
	var b strings.Builder
	if err := s.Encode(&b, func(string) []string { return append(used, "lag_ms") }); err != nil {
		t.Fatal(err)
	}
	again, err := ParseStudy("kept.yaml", []byte(b.String()))
	if err != nil {
		t.Fatalf("%v\n%s", err, b.String())
	}
	if err := again.Unused(0, append(used, "lag_ms")); err != nil {
		t.Error(err)
	}
	again.source, s.source = nil, nil
	if !reflect.DeepEqual(s, again) {
		t.Errorf("%+v is kept as %+v", s, again)
	}
}

func FuzzParseStudy(f *testing.F) {
	f.Add([]byte(good))
	files, err := filepath.Glob("../lab/studies/*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatalf("the built-in studies: %v, %v", files, err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("study: x\nsetups: &s [{setup: pg-single, volume: instance, crash: random-sectors}]\nexperiments: [{experiment: commit, clients: [1, 2], via: tcp, rate: .inf}]\n"))
	f.Add([]byte("study: x\nsetups: [*a]\n--- !!binary {}\n"))
	f.Add([]byte("study: [}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := ParseStudy("f", data)
		if (s == nil) == (err == nil) {
			t.Fatal("neither a study nor an error, or both")
		}
	})
}
