package catalog

import (
	"context"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/trust"
)

// trustOp replaces the keys and tokens of the cluster: Serial is one more than before.
type trustOp struct{ Trust dsm.Trust }

func (o trustOp) apply(s *state, _ step) (dsm.Inode, error) {
	before := s.view.Trust
	if before == nil {
		return dsm.Inode{}, errNoTrust()
	}
	next := o.Trust
	if next.Serial != before.Serial+1 || len(next.CA) == 0 || len(next.Gossip) == 0 {
		return dsm.Inode{}, fail(errs.Busy, "somebody else has changed the keys at this moment")
	}
	next.Left = nil // certificates of another authority are worth nothing anyway
	if string(next.CA) == string(before.CA) {
		next.Left = before.Left
	}
	s.reviewed(func(v *dsm.View) { v.Trust = &next })
	return dsm.Inode{}, nil
}

func errNoTrust() error {
	return errs.E(errs.Invalid, "", "the cluster was started with --insecure: it has no tokens")
}

// depart records that a node is not a member any more: its certificate may still be valid.
func depart(v *dsm.View, st step, id dsm.NodeID, key dsm.NodeKey, gone bool) {
	if v.Trust == nil {
		return
	}
	next := *v.Trust
	next.Left = append(trust.Prune(next.Left, st.now), dsm.Departed{ID: id, At: st.now.Unix(), Gone: gone, Key: key})
	v.Trust = &next
}

// trusts returns why the keys of m do not go with those of the cluster, or nil.
func (s *state) trusts(m dsm.Member) error {
	t, none := s.view.Trust, dsm.NodeKey{}
	switch {
	case t == nil && m.Key != none:
		return fail(errs.Invalid, "the cluster was started with --insecure: it does not encrypt, and joins with --insecure only")
	case t == nil:
		return nil
	case m.Key == none:
		return fail(errs.Invalid, "the cluster encrypts: join it without --insecure")
	}
	for _, d := range t.Left {
		if d.ID == m.ID && (!d.Gone || d.Key != m.Key) {
			return fail(errs.Access, "node %s was a member before, and its id comes back only with its key, and if it did not leave", m.ID)
		}
	}
	return nil
}

// Trust returns the keys and tokens as they are at the time of the call; nil and no error: the
// cluster does not encrypt.
func (c *Catalog) Trust(ctx context.Context) (t *dsm.Trust, err error) {
	err = c.readAfter(ctx, "read the keys", c.ask, func(s *state) error {
		t = s.view.Trust
		return nil
	})
	return t, err
}

// ChangeTrust replaces the keys and tokens by what change makes of them. It may call change again,
// if others change them at the same time.
func (c *Catalog) ChangeTrust(ctx context.Context, change func(*dsm.Trust) (*dsm.Trust, error)) (*dsm.Trust, error) {
	for {
		before, err := c.Trust(ctx)
		if err != nil {
			return nil, err
		}
		if before == nil {
			return nil, named("change the keys", errNoTrust())
		}
		made, err := change(before)
		if err != nil {
			return nil, err
		}
		next := *made
		next.Serial = before.Serial + 1
		_, err = c.propose(ctx, trustOp{next})
		if err == nil {
			return &next, nil
		}
		if !errs.Is(err, errs.Busy) {
			return nil, err
		}
	}
}

const (
	// keysFor is how long a key of gossip is in use. A node that is cut off for longer than two of
	// these may have none that the others have; the catalog brings them.
	keysFor = 24 * time.Hour
	// lookAtKeys is how often the leader looks.
	lookAtKeys = 10 * time.Minute
)

// turnKeys takes the next key of gossip into use every keysFor. It returns when ctx ends.
func (c *Catalog) turnKeys(ctx context.Context) {
	look := time.NewTicker(lookAtKeys)
	defer look.Stop()
	for {
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
		if t := c.Current().Trust; t == nil || time.Since(time.Unix(t.Turned, 0)) < keysFor {
			continue
		}
		if _, err := c.ChangeTrust(ctx, func(t *dsm.Trust) (*dsm.Trust, error) { return trust.Turn(t, time.Now()), nil }); err != nil {
			c.log.Warn("the next key of gossip", "err", err)
		}
	}
}
