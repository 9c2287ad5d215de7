package catalog

import (
	"context"

	"github.com/hashicorp/raft"
)

// An entry is committed when a majority of the voters has it. raft's followers learn that from the
// leader one round later: they answer, the leader counts, and tells them with its next message. But
// where the leader and one follower are a majority, as among three voters, a follower that stores
// an entry from the leader can know it by itself. So early raises the commit index in the message
// that brings the entry, and raft applies the entry as soon as it has stored it: a change costs one
// round.
//
// This is raft's own rule, only counted elsewhere. The leader stores an entry before it sends it,
// and it counts by the newest configuration in its log. The follower knows that configuration when
// the message begins where its own log ends (logStore.follows). In other cases, and when the
// message brings another configuration, the leader counts.
//
// So a follower may have applied, and shown to its programs, an entry that the leader does not know
// to be committed yet. That is why reads ask for the end of the leader's log, and not for its
// commit index (Catalog.readIndex).

// enough reports whether entries that both the leader and the follower have are committed.
func enough(conf raft.Configuration, leader, follower raft.ServerID) bool {
	voters, have := 0, 0
	for _, s := range conf.Servers {
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		if s.ID == leader || s.ID == follower {
			have++
		}
	}
	return have > voters/2
}

// raise raises the commit index of a message to the follower self, if its entries will be committed
// once they are stored.
func raise(logs *logStore, self raft.ServerID, req *raft.AppendEntriesRequest) {
	n := len(req.Entries)
	if n == 0 || req.Entries[n-1].Term != req.Term {
		return
	}
	for _, e := range req.Entries {
		if e.Type == raft.LogConfiguration {
			return
		}
	}
	conf, ok := logs.follows(req.PrevLogEntry, req.PrevLogTerm)
	if ok && enough(conf, raft.ServerID(req.ID), self) {
		req.LeaderCommitIndex = max(req.LeaderCommitIndex, req.Entries[n-1].Index)
	}
}

// hearEarly passes the requests of other nodes on to raft, until ctx ends.
func hearEarly(ctx context.Context, from <-chan raft.RPC, to chan<- raft.RPC, logs *logStore, self raft.ServerID) {
	for {
		select {
		case rpc := <-from:
			if req, ok := rpc.Command.(*raft.AppendEntriesRequest); ok {
				raise(logs, self, req)
			}
			select {
			case to <- rpc:
			case <-ctx.Done():
				return
			}
		case <-ctx.Done():
			return
		}
	}
}
