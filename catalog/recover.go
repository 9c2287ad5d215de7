package catalog

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"

	"github.com/hashicorp/raft"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// When a majority of the voters has died, nobody can decide anything any more. A node that is left can be made a cluster of its own, by
// order of a person: only a person knows that the others are dead and not behind a cut cable. The new cluster begins with all that this node knows: what it has
// applied, and also the rest of its log, because the old cluster may have committed it. A command in its log marks each of the others as gone (goneOp).
//
// It has another id, another authority and other keys of gossip, so a member of the old cluster that comes back is refused: the two never merge.

// raftVersion is that of the snapshots that raft makes.
const raftVersion = raft.SnapshotVersionMax

// NoMajority returns nil if the cluster of this node has no majority of its voters any more, as far as this node can tell: until the deadline of ctx no leader
// that has a majority has answered. Any other error says nothing of the cluster.
func (c *Catalog) NoMajority(ctx context.Context) error {
	var err error
	if _, sole := c.soleIndex(); !sole {
		_, err = c.sharedIndex(ctx) // not ask: a node that is slow to apply what a majority has decided has one
	}
	switch {
	case err == nil:
		id := c.Leader()
		m, _ := c.Current().Member(id)
		return errs.E(errs.Busy, "recover", "the cluster works: node %s (%s) leads it", m.Name, id)
	case c.signs.out():
		return errs.E(errs.Busy, "recover", "this node was evicted, by a majority that works")
	case c.life.Err() == nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return nil
	}
	return named("recover", err)
}

// Recover makes this node, whose catalog is new, the only member of a new cluster that has the state of former: the catalog of this node before, which
// has been closed. keys are those of the new cluster, nil if it does not encrypt. It returns when all other members are marked as gone.
func (c *Catalog) Recover(ctx context.Context, former *Catalog, keys *dsm.Trust) error {
	s, err := former.final()
	if err != nil {
		return err
	}
	if err := s.found(c.self, dsm.ClusterID(rand.Uint64()|1), keys); err != nil {
		return err
	}
	b, err := s.image().encode()
	if err != nil {
		return err
	}
	c.belong(s.view.Cluster)
	if err := c.begin(ctx); err != nil {
		return err
	}
	meta := &raft.SnapshotMeta{Version: raftVersion, Index: s.applied, Size: int64(len(b))}
	if err := c.raft.Restore(meta, bytes.NewReader(b), rpcTimeout); err != nil {
		return errs.E(errs.Other, "recover", "%w", err)
	}
	for _, m := range present(s.view) {
		if m.ID == c.self.ID {
			continue
		}
		if _, err := c.propose(ctx, goneOp{Node: m.ID, Inc: m.Inc}); err != nil {
			return named("recover", err)
		}
	}
	return nil
}

// final returns a copy of the state of a catalog that has been closed, with the commands in its log that it has not applied.
func (c *Catalog) final() (*state, error) {
	c.mu.RLock()
	img := c.mu.state.image()
	c.mu.RUnlock()
	b, err := img.encode()
	if err != nil {
		return nil, err
	}
	s, err := restore(b)
	if err != nil {
		return nil, err
	}
	last, err := c.logs.LastIndex()
	if err != nil {
		return nil, err
	}
	for i := s.applied + 1; i <= last; i++ {
		var l raft.Log
		if err := c.logs.GetLog(i, &l); err != nil {
			return nil, errs.E(errs.Corrupt, "recover", "entry %d of the log: %w", i, err)
		}
		if l.Type != raft.LogCommand {
			continue
		}
		s.term = l.Term
		if _, err := s.apply(l.Index, l.Data); err != nil {
			c.log.Error("the catalog's log has an entry that is no command", "index", l.Index, "err", err)
		}
	}
	return s, nil
}

// found makes the state that of another cluster, in which self, a member of this one, is a new incarnation and the only voter.
func (s *state) found(self dsm.Member, id dsm.ClusterID, keys *dsm.Trust) error {
	i := slices.IndexFunc(s.view.Members, func(m dsm.Member) bool { return m.ID == self.ID })
	if i < 0 {
		return errs.E(errs.Invalid, "recover", "this node is no member of the cluster, and does not have its state")
	}
	if s.view.Trust != nil && keys == nil {
		return errs.E(errs.Invalid, "recover", "the cluster encrypts, and there are no keys")
	}
	v := s.view.Clone()
	v.Epoch++
	v.Cluster = id
	if v.Trust != nil {
		v.Trust = keys
	}
	for j := range v.Members {
		v.Members[j].Voter = false
	}
	for _, row := range v.Rows() { // the others are given up one after the other, and none of them is to take over from another
		row.KeepBackups(func(b dsm.Backup) bool { return b.Node == self.ID })
	}
	m := &v.Members[i]
	m.Inc, m.Voter, m.Leaving, m.Gone = self.Inc, true, false, false
	s.view = v
	clear(s.evicted)
	delete(s.sessions, self.ID) // a catalog that is new numbers its commands anew
	return nil
}
