package local

import (
	"log/slog"
	"os"
	"testing"

	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/lab/place/placetest"
	"github.com/holdfast-db/holdfast/internal/testbin"
)

func TestMain(m *testing.M) { placetest.Main(m) }

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make namespaces and mount disks")
	}
}

// openLab makes a place whose backing images go into a directory of the test.
func openLab(t *testing.T) place.Place {
	t.Helper()
	needRoot(t)
	p, err := New(Options{
		Binary:  testbin.Build(t),
		WorkDir: t.TempDir(),
		Log:     slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestConformance(t *testing.T) {
	needRoot(t)
	placetest.Run(t, placetest.Options{Open: openLab, Disk: "local-nvme"})
}
