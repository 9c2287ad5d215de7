package catalog

import (
	"time"

	"github.com/hashicorp/raft"
)

// raftTransport is raft's own transport, with two changes: early.go changes messages, and pipelines
// end.
//
// raft 1.8.0 can wait in a pipeline for ever. Its decoder ends when a follower refuses an entry,
// and then nobody takes further answers. If the leader steps down or is shut down at that moment,
// pipelineReplicate may still send "up to this index" instead of seeing that the decoder has
// ended. AppendEntries then waits for a place that nobody frees, the pipeline is to be closed only
// when AppendEntries returns, and Shutdown waits for both. TestLeaveOneByOne met this in one run of
// twenty.
type raftTransport struct {
	*raft.NetworkTransport
	rpcs <-chan raft.RPC // requests of other nodes, as raft sees them
}

var (
	_ raft.Transport   = raftTransport{}
	_ raft.WithPreVote = raftTransport{}
	_ raft.WithClose   = raftTransport{}
)

// Consumer returns the requests that other nodes make of raft.
func (t raftTransport) Consumer() <-chan raft.RPC { return t.rpcs }

// AppendEntriesPipeline returns a pipeline whose AppendEntries ends.
func (t raftTransport) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	p, err := t.NetworkTransport.AppendEntriesPipeline(id, target)
	if err != nil {
		return nil, err
	}
	return pipeline{p}, nil
}

// pipelineLimit is longer than AppendEntries waits as long as places are freed: an answer that does
// not come within rpcTimeout frees one as well.
const pipelineLimit = rpcTimeout + rpcTimeout/4

// pipeline closes itself when it has been stuck for pipelineLimit; raft then goes on without one.
type pipeline struct{ raft.AppendPipeline }

func (p pipeline) AppendEntries(req *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	stuck := time.AfterFunc(pipelineLimit, func() { _ = p.Close() })
	defer stuck.Stop()
	return p.AppendPipeline.AppendEntries(req, resp)
}
