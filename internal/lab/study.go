package lab

import (
	"embed"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/holdfast-db/holdfast/internal/config"
	"github.com/holdfast-db/holdfast/internal/disk"
	"github.com/holdfast-db/holdfast/internal/lab/experiment"
	"github.com/holdfast-db/holdfast/internal/lab/setup"
)

//go:embed studies/*.yaml
var builtins embed.FS

// Builtins names the built-in studies.
func Builtins() []string {
	files, err := fs.Glob(builtins, "studies/*.yaml")
	if err != nil {
		panic(err) // the pattern is a constant
	}
	names := make([]string, len(files))
	for i, f := range files {
		names[i] = strings.TrimSuffix(strings.TrimPrefix(f, "studies/"), ".yaml")
	}
	return names
}

// Builtin returns a built-in study's YAML.
func Builtin(name string) ([]byte, bool) {
	data, err := builtins.ReadFile("studies/" + name + ".yaml")
	return data, err == nil
}

// Check holds a study's names and keys against what there is. Its errors say
// where in the study's file.
func Check(s *config.Study) error {
	aa := -1
	for i, p := range s.Setups {
		if _, err := setup.Find(p.Setup); err != nil {
			return s.At(fmt.Sprintf("setups[%d].setup", i), err)
		}
		if _, err := disk.ByName(p.Disk); err != nil {
			return s.At(fmt.Sprintf("setups[%d].disk", i), err)
		}
		if p.AA {
			aa = i
		}
	}
	for i, e := range s.Experiments {
		if _, err := experiment.Find(e.Experiment); err != nil {
			return s.At(fmt.Sprintf("experiments[%d].experiment", i), err)
		}
		if err := s.Unused(i, experiment.Keys(e.Experiment)); err != nil {
			return err
		}
	}
	if aa >= 0 && !slices.ContainsFunc(s.Experiments, func(e config.Experiment) bool { return e.Experiment == pairedExperiment }) {
		return s.At(fmt.Sprintf("setups[%d].aa", aa), fmt.Errorf("pairs are made of the experiment %s, and the study has none", pairedExperiment))
	}
	return nil
}

// Installed names a program that one of the study's setups needs and this machine lacks.
func Installed(s *config.Study) error {
	for _, p := range s.Setups {
		k, err := setup.Find(p.Setup)
		if err == nil {
			err = k.Missing()
		}
		if err != nil {
			return err
		}
	}
	return nil
}
