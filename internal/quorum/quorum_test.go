package quorum_test

import (
	"testing"

	"github.com/holdfast-db/holdfast/internal/quorum"
	"github.com/holdfast-db/holdfast/internal/quorum/quorumtest"
)

func TestRaft(t *testing.T) {
	quorumtest.Run(t, func(t testing.TB, founders, others int) quorumtest.Cluster {
		return quorumtest.NewNodes(t, founders, others, quorum.FastTimers())
	})
}
