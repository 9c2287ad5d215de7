package coherence

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// newBackedCase is an ownCase of one extent with a backup. Node 0 has it open for writing, and has published.
func newBackedCase(t *testing.T) (ownCase, *simNode) {
	t.Helper()
	return newCopiedCase(t, 3, 2, false)
}

// newHeldCase is newBackedCase with an owner that is held, and has the area open to write only.
func newHeldCase(t *testing.T) (ownCase, *simNode) {
	t.Helper()
	return newCopiedCase(t, 3, 2, true)
}

// newCopiedCase is newBackedCase, or newHeldCase, with so many nodes and copies.
func newCopiedCase(t *testing.T, nodes, copies int, held bool) (ownCase, *simNode) {
	t.Helper()
	c := ownCase{newSim(t, 1, nodes, dsm.Inode{Size: 4 * dsm.PageSize, Spec: dsm.Spec{Mode: dsm.ModeVersioned}})}
	c.withBackups(copies, true)
	n := c.nodes[0]
	if held {
		n.hold()
	}
	for _, o := range c.nodes {
		o.find()
		if o != n || !held {
			o.openReader()
		}
		c.calm()
	}
	if err := c.opens(n); err != nil {
		t.Fatal(err)
	}
	c.publishes(n, 0, 1)
	return c, n
}

// ousts has the owner be evicted, and returns the node that owns the area then.
func (c ownCase) ousts(n *simNode, left ...string) (next *simNode) {
	c.isEvicted(n)
	c.lose(n)
	c.calm(left...)
	return c.nodes[c.owner(0)]
}

// returns has an evicted node join again, over new connections.
func (c ownCase) returns(n *simNode) {
	c.comesBack(n)
	for _, o := range c.nodes {
		if o != n {
			c.breakLink(link{n.i, o.i})
			c.breakLink(link{o.i, n.i})
		}
	}
	c.calm()
}

// takesOver has a program of the node publish.
func (c ownCase) takesOver(n *simNode, off int64, b byte, left ...string) {
	c.t.Helper()
	var err error
	n.ask("call", func(ctx context.Context) error {
		_, err = n.node.Open(ctx, simArea, true)
		return nil
	}, nil)
	c.calm(left...)
	if err != nil {
		c.t.Fatal(err)
	}
	c.stores(n, off, b)
	n.ask("call", func(ctx context.Context) error {
		err = n.area.Publish(ctx)
		return nil
	}, nil)
	c.calm(left...)
	if err != nil {
		c.t.Fatal(err)
	}
	n.area.Close(true)
}

// isEverywhere checks what the newest version of all nodes has in the first bytes of the first three pages.
func (c ownCase) isEverywhere(want string) {
	c.t.Helper()
	for _, n := range c.nodes {
		n.area.mu.Lock()
		v, _ := n.area.newestLocked()
		n.area.mu.Unlock()
		got := ""
		for p := range int64(3) {
			got += n.byteOf(v.Version, p*dsm.PageSize)
		}
		if got != want {
			c.t.Errorf("node %d: version %d has %s, not %s", n.i, v.Version, got, want)
		}
	}
}

// TestFenced: an owner was taken for dead, and others have published. What its program had stored is a conflict as a whole, and no version has half of it, also when that program goes on, until it has closed the file.
func TestFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, n := newBackedCase(t)
		c.stores(n, 0, 2) // and page 1 would follow
		next := c.ousts(n)
		c.takesOver(next, 2*dsm.PageSize, 7)
		c.returns(n)
		for range 2 {
			c.stores(n, dsm.PageSize, 2)
			if err := c.does(n, n.area.Publish); !errs.Is(err, errs.Access) {
				t.Errorf("publish: %v", err)
			}
			c.isEverywhere("107")
		}
		if k := n.area.ConflictCount(); k == 0 {
			t.Error("nothing is kept")
		}
		n.area.Close(true)
		if err := c.does(n, n.take); err != nil {
			t.Fatal(err)
		}
		if err := c.opens(n); err != nil {
			t.Fatal(err)
		}
		c.publishes(n, dsm.PageSize, 3)
		c.calm()
		c.isEverywhere("137")
	})
}

// TestOustedWhilePublishing: a version that is made in one step waits for the backup when the owner is taken for dead. It is there when the call returns nil, or the call fails.
func TestOustedWhilePublishing(t *testing.T) {
	for _, others := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c, n := newBackedCase(t)
			c.stores(n, 0, 2)
			over, result := false, error(nil)
			if !n.area.PublishNow(1<<40, func(err error) { over, result = true, err }) || over {
				t.Fatal("it does not wait for the backup")
			}
			c.rest()
			next := c.ousts(n)
			if others {
				c.takesOver(next, 2*dsm.PageSize, 7)
			}
			c.returns(n)
			want := map[bool]string{false: "200", true: "107"}[others]
			if !over || others != errs.Is(result, errs.Access) || !others && result != nil {
				t.Errorf("others have published %v: over %v, %v", others, over, result)
			}
			c.isEverywhere(want)
		})
	}
}

// TestFencedWithAPartUnderWay: the owner's lease has run out, so a part to itself waits when it is taken for dead.
func TestFencedWithAPartUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, n := newBackedCase(t)
		n.fenced.Store(true)
		n.ask("acquire", func(ctx context.Context) error { return n.area.Acquire(ctx, false) }, nil)
		c.rest()
		c.stores(n, 0, 2)
		result := error(nil)
		n.ask("publish", func(ctx context.Context) error {
			result = n.area.Publish(ctx)
			return nil
		}, nil)
		c.rest()
		c.isEvicted(n)
		c.calm("publish", "acquire")
		next := c.nodes[c.owner(0)]
		c.takesOver(next, 2*dsm.PageSize, 7, "publish", "acquire")
		c.comesBack(n)
		c.lose(n)
		next.node.SessionReset(n.id)
		n.node.SessionReset(next.id)
		c.calm()
		if !errs.Is(result, errs.Access) {
			t.Errorf("publish: %v", result)
		}
		c.isEverywhere("107")
	})
}

// TestFencedBeforeHandlesAreOpen: the daemon was killed, the node evicted, and others have published. That comes before the next daemon has opened again what programs have open: they hear of it all the same, also if that
// daemon is killed as well.
func TestFencedBeforeHandlesAreOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, n := newHeldCase(t)
		c.stores(n, 0, 2)
		n.node.isKilled()
		c.mu.Lock()
		n.dead = true
		c.mu.Unlock()
		next := c.ousts(n)
		c.takesOver(next, 2*dsm.PageSize, 7)
		for daemon := range 2 {
			c.endSessions(n)
			c.mu.Lock()
			n.dead, n.away, n.cut = false, false, false
			c.mu.Unlock()
			n.newDaemon()
			c.changeView(func(v *dsm.View) {
				m := &v.Members[n.i]
				m.Gone, m.Leaving, m.Inc, m.Since = false, false, m.Inc+1, v.Epoch
				c.assign(v)
			})
			n.fenced.Store(false)
			n.snapshot()
			if err := n.node.Resume(t.Context(), false, daemon == 0); err != nil {
				t.Fatal(err)
			}
			n.find()
			c.calm()
			a, err := n.node.Reopen(t.Context(), simArea, true)
			if err != nil {
				t.Fatal(err)
			}
			n.area = a
			n.node.Resumed()
			c.calm()
			if err := c.does(n, a.Publish); !errs.Is(err, errs.Access) {
				t.Errorf("daemon %d: publish: %v", daemon, err)
			}
			if daemon == 0 {
				n.node.isKilled()
				c.lose(n)
			}
		}
		if got := next.byteOf(next.area.Version(), 0); got != "1" {
			t.Errorf("others have %s", got)
		}
	})
}

// TestNobodyReadsWhatBackupsLack: programs of the owner read the version before until the backup has the next one, as those of other nodes do. Else another daemon could bring them back to it.
func TestNobodyReadsWhatBackupsLack(t *testing.T) {
	for name, retain := range map[string]uint8{"retain one": 1, "retain two": 2} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, n := newBackedCase(t)
				c.changeRules(func(ino *dsm.Inode) { ino.Spec.Retain = retain })
				c.calm()
				before := c.reads(n)
				for v := byte(2); v < 5; v++ {
					c.stores(n, 0, v)
					var err error
					n.ask("publish", func(ctx context.Context) error {
						err = n.area.Publish(ctx)
						return nil
					}, nil)
					c.rest()
					if got := c.reads(n); got != before {
						t.Errorf("no backup has version %d, and it is read", v)
					}
					if now := n.area.Version(); now != before {
						t.Errorf("version %d cannot be read, and programs that wait are told of %d", v, now)
					}
					if c.calm(); err != nil {
						t.Fatal(err)
					}
					now := c.reads(n)
					if got := n.byteOf(now, 0); now <= before || got != string('0'+v) {
						t.Errorf("version %d has %q; want %d", now, got, v)
					}
					before = now
				}
			})
		})
	}
}

// reads returns which version a program that begins to read gets.
func (c ownCase) reads(n *simNode) dsm.Version {
	c.t.Helper()
	v, err := n.area.PinVersion(0)
	if err != nil {
		c.t.Fatal(err)
	}
	if list := n.area.Versions(); list[len(list)-1] != v {
		c.t.Errorf("the newest listed is %v, that read is %v", list[len(list)-1], v)
	}
	n.area.UnpinVersion(v.Version)
	return v.Version
}

// evictedDaemon is a case in which the daemon of the owner is killed, another node publishes 7 to page 2, and the owner's next daemon has just joined again. do is called when the owner has the area
// open for writing and has published, before the kill.
func evictedDaemon(t *testing.T, do func(c ownCase, n *simNode)) (ownCase, *simNode) {
	t.Helper()
	c, n := newHeldCase(t)
	do(c, n)
	dead := func(is bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		n.dead = is
	}
	n.node.isKilled()
	dead(true)
	next := c.ousts(n, "publish")
	c.takesOver(next, 2*dsm.PageSize, 7, "publish")
	c.endSessions(n)
	c.mu.Lock()
	n.away, n.cut = false, false
	c.mu.Unlock()
	dead(false)
	n.newDaemon()
	c.changeView(func(v *dsm.View) {
		m := &v.Members[n.i]
		m.Gone, m.Leaving, m.Inc, m.Since = false, false, m.Inc+1, v.Epoch
		c.assign(v)
	})
	n.fenced.Store(false)
	n.snapshot()
	if err := n.node.Resume(t.Context(), false, true); err != nil {
		t.Fatal(err)
	}
	n.find()
	var err error
	if n.area, err = n.node.Reopen(t.Context(), simArea, true); err != nil {
		t.Fatal(err)
	}
	n.node.Resumed()
	return c, n
}

// TestLateStoresOfAnOustedOwner: nothing is known yet of what its programs had stored when the version of the next owner comes. A version has one writer all the same.
func TestLateStoresOfAnOustedOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, n := evictedDaemon(t, func(ownCase, *simNode) {}) // a program stores to its mapping: only the kernel has that
		c.calm()
		c.stores(n, 0, 2) // the kernel writes it back
		if err := c.does(n, n.area.Publish); !errs.Is(err, errs.Access) {
			t.Errorf("published: %v", err)
		}
		if c.isEverywhere("107"); n.area.ConflictCount() == 0 {
			t.Error("what was stored is not kept as conflicts")
		}
	})
}

// TestToldAfterADaemon: programs that wait for a version are not told of one that the daemon before had made, and that nobody has.
func TestToldAfterADaemon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, n := evictedDaemon(t, func(c ownCase, n *simNode) {
			c.stores(n, 0, 2)
			n.ask("publish", func(ctx context.Context) error {
				_ = n.area.Publish(ctx) // its daemon is killed
				return nil
			}, nil)
			c.rest()
		})
		if list, now := n.area.Versions(), n.area.Version(); len(list) != 0 || now != 0 {
			t.Errorf("version %d is said to be here, and %v can be read", now, list)
		}
		for _, q := range c.requests {
			q.cancel()
		}
		c.calm("publish")
		if list, now := n.area.Versions(), n.area.Version(); len(list) == 0 || list[len(list)-1].Version != now {
			t.Errorf("version %d is said to be here, and %v can be read", now, list)
		}
	})
}

// TestMuteHomeShowsNothingNew: of three copies one takes over with a version that the other one lacks. Programs there do not read it before the catalog says that the other cannot take over any more.
func TestMuteHomeShowsNothingNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, n := newCopiedCase(t, 5, 3, false)
		row := c.rowOf(c.lastView(), 0)
		has := c.nodes[row.Backups[0].Node-1]
		was := c.reads(has)
		c.stores(n, 0, 2)
		n.ask("publish", func(ctx context.Context) error { return n.area.Publish(ctx) }, nil)
		c.rest()
		c.deliverAll(link{n.i, has.i})
		c.killAfter(n, func(int) int { return 0 })
		c.bury(n)
		for _, o := range c.nodes[1:] {
			for o.behindCatalog() {
				o.apply()
			}
		}
		c.drain()
		if !has.area.mu.mute {
			t.Fatal("the backup that has the version is not mute")
		}
		if now := c.reads(has); now != was {
			t.Errorf("it reads version %d while it is mute; want %d", now, was)
		}
		c.calm()
		if now := c.reads(has); now <= was || has.byteOf(now, 0) != "2" {
			t.Errorf("afterwards it reads version %d, with %s", now, has.byteOf(now, 0))
		}
	})
}

// TestWhoHasStoredNothingIsNotRefused: a program has the area open for writing while another node owns it and publishes. It is refused only if something that it has stored is found.
func TestWhoHasStoredNothingIsNotRefused(t *testing.T) {
	publishes := func(c ownCase, n *simNode, want errs.Kind) {
		c.t.Helper()
		if err := c.does(n, n.area.Publish); errs.KindOf(err) != want {
			c.t.Errorf("node %d: %v", n.i, err)
		}
	}
	t.Run("ousted", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c, n := newBackedCase(t)
			c.calm()
			c.takesOver(c.ousts(n), 2*dsm.PageSize, 7)
			c.returns(n)
			publishes(c, n, errs.Other)
			c.stores(n, dsm.PageSize, 3) // it may be from before
			publishes(c, n, errs.Access)
			publishes(c, n, errs.Access)
			c.isEverywhere("107")
		})
	})
	t.Run("open before it was versioned", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := ownCase{newSim(t, 1, 2, dsm.Inode{})}
			for _, n := range c.nodes {
				n.find()
				if err := c.opens(n); err != nil {
					t.Fatal(err)
				}
			}
			c.changeRules(func(ino *dsm.Inode) { ino.Spec.Mode = dsm.ModeVersioned })
			c.resize(2 * dsm.ExtentSize)
			c.calm()
			storeBoth(t, c.nodes[0], 2)
			publishes(c, c.nodes[0], errs.Other)
			publishes(c, c.nodes[1], errs.Other)
			c.nodes[0].area.Close(true)
			if err := c.does(c.nodes[1], c.nodes[1].take); err != nil {
				t.Fatal(err)
			}
			c.stores(c.nodes[1], 0, 3)
			publishes(c, c.nodes[1], errs.Other)
		})
	})
}
