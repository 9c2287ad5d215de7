package catalog

import (
	"time"

	"github.com/hashicorp/raft"
)

// raftTransport is raft's own, but for messages that early.go changes, and for pipelines that end.
//
// raft 1.8.0 can wait in one for good. Its decoder ends when a follower refuses an entry, and nobody takes
// what comes after it; if the leader steps down or is shut down in that moment, pipelineReplicate may still send
// "up to this index" instead of seeing that the decoder has ended. AppendEntries then waits for
// a place that nobody makes free, closing the pipeline is left for when it returns, and Shutdown waits for
// both. TestLeaveOneByOne met it in one run of twenty.
type raftTransport struct {
	*raft.NetworkTransport
	rpcs <-chan raft.RPC // what other nodes ask, as raft is to see it
}

var (
	_ raft.Transport   = raftTransport{}
	_ raft.WithPreVote = raftTransport{}
	_ raft.WithClose   = raftTransport{}
)

// Consumer returns what other nodes ask of raft.
func (t raftTransport) Consumer() <-chan raft.RPC { return t.rpcs }

// AppendEntriesPipeline returns a pipeline whose AppendEntries ends.
func (t raftTransport) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	p, err := t.NetworkTransport.AppendEntriesPipeline(id, target)
	if err != nil {
		return nil, err
	}
	return pipeline{p}, nil
}

// pipelineLimit is more than AppendEntries waits where somebody makes places free: an answer that
// does not come within rpcTimeout makes one free, too.
const pipelineLimit = rpcTimeout + rpcTimeout/4

// pipeline closes itself when it has been stuck for pipelineLimit: raft then goes on without one.
type pipeline struct{ raft.AppendPipeline }

func (p pipeline) AppendEntries(req *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	stuck := time.AfterFunc(pipelineLimit, func() { _ = p.Close() })
	defer stuck.Stop()
	return p.AppendPipeline.AppendEntries(req, resp)
}
