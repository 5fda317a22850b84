package lab

import (
	"embed"
	"io/fs"
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

// Check holds a study's names against what there is.
func Check(s *config.Study) error {
	for _, p := range s.Setups {
		if _, err := setup.Find(p.Setup); err != nil {
			return err
		}
		if _, err := disk.ByName(p.Disk); err != nil {
			return err
		}
	}
	for _, e := range s.Experiments {
		if _, err := experiment.Find(e.Experiment); err != nil {
			return err
		}
	}
	return nil
}
