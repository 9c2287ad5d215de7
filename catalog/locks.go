package catalog

import (
	"context"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/locks"
)

// The locks of files are a book in the state machine. The Observer tells the nodes the effects of a
// command on it, because a request that waits is answered long after its command.

type (
	askLockOp struct {
		Ino     dsm.Ino
		Request locks.Request
	}
	surrenderLocksOp struct {
		Ino     dsm.Ino
		Term    uint64
		Granted []locks.Lock
		Waiting []locks.Request
	}
	cancelLockOp struct {
		Ino    dsm.Ino
		Ticket uint64
	}
)

func (o askLockOp) apply(s *state, st step) (dsm.Inode, error) {
	in, err := s.get(o.Ino)
	if err != nil {
		return dsm.Inode{}, err
	}
	if in.Kind != dsm.KindFile {
		return dsm.Inode{}, fail(errs.Unsupported, "locks of inode %d, which is no file", o.Ino)
	}
	return s.lock(s.book.Ask(o.Ino, st.node, o.Request, st.yield))
}

func (o surrenderLocksOp) apply(s *state, st step) (dsm.Inode, error) {
	return s.lock(s.book.Surrender(o.Ino, st.node, o.Term, o.Granted, o.Waiting))
}

func (o cancelLockOp) apply(s *state, st step) (dsm.Inode, error) {
	return s.lock(s.book.Cancel(o.Ino, st.node, o.Ticket), nil)
}

func (s *state) lock(events []locks.Event, err error) (dsm.Inode, error) {
	s.effects.locks = append(s.effects.locks, events...)
	if err != nil {
		err = fail(errs.Invalid, "%w", err)
	}
	return dsm.Inode{}, err
}

var _ locks.Cluster = (*Catalog)(nil)

// AskLock requests a lock of a file. The answer comes as an event.
func (c *Catalog) AskLock(ctx context.Context, ino dsm.Ino, r locks.Request) error {
	_, err := c.propose(ctx, askLockOp{ino, r})
	return err
}

// SurrenderLocks ends the delegation of a file to this node, if it is of that term.
func (c *Catalog) SurrenderLocks(ctx context.Context, ino dsm.Ino, term uint64, granted []locks.Lock, waiting []locks.Request) error {
	_, err := c.propose(ctx, surrenderLocksOp{ino, term, granted, waiting})
	return err
}

// CancelLock ends a request that waits.
func (c *Catalog) CancelLock(ctx context.Context, ino dsm.Ino, ticket uint64) error {
	_, err := c.propose(ctx, cancelLockOp{ino, ticket})
	return err
}

// LockStanding returns the state of a file's locks for this node, as of the last command that it
// has applied.
func (c *Catalog) LockStanding(ino dsm.Ino) locks.Standing {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.mu.state.book.Standing(ino, c.self.ID)
}

// GrantedLocks returns the locks of a file that programs of this node have, if the file is not delegated to it, as of the last command that this node has
// applied.
func (c *Catalog) GrantedLocks(ino dsm.Ino) []locks.Lock {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.mu.state.book.Has(ino, c.self.ID)
}

// LockedFiles returns the files of which GrantedLocks returns some.
func (c *Catalog) LockedFiles() []dsm.Ino {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.mu.state.book.FilesWithLocks(c.self.ID)
}

// DelegatedLocks returns the files whose locks are delegated to this node, as of the last command
// that it has applied.
func (c *Catalog) DelegatedLocks() []dsm.Ino {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.mu.state.book.Delegated(c.self.ID)
}
