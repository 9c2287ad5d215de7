package coherence

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// waitCase is a cluster at rest of two homes, of extent 0 and of extent 1, and a third node, which waits.
type waitCase struct {
	*sim
	ahead, behind, waiter *simNode // the clock of the first home is an hour ahead of the second's
}

func startWaitCase(t *testing.T, ino dsm.Inode) waitCase {
	s := newSim(t, 1, 3, ino)
	c := waitCase{s, s.nodes[0], s.nodes[1], s.nodes[2]}
	view := c.lastView()
	for sl := range view.Slots {
		view.Slots[sl].Primary = c.ahead.id
	}
	view.Slots[dsm.SlotOf(simArea, 1)].Primary = c.behind.id
	c.ahead.skew = time.Hour
	for _, n := range s.nodes {
		n.find()
		n.openWriter()
		c.calm()
	}
	return c
}

// stores has a program store the byte at off and publish it.
func (c waitCase) stores(n *simNode, off int64) {
	if err := n.area.WriteAt(context.Background(), []byte{1}, off); err != nil {
		c.t.Fatal(err)
	}
	n.publish()
	c.calm("wait")
}

// waits starts a wait of a program of the third node that stores, for a version after v.
func (c waitCase) waits(v dsm.Version) *request {
	q := c.waiter.ask("wait", func(ctx context.Context) error { return c.waiter.area.Wait(ctx, v+1, true) }, nil)
	c.calm("wait")
	return q
}

// ended wants a wait to be over, and the byte at off in the memory of its node.
func (c waitCase) ended(q *request, off int64) {
	c.t.Helper()
	p := dsm.PageIndex(off / dsm.PageSize)
	if !q.over.Load() {
		c.t.Errorf("the wait is not over, version %d is known", c.waiter.area.Version())
	} else if b := c.waiter.area.mu.mem.Working(p)[off%dsm.PageSize]; b != 1 {
		c.t.Errorf("the wait is over, and the byte at %d is %d", off, b)
	}
}

func eachApply(t *testing.T, f func(c waitCase)) {
	for _, apply := range []dsm.Apply{dsm.ApplyArrival, dsm.ApplySync} {
		t.Run(apply.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f(startWaitCase(t, dsm.Inode{Size: 2 * dsm.ExtentSize, Spec: dsm.Spec{Apply: apply}}))
			})
		})
	}
}

// TestWaitEndsWithAPublish: whoever waits for more than it has gets what is published next, and not before. A home whose clock
// is behind draws versions above those that the waiter knows.
func TestWaitEndsWithAPublish(t *testing.T) {
	eachApply(t, func(c waitCase) {
		for i, n := range []*simNode{c.ahead, c.behind, c.ahead, c.behind} {
			c.waiter.acquire(c.waiter.writer) // it has all there is
			c.calm()
			q := c.waits(c.waiter.area.Version())
			if q.over.Load() {
				c.t.Error("a wait is over before anybody published")
			}
			off := int64(i%2)*dsm.ExtentSize + int64(i)
			c.stores(n, off)
			c.ended(q, off)
		}
	})
}

// TestWaitSeesWhatCameBeforeIt: what was published after the version was read, and before the wait, ends it, also if the home
// drew a smaller version.
func TestWaitSeesWhatCameBeforeIt(t *testing.T) {
	eachApply(t, func(c waitCase) {
		c.stores(c.ahead, 0)
		c.waiter.acquire(c.waiter.writer)
		c.calm()
		v := c.waiter.area.Version()
		c.stores(c.behind, dsm.ExtentSize)
		c.ended(c.waits(v), dsm.ExtentSize)
	})
}

// TestWaitForTheVersionOfAnother: a program is told the version that another node has, though no home has drawn that.
func TestWaitForTheVersionOfAnother(t *testing.T) {
	eachApply(t, func(c waitCase) {
		c.stores(c.ahead, 0)
		c.waiter.acquire(c.waiter.writer)
		c.calm()
		c.stores(c.behind, dsm.ExtentSize)
		c.waiter.acquire(c.waiter.writer)
		c.calm()
		v := c.waiter.area.Version()
		c.behind.ask("wait", func(ctx context.Context) error { return c.behind.area.Wait(ctx, v, true) }, nil)
		c.calm()
	})
}

// TestInspectedVersionIsBelowWhatFollows: a program that asks the homes for the version finds a larger one after the next
// publish, at whichever home.
func TestInspectedVersionIsBelowWhatFollows(t *testing.T) {
	eachApply(t, func(c waitCase) {
		c.stores(c.ahead, 0)
		var was, is Report
		inspect := func(r *Report) {
			c.waiter.ask("inspect", func(ctx context.Context) (err error) {
				*r, err = c.waiter.node.Inspect(ctx, simArea)
				return err
			}, nil)
			c.calm()
		}
		inspect(&was)
		c.stores(c.behind, dsm.ExtentSize)
		if inspect(&is); is.Version <= was.Version {
			c.t.Errorf("version %d after a publish, %d before it", is.Version, was.Version)
		}
	})
}
