package catalog

import (
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"
)

// stuckPipeline is raft's pipeline when nobody takes answers any more.
type stuckPipeline struct{ closed chan struct{} }

func (p stuckPipeline) AppendEntries(*raft.AppendEntriesRequest, *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	<-p.closed
	return nil, raft.ErrPipelineShutdown
}

func (p stuckPipeline) Consumer() <-chan raft.AppendFuture { return nil }

func (p stuckPipeline) Close() error {
	close(p.closed)
	return nil
}

// TestStuckPipelineEnds: else the shutdown of the node waits for it for good.
func TestStuckPipelineEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pipeline{stuckPipeline{make(chan struct{})}}
		if _, err := p.AppendEntries(nil, nil); err == nil {
			t.Error("an entry was sent through a pipeline that is stuck")
		}
	})
}
