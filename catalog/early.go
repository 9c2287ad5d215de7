package catalog

import (
	"context"

	"github.com/hashicorp/raft"
)

// An entry is committed when a majority of the voters has it. raft's followers learn that from the
// leader one round later: they answer, the leader counts, and tells them with its next
// message. But where the leader and one follower are a majority, as among three voters, a
// follower that stores an entry of the leader knows it by itself. So early raises the commit index in the
// message that brings the entry, and raft applies the entry as soon as it has stored it: a change costs one round.
//
// It is raft's own rule, counted elsewhere: the leader stores an entry before it sends it, and it counts by the
// newest configuration in its log. The follower knows that one when the message begins
// where its own log ends (logStore.follows). Otherwise, and when the message brings another configuration, the leader counts.
//
// So a follower may have applied, and told its programs of, what the leader does not know to be committed yet.
// That is why reads ask for the end of the leader's log, and not for its commit index (Catalog.readIndex).

// enough reports whether what the leader and the follower have is committed.
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

// raise raises the commit index of a message to the follower self, if its entries are committed once
// they are stored.
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

// hearEarly passes on to raft what other nodes ask of it, until ctx ends.
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
