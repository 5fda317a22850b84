package quorum

import "context"

// ConfirmTerm is what a read asks the voters.
func (n *Node) ConfirmTerm(ctx context.Context, term uint64) error { return n.confirmTerm(ctx, term) }
