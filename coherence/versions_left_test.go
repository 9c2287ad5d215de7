package coherence

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

// newLoneOwner is the only node of a cluster. It has published a version of two extents with ones.
func newLoneOwner(t *testing.T) (ownCase, *simNode) {
	t.Helper()
	c := ownCase{newSim(t, 1, 1, dsm.Inode{Size: 2 * dsm.ExtentSize, Spec: dsm.Spec{Mode: dsm.ModeVersioned}})}
	n := c.nodes[0]
	n.hold()
	n.find()
	if err := c.opens(n); err != nil {
		t.Fatal(err)
	}
	storeBoth(t, n, 1)
	if err := c.does(n, n.area.Publish); err != nil {
		t.Fatal(err)
	}
	return c, n
}

// storeBoth stores a byte to both extents.
func storeBoth(t *testing.T, n *simNode, b byte) {
	t.Helper()
	for e := range int64(2) {
		if err := n.area.WriteAt(t.Context(), []byte{b}, e*dsm.ExtentSize); err != nil {
			t.Fatal(err)
		}
	}
}

// loneDaemon has another daemon take over from that of the only node of a cluster.
func (c ownCase) loneDaemon(n *simNode) {
	c.t.Helper()
	n.node.isKilled()
	n.newDaemon()
	if err := n.node.Resume(c.t.Context(), true, false); err != nil {
		c.t.Fatal(err)
	}
	var err error
	if n.area, err = n.node.Reopen(c.t.Context(), simArea, true); err != nil {
		c.t.Fatal(err)
	}
	n.node.Resumed()
}

// versionOf reads both extents of the newest version.
func versionOf(n *simNode) (both [2]byte, err error) {
	v, err := n.area.PinVersion(0)
	if err != nil {
		return both, err
	}
	defer n.area.UnpinVersion(v.Version)
	for e := range both {
		if _, err := n.area.ReadVersion(v.Version, both[e:e+1], int64(e)*dsm.ExtentSize); err != nil {
			return both, err
		}
	}
	return both, nil
}

// publishesBoth has the owner publish, and checks the first bytes of both extents of the version.
func (c ownCase) publishesBoth(n *simNode, want [2]byte) {
	c.t.Helper()
	if err := c.does(n, n.area.Publish); err != nil {
		c.t.Fatal(err)
	}
	if both, err := versionOf(n); err != nil || both != want {
		c.t.Errorf("published: %v, %v; want %v", both, err, want)
	}
}

// TestKilledWhileAVersionIsMerged: the daemon of the only node is killed when one of two extents has the next version. Nobody reads any before the program that was publishing has asked again.
func TestKilledWhileAVersionIsMerged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, n := newLoneOwner(t)
		storeBoth(t, n, 2)
		a := n.area
		a.mu.Lock()
		err := pagetest.KilledAtStore(a.mu.mem.Home(dsm.ExtentPages), func() { _, _ = a.versionNowLocked() })
		first := a.mu.mem.Home(0)[0]
		a.mu.Unlock()
		if err != nil || first != 2 {
			t.Fatalf("killed: %v; the first extent has %d", err, first)
		}
		c.loneDaemon(n)
		if both, err := versionOf(n); !errs.Is(err, errs.Unavailable) {
			t.Errorf("a version that is half there is read: %v, %v", both, err)
		}
		c.publishesBoth(n, [2]byte{2, 2})
	})
}

// TestKilledWhenAVersionIsMerged: all of it is in place, and nobody has been told. The next daemon cannot tell this from half a version of which a program has stored back the rest.
func TestKilledWhenAVersionIsMerged(t *testing.T) {
	for name, last := range map[string]byte{"merged": 2, "stored back": 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, n := newLoneOwner(t)
				before := n.area.Version()
				c.halve(n)
				if err := n.area.WriteAt(t.Context(), []byte{last}, dsm.ExtentSize); err != nil {
					t.Fatal(err)
				}
				n.area.mu.Lock()
				n.area.mu.mem.Home(dsm.ExtentPages)[0] = last
				n.area.mu.Unlock()
				c.loneDaemon(n)
				if both, err := versionOf(n); !errs.Is(err, errs.Unavailable) {
					t.Errorf("nobody has published it, and it is read: %v, %v", both, err)
				}
				if now := n.area.Version(); now != before {
					t.Errorf("programs are told of version %d; want %d", now, before)
				}
				c.publishesBoth(n, [2]byte{2, last})
			})
		})
	}
}

// TestShrunkOverADaemon: the size has changed, and the daemon of the only node is killed before its area has heard of that. The version is another one then.
func TestShrunkOverADaemon(t *testing.T) {
	for name, sizes := range map[string][]int64{"shorter": {dsm.ExtentSize}, "shorter, and as long again": {dsm.ExtentSize, 2 * dsm.ExtentSize}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, n := newLoneOwner(t)
				before := n.area.Version()
				n.node.isKilled()
				for _, size := range sizes {
					c.resize(size)
				}
				n.snapshot()
				c.loneDaemon(n)
				c.calm()
				both, err := versionOf(n)
				if now := n.area.Version(); err != nil || now <= before || both != [2]byte{1, 0} || n.area.GoesOnAt() != 0 {
					t.Errorf("version %d, was %d: %v, %v; programs go on in %d", now, before, both, err, n.area.GoesOnAt())
				}
			})
		})
	}
}

// TestVersionOverADaemon: what was published has the same number with the next daemon, and what was not is published next.
func TestVersionOverADaemon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, n := newLoneOwner(t)
		before := n.area.Version()
		storeBoth(t, n, 2)
		c.loneDaemon(n)
		if both, err := versionOf(n); err != nil || both != [2]byte{1, 1} || n.area.Version() != before || n.area.GoesOnAt() != before {
			t.Errorf("version %d, goes on at %d, was %d: %v, %v", n.area.Version(), n.area.GoesOnAt(), before, both, err)
		}
		if err := c.does(n, n.area.Publish); err != nil {
			t.Fatal(err)
		}
		if both, err := versionOf(n); err != nil || both != [2]byte{2, 2} || n.area.Version() <= before {
			t.Errorf("published: %v, %v", both, err)
		}
		old, err := n.area.PinVersion(0)
		if err != nil {
			t.Fatal(err)
		}
		for b := range byte(3) {
			storeBoth(t, n, 3+b)
			if err := c.does(n, n.area.Publish); err != nil {
				t.Fatal(err)
			}
		}
		c.loneDaemon(n)
		if got := n.area.GoesOnAt(); got != 0 {
			t.Errorf("a program was reading version %d, and goes on at %d", old.Version, got)
		}
	})
}

// TestPausedVersionOverDaemons: a program that reads on after a pause, or that has not read since the daemon before, is not taken for one that reads the newest version.
func TestPausedVersionOverDaemons(t *testing.T) {
	for name, daemons := range map[string]int{"one": 1, "two": 2} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, n := newLoneOwner(t)
				publish := func(b byte) {
					t.Helper()
					storeBoth(t, n, b)
					if err := c.does(n, n.area.Publish); err != nil {
						t.Fatal(err)
					}
				}
				old, err := n.area.PinToRead(t.Context(), 0)
				if err != nil {
					t.Fatal(err)
				}
				if daemons == 2 {
					c.loneDaemon(n)
				} else {
					n.area.PauseVersion(old.Version)
				}
				publish(7)
				c.loneDaemon(n)
				if got := n.area.GoesOnAt(); got != 0 {
					t.Errorf("a program was reading version %d, and goes on at %d", old.Version, got)
				}
			})
		})
	}
}

// TestPausedVersionUntilClosed: once no program has the file open, none is in the midst of a version.
func TestPausedVersionUntilClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, n := newLoneOwner(t)
		old, err := n.area.PinToRead(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		n.area.PauseVersion(old.Version)
		n.area.Close(true)
		if err := c.opens(n); err != nil {
			t.Fatal(err)
		}
		storeBoth(t, n, 7)
		if err := c.does(n, n.area.Publish); err != nil {
			t.Fatal(err)
		}
		newest := n.area.Version()
		c.loneDaemon(n)
		if got := n.area.GoesOnAt(); got != newest {
			t.Errorf("goes on at %d; want %d", got, newest)
		}
	})
}

// halve leaves the home of the only node with the first extent of a version that has twos, and not the second.
func (c ownCase) halve(n *simNode) {
	c.t.Helper()
	storeBoth(c.t, n, 2)
	n.area.mu.Lock()
	n.area.mu.mem.IsChanging()
	n.area.mu.mem.Home(0)[0] = 2
	n.area.mu.Unlock()
	c.loneDaemon(n)
}

// TestHalfAVersion is not read when the file shrinks, and is whole when the program has stored back what differs.
func TestHalfAVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, n := newLoneOwner(t)
		c.halve(n)
		c.resize(2*dsm.ExtentSize - dsm.PageSize)
		c.calm()
		if both, err := versionOf(n); !errs.Is(err, errs.Unavailable) {
			t.Errorf("after a shrink: %v, %v", both, err)
		}
		c.publishesBoth(n, [2]byte{2, 2})
	})
	synctest.Test(t, func(t *testing.T) {
		c, n := newLoneOwner(t)
		c.halve(n)
		if err := n.area.WriteAt(t.Context(), []byte{1}, dsm.ExtentSize); err != nil {
			t.Fatal(err)
		}
		c.publishesBoth(n, [2]byte{2, 1})
	})
}

// TestKilledBesideItsDaemon: a program was publishing when the daemon of the only node was killed, and was killed as well. Half of the version is published already, so it gets the rest.
func TestKilledBesideItsDaemon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, n := newLoneOwner(t)
		c.halve(n)
		n.area.Killed()
		if err := c.does(n, func(ctx context.Context) error {
			_, err := n.area.PublishReleased(ctx)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if both, err := versionOf(n); err != nil || both != [2]byte{2, 2} {
			t.Errorf("%v, %v", both, err)
		}
	})
}

// TestSizeOfAVersionOverADaemon: the file has grown since.
func TestSizeOfAVersionOverADaemon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, n := newLoneOwner(t)
		c.resize(3 * dsm.ExtentSize)
		c.calm()
		c.loneDaemon(n)
		if v, err := n.area.PinVersion(0); err != nil || v.Size != 2*dsm.ExtentSize {
			t.Errorf("version %d has %d bytes: %v", v.Version, v.Size, err)
		}
	})
}

// TestOpenSinceBeforeVersions: a program had the file open before it became versioned, and has stored and not published, when the daemon of the only node is killed.
func TestOpenSinceBeforeVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := ownCase{newSim(t, 1, 1, dsm.Inode{})}
		n := c.nodes[0]
		n.hold()
		n.find()
		if err := c.opens(n); err != nil {
			t.Fatal(err)
		}
		c.changeRules(func(ino *dsm.Inode) { ino.Spec.Mode = dsm.ModeVersioned })
		c.resize(2 * dsm.ExtentSize)
		c.calm()
		storeBoth(t, n, 2)
		c.loneDaemon(n)
		c.publishesBoth(n, [2]byte{2, 2})
	})
}

// TestHalfAVersionEnds: a lone daemon was killed while the published bytes changed, and no program has the area open for writing any more. The next one makes a version of them, and of what was stored.
func TestHalfAVersionEnds(t *testing.T) {
	for name, c := range map[string]struct {
		merged int64 // extents
		size   int64
		want   [2]byte
	}{
		"half merged": {1, 2 * dsm.ExtentSize, [2]byte{2, 2}},
		"all merged":  {2, 2 * dsm.ExtentSize, [2]byte{2, 2}},
		"shrunk":      {0, dsm.ExtentSize, [2]byte{2, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o, n := newLoneOwner(t)
				storeBoth(t, n, 2)
				n.area.mu.Lock()
				n.area.mu.mem.IsChanging()
				for e := range c.merged {
					n.area.mu.mem.Home(dsm.PageIndex(e * dsm.ExtentPages))[0] = 2
				}
				n.area.mu.Unlock()
				n.node.isKilled()
				if c.size < 2*dsm.ExtentSize {
					o.resize(c.size)
					n.snapshot()
				}
				n.newDaemon()
				if err := n.node.Resume(t.Context(), true, false); err != nil {
					t.Fatal(err)
				}
				n.node.Resumed()
				o.calm()
				n.find()
				n.openReader()
				o.calm()
				if both, err := versionOf(n); err != nil || both != c.want {
					t.Errorf("%v, %v; want %v", both, err, c.want)
				}
			})
		})
	}
}

// TestHalfAVersionAtOnce: the same, with a program that asks again by the short way of a small area.
func TestHalfAVersionAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := ownCase{newSim(t, 1, 1, dsm.Inode{Size: 4 * dsm.PageSize, Spec: dsm.Spec{Mode: dsm.ModeVersioned, DType: dsm.DTypeU8}})}
		n := c.nodes[0]
		n.hold()
		n.find()
		if err := c.opens(n); err != nil {
			t.Fatal(err)
		}
		c.publishes(n, 0, 1)
		c.stores(n, 0, 2)
		n.area.mu.Lock()
		n.area.mu.mem.IsChanging()
		n.area.mu.mem.Home(0)[0] = 2
		n.area.mu.Unlock()
		c.loneDaemon(n)
		c.calm()
		if n.area.PublishNow(time.Minute, func(error) {}) {
			t.Error("half a version is published the short way")
		}
		if err := c.does(n, n.area.Publish); err != nil || n.byteOf(c.reads(n), 0) != "2" {
			t.Errorf("published again: %v, %s", err, n.byteOf(c.reads(n), 0))
		}
	})
}

// TestHalfAVersionHasNoBackup: no backup is told of half a version. It is filled when there is one.
func TestHalfAVersionHasNoBackup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := ownCase{newSim(t, 1, 2, dsm.Inode{Size: 2 * dsm.ExtentSize, Spec: dsm.Spec{Mode: dsm.ModeVersioned}})}
		n := c.nodes[0]
		n.hold()
		n.find()
		if err := c.opens(n); err != nil {
			t.Fatal(err)
		}
		storeBoth(t, n, 1)
		if err := c.does(n, n.area.Publish); err != nil {
			t.Fatal(err)
		}
		c.halve(n)
		c.calm()
		c.copies = 2
		c.changeView(func(v *dsm.View) { c.assign(v) })
		c.drain() // or a message is refused
		c.catchUp()
		c.drain()
		if err := c.does(n, n.area.Publish); err != nil {
			t.Fatal(err)
		}
		c.calm()
		if b := c.rowOf(c.lastView(), 0).Backups[0]; !b.InSync {
			t.Errorf("the backup is not in sync: %+v", b)
		}
		if both, err := versionOf(n); err != nil || both != [2]byte{2, 2} {
			t.Errorf("%v, %v", both, err)
		}
	})
}

// TestHandoverThatFails: a node has some of a versioned area that it was to become the home of, and does not. What its programs read goes on, and costs nothing.
func TestHandoverThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := ownCase{newSim(t, 1, 3, dsm.Inode{Size: 4 * dsm.PageSize, Spec: dsm.Spec{Mode: dsm.ModeVersioned, Retain: 1}})}
		for _, n := range c.nodes {
			n.find()
			if n.i > 0 {
				n.openReader()
			}
			c.calm()
		}
		n, b := c.nodes[0], c.nodes[1]
		if err := c.opens(n); err != nil {
			t.Fatal(err)
		}
		c.publishes(n, 0, 1)
		n.area.Close(true)
		c.calm()
		b.ask("take", b.take, nil)
		for i := 0; i < 1000 && !b.area.mu.whole.taking; i++ {
			if c.rest(); c.deliver() {
				continue
			}
			c.decide()
			for _, o := range c.nodes {
				if o.behindCatalog() {
					o.apply()
				}
			}
		}
		if !b.area.mu.whole.taking {
			t.Fatal("it has got no page")
		}
		c.isEvicted(b)
		c.lose(b)
		c.calm("take")
		for _, q := range c.requests {
			q.giveUp()
		}
		c.calm()
		c.returns(b)
		c.calm()
		if b.area.mu.whole.taking {
			t.Error("it still takes the area")
		}
		if err := c.opens(n); err != nil {
			t.Fatal(err)
		}
		for v := byte(2); v < 5; v++ {
			clear(n.kernel.cache) // the store goes past it
			c.publishes(n, 0, v)
			c.calm()
			if got := b.byteOf(c.reads(b), 0); got != string('0'+v) {
				t.Errorf("it reads %s; want %d", got, v)
			}
		}
		if got := b.area.mu.whole.history.Bytes(); got != 0 {
			t.Errorf("%d bytes of older versions are kept", got)
		}
	})
}
