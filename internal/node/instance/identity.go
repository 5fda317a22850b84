package instance

import (
	"context"
	"fmt"
	"strconv"

	"github.com/holdfast-db/holdfast/internal/cluster"
	"github.com/holdfast-db/holdfast/internal/node/instance/wal"
)

// Identity is what makes a data directory one of a cluster: Postgres's system
// identifier, and its history up to now.
func (i *Instance) Identity(context.Context) (system string, history []cluster.Branch, err error) {
	r, err := wal.Inspect(i.cfg.DataDir, wal.Options{})
	if err != nil {
		return "", nil, fmt.Errorf("read what %s is: %w", i.cfg.DataDir, err)
	}
	return strconv.FormatUint(r.System, 10), r.History, nil
}
