package catalog

import (
	"context"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/locks"
)

// When a node opens or locks a file whose locks are delegated to another, the leader first asks that
// one to yield, and appends the command together with what it says. So one command does what a
// recall, a surrender and a request would do. If the leader gets no answer the command is appended
// without, and does that.
//
// The answer binds the node that gives it, whatever becomes of the command, of the leader, and of
// the one who asked. So it does not matter whether this node still leads.

// yieldTime is how long a command waits for the answer. It must be clearly less than unwatched: who
// gives a request for a lock up after that cancels it, and the request must not be appended after its
// cancellation, for then nobody would release the lock.
const yieldTime = unwatched / 2

// keeper is a node to which the locks of a file are delegated.
type keeper struct {
	node dsm.NodeID
	ino  dsm.Ino
	term uint64
}

// keeperFor returns the node that should be asked before the command is appended, if there is one.
func (c *Catalog) keeperFor(cmd command) (k keeper, ok bool) {
	switch cmd.Kind {
	case kindHold, kindAskLock:
	default:
		return k, false
	}
	o, err := cmd.operation()
	if err != nil {
		return k, false
	}
	switch o := o.(type) {
	case holdOp:
		k.ino, ok = o.Ino, o.Write
	case askLockOp:
		k.ino, ok = o.Ino, o.Request.Lock.Type != locks.Unlock
	}
	if !ok {
		return k, false
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	k.node, k.term, ok = c.mu.state.book.Keeper(k.ino, cmd.Node)
	return k, ok
}

// withYield returns the encoded command, with the word of the node that has the locks which the
// command wants. data is the command without.
func (c *Catalog) withYield(ctx context.Context, cmd command, data []byte) []byte {
	k, ok := c.keeperFor(cmd)
	if !ok {
		return data
	}
	if cmd.Yield, ok = c.askYield(ctx, k); !ok {
		return data
	}
	with, err := wire.Marshal(cmd)
	if err != nil {
		return data
	}
	return with
}

func (c *Catalog) askYield(ctx context.Context, k keeper) (y locks.Yield, ok bool) {
	if k.node == c.self.ID {
		return c.yield(k.ino, k.term)
	}
	for _, s := range c.servers() {
		if s.id != k.node {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, time.Duration(c.yieldTime.Load()))
		defer cancel()
		reply, err := c.caller.Call(ctx, nodeAddr(s.id, s.addr), &wire.YieldLocks{Ino: k.ino, Term: k.term})
		if r, is := reply.(*wire.LocksYielded); is && err == nil {
			return locks.Yield{Term: k.term, Used: r.Used}, r.OK
		}
	}
	return y, false
}
