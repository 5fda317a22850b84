package instance

import (
	"context"
	"errors"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// Problem is one setting that is refused.
type Problem struct{ Name, Why, Fix string }

var errNotBuilt = errors.New("not built yet")

// CheckSettings returns what is wrong with the user's own settings.
func CheckSettings(map[string]string) []Problem { return nil }

// Create makes a new, empty data directory.
func (i *Instance) Create(context.Context) (cluster.Incarnation, error) { return 0, errNotBuilt }

// Adopt takes an existing, stopped data directory over.
func (i *Instance) Adopt(context.Context) (cluster.Incarnation, error) { return 0, errNotBuilt }

// Issue returns what node needs to stream from this instance.
func (i *Instance) Issue(cluster.NodeID) (Credential, error) { return Credential{}, errNotBuilt }

// Watch tells what is seen, until ctx ends.
func (i *Instance) Watch(ctx context.Context, _ func(cluster.Event)) { <-ctx.Done() }
