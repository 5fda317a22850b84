package instance

import "context"

// Probe is one write probe.
func (i *Instance) Probe(ctx context.Context) bool { return i.probe(ctx) }
