package node

import (
	"context"

	"github.com/holdfast-db/holdfast/internal/node/instance"
)

// CheckHost looks for what would keep this node's Postgres from working here, and
// touches nothing.
func CheckHost(ctx context.Context, o Options) []instance.Refusal {
	c := o.Config
	self, ok := c.Self()
	if !ok || self.Witness {
		return nil
	}
	host, port := splitAddress(self.Postgres)
	return instance.CheckHost(ctx, instance.Config{BinDir: o.BinDir, DataDir: c.Postgres.Data, Address: host, Port: port, OSUser: o.OSUser,
		Settings: c.Postgres.Settings, HBA: c.Postgres.HBA})
}
