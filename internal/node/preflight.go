package node

import (
	"context"
	"fmt"
	"slices"

	"github.com/holdfast-db/holdfast/internal/config"
	"github.com/holdfast-db/holdfast/internal/node/instance"
)

// CheckDirectory refuses a data directory that is not this node's, and touches
// nothing.
func CheckDirectory(ctx context.Context, o Options) error {
	a := &agent{o: o, c: o.Config}
	if a.member, _ = o.Config.Self(); a.member.Witness {
		return nil
	}
	if err := instance.CheckDirectory(ctx, a.instanceConfig(), firstOf(o.Config) == o.Config.Node); err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return nil
}

// firstOf is the node that makes the cluster's first data directory.
func firstOf(c *config.Node) string {
	i := slices.IndexFunc(c.Members, func(m config.Member) bool { return !m.Witness && !m.Reader })
	if i < 0 {
		return ""
	}
	return c.Members[i].Name
}
