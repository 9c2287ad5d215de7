package main

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dsmfs/dsmfs/catalog"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/locks"
)

// A node that was stopped, or cut off, for longer than its lease has been evicted. It joins again by itself, under its id, as a new
// incarnation. Only its catalog is new: mount, mappings, memory and connections stay. What its programs have stored and not published is
// dirty in its working copies, and is published. Publishes that were under way are sent again under their numbers, so the homes know
// which of them they have. Its locks are lost (EIO until the files are closed), and so are files without a name that it alone claimed.
type rejoins struct {
	cancel     context.CancelFunc // nil: not started
	done       sync.WaitGroup
	recoveries chan recovery          // orders of the user: see recoverAlone
	left       bool                   // the node has left its cluster for such an order, and has none yet; of the goroutine that watches
	why        atomic.Pointer[string] // why the last attempt failed; nil: the node is a member, or has not tried yet
}

const (
	// rejoinMin and rejoinMax bound the pause after an attempt that failed.
	rejoinMin, rejoinMax = 100 * time.Millisecond, 5 * time.Second
	// joinUnderWay is how long a node that is told to end waits for an attempt: if the cluster has just admitted it, it must leave.
	joinUnderWay = 2 * time.Second
	// calm is how long a node must have been a member, or it waits before it joins once more: longer each time, up to mostWait.
	// Otherwise one with a link that comes and goes would do so, too.
	calm, mostWait = time.Minute, time.Minute
)

// startRejoins begins to watch for an eviction.
func (n *node) startRejoins(context.Context) error {
	ctx, cancel := context.WithCancel(context.Background())
	n.rejoins.cancel = cancel
	n.rejoins.done.Go(func() { n.watchEviction(ctx) })
	n.rejoins.done.Go(func() { n.tellUnheld(ctx) })
	return nil
}

// stop ends that. It reports whether the node is no member now.
func (r *rejoins) stop(n *node) (evicted bool) {
	if r.cancel == nil {
		return false
	}
	r.cancel()
	r.done.Wait()
	n.cats.stop()
	select {
	case <-n.cats.last().Evicted():
		return true
	default:
		return false
	}
}

// nextPause returns how long a node that was a member for a time waits before it joins once more, when it waited for pause the last time; less
// than 0: it did not join again yet.
func nextPause(pause, lasted time.Duration) time.Duration {
	if pause < 0 || lasted >= calm {
		return 0
	}
	return min(max(2*pause, time.Second), mostWait)
}

func (n *node) watchEviction(ctx context.Context) {
	pause := time.Duration(-1)
	for {
		joined := time.Now()
		select {
		case <-n.cats.last().Evicted():
		case order := <-n.rejoins.recoveries:
			order.done <- n.recoverAlone(ctx, order.caller)
			continue
		case <-ctx.Done():
			return
		}
		pause = nextPause(pause, time.Since(joined))
		n.log.Warn("evicted from the cluster: joining again", "wait", pause)
		n.cats.leave()
		v := n.cats.Current()
		n.cats.last().Close()
		if !sleep(ctx, pause) {
			return
		}
		began := time.Now()
		if !n.rejoin(ctx, v) {
			return
		}
		n.log.Info("joined the cluster again", "took", time.Since(began).Round(time.Millisecond))
	}
}

// sleep waits. It returns false if ctx ends.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// rejoin joins the cluster whose members were those of v. It returns false if ctx ends.
func (n *node) rejoin(ctx context.Context, v *dsm.View) bool {
	for pause := rejoinMin; ctx.Err() == nil; pause = min(2*pause, rejoinMax) {
		g := &gate{n: n}
		next, err := n.joinAgain(ctx, v, g)
		if err == nil {
			n.locks.Evicted() // first: what was stored under them is given up
			n.take(ctx, g, next)
			n.rejoins.why.Store(nil)
			return true
		}
		why, level := err.Error(), slog.LevelDebug
		if was := n.rejoins.why.Swap(&why); was == nil || *was != why {
			level = slog.LevelWarn
		}
		n.log.Log(ctx, level, "join the cluster again", "err", why)
		if !n.idle(ctx, pause/2+rand.N(pause)) {
			return false
		}
	}
	return false
}

// idle waits. It returns false if ctx ends. A node that was evicted is no survivor: a majority has evicted it, and its state is an old one.
func (n *node) idle(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			return true
		case order := <-n.rejoins.recoveries:
			order.done <- errs.E(errs.Busy, "recover", "this node was evicted, by a majority that works: it joins again when it reaches a member")
		case <-ctx.Done():
			return false
		}
	}
}

// gatherLimit bounds how long a node waits for what the kernel has of the stores of programs, before it acts as a member again.
const gatherLimit = 5 * time.Second

// gather finds what programs have stored while this node was away: it is compared with what others have, before anything of it is published.
func (n *node) gather(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, gatherLimit)
	defer cancel()
	if n.fs != nil {
		if err := n.fs.Harvest(ctx); err != nil {
			n.log.Warn("stores to mappings from before this node joins again", "err", err)
		}
	}
	n.data.Returning()
}

// take goes on with a new catalog, whose observer is g. It does not wait for that any more if the node is evicted again meanwhile: what is left is done when it is
// back the next time.
func (n *node) take(ctx context.Context, g *gate, next *catalog.Catalog) {
	n.gather(ctx)
	g.open.Store(true)
	n.cats.show(next)
	n.Reset() // whatever came before g was open is in this
	n.data.Rejoined()
	n.cats.enter()
	if n.fs == nil {
		return // it has not mounted yet
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // or nobody would have the node join once more
		select {
		case <-next.Evicted():
			cancel()
		case <-ctx.Done():
		}
	}()
	if err := n.fs.Rejoined(ctx); err != nil {
		n.log.Warn("files that programs have open", "err", err)
	}
}

// nextCatalog makes a catalog for the next incarnation of the node.
func (n *node) nextCatalog(o catalog.Observer) (*catalog.Catalog, error) {
	self := n.self
	self.Inc = uint64(time.Now().UnixNano())
	self.Held = n.cfg.held.isFollowed()
	n.cfg.held.joinsAgain()
	return n.newCatalog(self, o, nil, nil)
}

// joinAgain returns a new catalog that has joined. The leader refuses that while a member and this node do not reach each other.
func (n *node) joinAgain(ctx context.Context, v *dsm.View, o catalog.Observer) (*catalog.Catalog, error) {
	cat, err := n.nextCatalog(o)
	if err != nil {
		return nil, err
	}
	err = errs.E(errs.Unavailable, "join", "the cluster had no other members")
	for _, i := range rand.Perm(len(v.Members)) {
		if m := v.Members[i]; m.ID != n.self.ID {
			try, cancel := context.WithTimeout(context.WithoutCancel(ctx), joinLimit/4)
			hurry := context.AfterFunc(ctx, func() { time.AfterFunc(joinUnderWay, cancel) })
			err = cat.Join(try, m.Addr)
			hurry()
			cancel()
		}
		if err == nil {
			return cat, nil
		}
		if ctx.Err() != nil {
			break
		}
		if k := errs.KindOf(err); k != errs.Unavailable && k != errs.Timeout {
			break // it answered: the others belong to the same cluster
		}
	}
	cat.Close()
	return nil, err
}

// gate is the Observer of a catalog that is joining: until it is open nothing passes, and then the node takes the whole state.
type gate struct {
	n    *node
	open atomic.Bool
}

func (g *gate) AreaChanged(before, after dsm.Inode) {
	if g.open.Load() {
		g.n.AreaChanged(before, after)
	}
}

func (g *gate) AreaRemoved(ino dsm.Ino) {
	if g.open.Load() {
		g.n.AreaRemoved(ino)
	}
}

func (g *gate) ViewChanged(v *dsm.View) {
	if g.open.Load() {
		g.n.ViewChanged(v)
	}
}

func (g *gate) LocksChanged(events []locks.Event) {
	if g.open.Load() {
		g.n.LocksChanged(events)
	}
}

func (g *gate) Reset() {
	if g.open.Load() {
		g.n.Reset()
	}
}
