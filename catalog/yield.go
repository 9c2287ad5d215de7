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
// A program waits for all of this, so no goroutine is woken on the way if it can be helped: the leader asks where it has
// read the command, and appends it where it reads the answer (askNow).
//
// The answer binds the node that gives it, whatever becomes of the command, of the leader, and of
// the one who asked. So it does not matter whether this node still leads.

// yieldTime is how long a command waits for the answer. It is clearly less than unwatched, after which somebody may give the
// command up and have to see to it that it does not happen any more (endLate).
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
	case kindClaim, kindAskLock:
	default:
		return k, false
	}
	o, err := cmd.operation()
	if err != nil {
		return k, false
	}
	switch o := o.(type) {
	case claimOp:
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

// yielded returns the encoded command with the word of a node that has yielded. data is the command without.
func (cmd command) yielded(data []byte, y locks.Yield, ok bool) []byte {
	if !ok {
		return data
	}
	cmd.Yield = y
	with, err := wire.Marshal(cmd)
	if err != nil {
		return data
	}
	return with
}

// keeperAddr returns the address of the node; false if it is not known any more.
func (c *Catalog) keeperAddr(k keeper) (addr string, ok bool) {
	for _, s := range c.servers() {
		if s.id == k.node {
			return nodeAddr(s.id, s.addr), true
		}
	}
	return "", false
}

func (k keeper) question() *wire.YieldLocks { return &wire.YieldLocks{Ino: k.ino, Term: k.term} }

// word returns what the node has answered.
func (k keeper) word(reply any, err error) (y locks.Yield, ok bool) {
	r, is := reply.(*wire.LocksYielded)
	if !is || err != nil {
		return y, false
	}
	return locks.Yield{Term: k.term, Used: r.Used}, r.OK
}

// askNow asks the node to yield, and calls then with its word, once, where that is heard. If that takes waiting before it
// is asked, it returns false and does nothing.
func (c *Catalog) askNow(k keeper, then func(y locks.Yield, ok bool)) bool {
	if k.node == c.self.ID {
		then(c.yield(k.ino, k.term))
		return true
	}
	addr, ok := c.keeperAddr(k)
	return ok && c.caller.Ask(time.Duration(c.yieldTime.Load()), addr, k.question(), func(reply any, err error) { then(k.word(reply, err)) })
}

// withYield returns the encoded command, with the word of the node that has the locks which the
// command wants. data is the command without.
func (c *Catalog) withYield(ctx context.Context, cmd command, data []byte) []byte {
	k, ok := c.keeperFor(cmd)
	if !ok {
		return data
	}
	if k.node == c.self.ID {
		y, ok := c.yield(k.ino, k.term)
		return cmd.yielded(data, y, ok)
	}
	addr, ok := c.keeperAddr(k)
	if !ok {
		return data
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(c.yieldTime.Load()))
	defer cancel()
	y, ok := k.word(c.caller.Call(ctx, addr, k.question()))
	return cmd.yielded(data, y, ok)
}
