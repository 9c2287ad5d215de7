package coherence

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// parting is a cluster of three whose first node is the home. All have the area open for writing; its bytes were published, and all have them.
type parting struct {
	*sim
	home, n, other *simNode
}

func newParting(t *testing.T, ino dsm.Inode, held bool) *parting {
	ino.Size = max(ino.Size, dsm.ExtentSize)
	s := newHomed(t, 3, ino)
	p := &parting{s, s.nodes[0], s.nodes[1], s.nodes[2]}
	for _, n := range s.nodes {
		if held && n == p.n {
			n.hold()
		}
		n.find()
		if n.held == nil { // the next daemon opens for writing
			n.openReader()
		}
		s.calm()
		n.openWriter()
		s.calm()
	}
	p.stores(p.home, "aaaabbbbcccc")
	p.published(p.home)
	return p
}

// stores has a program of a node store to the first bytes, where text has no dot.
func (p *parting) stores(n *simNode, text string) {
	p.t.Helper()
	for i := range text {
		if text[i] == '.' {
			continue
		}
		if err := n.area.WriteAt(context.Background(), []byte{text[i]}, int64(i)); err != nil {
			p.t.Fatal(err)
		}
	}
}

// published publishes what a node has, and lets the cluster come to rest.
func (p *parting) published(n *simNode) {
	n.ask("publish", n.area.Publish, nil)
	p.calm()
}

// alone lets the home and the other node come to rest, while the node in between gets nothing and nobody gets anything of it.
func (p *parting) alone() {
	for range 200 {
		p.rest()
		for _, n := range []*simNode{p.home, p.other} {
			for n.behindCatalog() {
				n.apply()
			}
			n.kernel.work()
		}
		for _, k := range []link{{p.home.i, p.other.i}, {p.other.i, p.home.i}} {
			if len(p.net[k]) > 0 {
				p.deliverOn(k)
			}
		}
	}
}

// publishedAlone publishes what a node has while another is cut off.
func (p *parting) publishedAlone(n *simNode) {
	p.t.Helper()
	q := n.ask("publish", n.area.Publish, nil)
	p.alone()
	if !q.over.Load() {
		p.t.Error("the majority does not publish")
	}
}

// meet has the node evicted, both sides store, and the other one publish; then the node comes back, and publishes.
func (p *parting) meet(mine, theirs string) {
	p.t.Helper()
	p.isEvicted(p.n)
	p.stores(p.n, mine)
	p.stores(p.other, theirs)
	p.publishedAlone(p.other)
	p.comesBack(p.n)
	p.published(p.n)
}

// wants checks what all nodes have of the first bytes, and which conflicts the node keeps.
func (p *parting) wants(text string, conflicts ...string) {
	p.t.Helper()
	for _, n := range p.nodes {
		if got := n.area.mu.mem.Working(0)[:len(text)]; string(got) != text {
			p.t.Errorf("node %d has %q, want %q", n.i, got, text)
		}
	}
	var got []string
	found := p.n.node.ListConflicts(&wire.ListConflicts{Area: simArea})
	for _, x := range found.List {
		got = append(got, fmt.Sprintf("%d: %s, not %s", x.Off, x.Taken, x.Kept))
	}
	if fmt.Sprint(got) != fmt.Sprint(conflicts) || found.Lost > 0 {
		p.t.Errorf("conflicts %q and %d bytes lost, want %q", got, found.Lost, conflicts)
	}
}

// parted runs a test of one.
func parted(t *testing.T, ino dsm.Inode, f func(p *parting)) {
	synctest.Test(t, func(t *testing.T) { f(newParting(t, ino, false)) })
}

// TestConflictIsKept: what both sides have changed stays as the majority has it.
func TestConflictIsKept(t *testing.T) {
	parted(t, dsm.Inode{}, func(p *parting) {
		p.meet("1111....5.6.", "22..33..5..7")
		p.wants("221133bb5c67", "0: 22, not 11")
	})
}

// TestConflictsOfElements: an element of a type is whole.
func TestConflictsOfElements(t *testing.T) {
	ino := dsm.Inode{Layout: dsm.Layout{DType: dsm.DTypeI32}}
	ino.Spec.DType = dsm.DTypeI32
	parted(t, ino, func(p *parting) {
		p.meet("1.......1...", ".2..2.......")
		p.wants("a2aa2bbb1ccc", "0: a2aa, not 1aaa")
	})
}

// TestSumsHaveNoConflicts: both sides count.
func TestSumsHaveNoConflicts(t *testing.T) {
	parted(t, sums(1, dsm.ApplyArrival), func(p *parting) {
		p.meet("b", "b")
		p.wants("caaabbbbcccc")
	})
}

// TestPublishFromBeforeTheEviction arrives when the node counts as gone, or when it is back: it is not merged, for it was not compared.
func TestPublishFromBeforeTheEviction(t *testing.T) {
	for _, back := range []bool{false, true} {
		parted(t, dsm.Inode{}, func(p *parting) {
			p.stores(p.n, "1")
			p.n.ask("publish", p.n.area.Publish, nil)
			p.rest()
			way := link{p.n.i, p.home.i}
			late := p.net[way]
			p.net[way] = nil
			p.isEvicted(p.n)
			p.stores(p.other, "2")
			p.publishedAlone(p.other)
			if back {
				p.comesBack(p.n)
				for p.home.behindCatalog() {
					p.home.apply()
				}
			}
			p.net[way] = append(late, p.net[way]...)
			p.deliverOn(way)
			if p.home.area.mu.mem.Home(0)[0] != '2' {
				t.Error("it is merged")
			}
			if !back {
				p.comesBack(p.n)
			}
			p.calm()
			p.wants("2aaa", "0: 2, not 1")
		})
	}
}

// TestPublishWithoutItsAck was merged before the node was cut off. What others made of it since is no conflict.
func TestPublishWithoutItsAck(t *testing.T) {
	parted(t, dsm.Inode{}, func(p *parting) {
		p.stores(p.n, "11")
		p.n.ask("publish", p.n.area.Publish, nil)
		p.rest()
		p.deliverAll(link{p.n.i, p.home.i})
		p.net[link{p.home.i, p.n.i}] = nil
		p.isEvicted(p.n)
		p.alone()
		p.stores(p.other, "2")
		p.publishedAlone(p.other)
		p.stores(p.n, "..3")
		p.comesBack(p.n)
		p.published(p.n)
		p.wants("213a")
	})
}

// TestPushFromBeforeTheEviction comes to a node that does not know yet that it was evicted: the base copy stays what it was.
func TestPushFromBeforeTheEviction(t *testing.T) {
	parted(t, dsm.Inode{}, func(p *parting) {
		p.stores(p.n, "1")
		p.stores(p.other, "2")
		p.publishedAlone(p.other)
		p.isEvicted(p.n)
		p.alone()
		way := link{p.home.i, p.n.i}
		pushed := false
		for len(p.net[way]) > 0 {
			if st, ok := p.net[way][0].msg.(*wire.Push); ok && st.Epoch <= p.n.view.Epoch {
				p.deliverOn(way)
				pushed = true
				continue
			}
			p.take(way)
		}
		if base := p.n.area.mu.mem.Base(0)[:1]; !pushed || !bytes.Equal(base, []byte("a")) {
			t.Errorf("something was pushed: %v; the base copy is %q", pushed, base)
		}
		p.comesBack(p.n)
		p.published(p.n)
		p.wants("2aaa", "0: 2, not 1")
	})
}

// TestPushFromTheFormerSubscription comes to a node that is back. It does not say that a publish was merged that was merged after it.
func TestPushFromTheFormerSubscription(t *testing.T) {
	parted(t, dsm.Inode{}, func(p *parting) {
		p.stores(p.n, "1")
		p.n.ask("publish", p.n.area.Publish, nil)
		p.rest()
		p.stores(p.other, "........4")
		p.publishedAlone(p.other)
		way := link{p.home.i, p.n.i}
		former := p.net[way]
		p.net[way] = nil
		p.deliverAll(link{p.n.i, p.home.i})
		p.net[way] = nil
		p.isEvicted(p.n)
		p.stores(p.other, "2")
		p.publishedAlone(p.other)
		p.comesBack(p.n)
		p.net[way] = former
		p.published(p.n)
		p.wants("2aaabbbb4ccc")
	})
}

// homeIsCutOff has the home be evicted, publish alone, and the others hear of that.
func (p *parting) homeIsCutOff() {
	p.isEvicted(p.home)
	p.publishedAlone(p.home)
	for _, n := range []*simNode{p.n, p.other} {
		for n.behindCatalog() {
			n.apply()
		}
	}
}

// TestHomeComesBack: the home was cut off, and its programs have published. What the others stored to the same elements stays, also if they had sent it
// before the cut, and it comes when the home is back, or while it does not know yet that it was evicted.
func TestHomeComesBack(t *testing.T) {
	for _, c := range []struct{ sent, late bool }{{false, false}, {true, false}, {true, true}} {
		parted(t, dsm.Inode{}, func(p *parting) {
			p.stores(p.n, "1.1")
			way := link{p.n.i, p.home.i}
			if c.sent {
				publish(p.n)
			}
			p.stores(p.home, "22")
			p.homeIsCutOff()
			if !c.late {
				p.deliverAll(way)
			}
			p.comesBack(p.home)
			p.calm()
			p.published(p.n)
			p.wants("121a", "0: 1, not 2")
			if t.Failed() {
				t.Fatalf("sent %v, late %v", c.sent, c.late)
			}
		})
	}
}

// TestAcquireWhileTheHomeComesBack: a home that was cut off is a member again, and takes no pushes yet of an extent to which its programs have stored, not its own either. An acquire there waits until what
// others have published is in memory, and nobody takes it for that before.
func TestAcquireWhileTheHomeComesBack(t *testing.T) {
	parted(t, dsm.Inode{Size: 2 * dsm.ExtentSize, Spec: dsm.Spec{Apply: dsm.ApplySync}}, func(p *parting) {
		p.stores(p.n, "2")
		p.published(p.n)
		p.stores(p.home, "....1")
		p.isEvicted(p.home)
		a := p.home.area
		has := func() string { return string(a.mu.mem.Working(0)[:5]) }
		if got := has(); got != "aaaa1" {
			t.Fatalf("before that it has %q", got)
		}
		var q *request
		p.comesBackWhile(p.home, func() {
			q = p.home.ask("acquire", func(ctx context.Context) error { return a.Acquire(ctx, true) }, nil)
			p.rest()
			if q.over.Load() && has() != "2aaa1" {
				t.Errorf("an acquire has returned, and the memory has %q", has())
			}
			if err := a.WriteAt(t.Context(), []byte("x"), dsm.ExtentSize); err != nil {
				t.Fatal(err)
			}
			publish(p.home) // by the ack the home says up to where it has pushed everything
			for range 4 {
				p.checks++
				if bad := p.wholeProblem(p.home); bad != "" {
					t.Error(bad)
				}
			}
		})
		p.calm()
		if got := has(); !q.over.Load() || got != "2aaa1" {
			t.Errorf("the acquire has returned: %v, and the memory has %q", q.over.Load(), got)
		}
	})
}

// TestHiccup: what a home sends while the lease has run out is taken when it lasts again.
func TestHiccup(t *testing.T) {
	parted(t, dsm.Inode{}, func(p *parting) {
		p.n.fenced.Store(true)
		p.stores(p.n, "1")
		p.stores(p.other, "22")
		p.publishedAlone(p.other)
		p.deliverAll(link{p.home.i, p.n.i})
		if got := p.n.area.mu.mem.Working(0)[:2]; string(got) != "1a" {
			t.Errorf("without a lease it has taken in %q", got)
		}
		p.n.fenced.Store(false)
		p.pass(leaseRetry)
		p.published(p.n)
		p.wants("12aa")
	})
}

// TestNoRoomForConflicts: what does not fit is counted.
func TestNoRoomForConflicts(t *testing.T) {
	parted(t, dsm.Inode{}, func(p *parting) {
		p.n.node.conflictBytes.Store(mostConflicts - conflictCost - 2)
		p.meet("11..111", "22..222")
		found := p.n.node.ListConflicts(&wire.ListConflicts{Area: simArea})
		if len(found.List) != 1 || string(found.List[0].Kept) != "11" || found.Lost != 3 {
			t.Errorf("conflicts %+v", found)
		}
		p.n.node.ClearConflicts(simArea, 0)
		if found := p.n.node.ListConflicts(&wire.ListConflicts{Area: simArea}); len(found.List) > 0 || found.Lost > 0 || p.n.node.conflictBytes.Load() != mostConflicts-conflictCost-2 {
			t.Errorf("after they were cleared: %+v, %d bytes taken", found, p.n.node.conflictBytes.Load())
		}
	})
}

// TestEvictedTwice: what the first comparison did not come to, the second does.
func TestEvictedTwice(t *testing.T) {
	parted(t, dsm.Inode{}, func(p *parting) {
		p.isEvicted(p.n)
		p.stores(p.n, "1")
		p.stores(p.other, "2")
		p.publishedAlone(p.other)
		p.comesBack(p.n)
		p.isEvicted(p.n)
		p.alone()
		p.stores(p.n, ".1")
		p.stores(p.other, ".2")
		p.publishedAlone(p.other)
		for _, k := range []link{{p.home.i, p.n.i}, {p.n.i, p.home.i}, {p.other.i, p.n.i}, {p.n.i, p.other.i}} {
			p.net[k] = nil
		}
		p.comesBack(p.n)
		p.published(p.n)
		p.wants("22aa", "0: 22, not 11")
	})
}

// TestStoresUnderLostLocks: what was stored under locks that the cluster has dropped is given up as a whole, also where others have changed nothing, and so is
// what programs store until they have closed the file.
func TestStoresUnderLostLocks(t *testing.T) {
	parted(t, dsm.Inode{}, func(p *parting) {
		p.n.lost.Store(true)
		p.meet("1111....5.6.", "22..33..5..7")
		p.wants("22aa33bb5cc7", "0: aaaa, not 1111", "8: c, not 5", "10: c, not 6")
		p.n.node.ClearConflicts(simArea, 0)
		p.stores(p.n, ".....8.8")
		p.published(p.n)
		p.wants("22aa33bb5cc7", "5: 3, not 8", "7: b, not 8")
		p.n.lost.Store(false)
		p.stores(p.n, ".....9")
		p.published(p.n)
		p.wants("22aa39bb5cc7", "5: 3, not 8", "7: b, not 8")
	})
}

// TestPublishUnderLostLocks: a publish that has not reached the home is given up, and one that has stays.
func TestPublishUnderLostLocks(t *testing.T) {
	for _, arrives := range []bool{false, true} {
		parted(t, dsm.Inode{}, func(p *parting) {
			p.stores(p.n, "11")
			p.n.ask("publish", p.n.area.Publish, nil)
			p.rest()
			if arrives {
				p.deliverAll(link{p.n.i, p.home.i})
			}
			p.net[link{p.home.i, p.n.i}], p.net[link{p.n.i, p.home.i}] = nil, nil
			p.isEvicted(p.n)
			p.alone()
			p.stores(p.other, "2")
			p.publishedAlone(p.other)
			p.stores(p.n, "..3")
			p.n.lost.Store(true)
			p.comesBack(p.n)
			p.published(p.n)
			if arrives {
				p.wants("21aa", "0: aaa, not 113") // the node cannot know that the home had merged two of them
			} else {
				p.wants("2aaa", "0: aaa, not 113")
			}
		})
	}
}

// TestStoresUnderPlainLocks: with locks=plain no lock is an end of anything.
func TestStoresUnderPlainLocks(t *testing.T) {
	ino := dsm.Inode{}
	ino.Spec.Locks = dsm.LocksPlain
	parted(t, ino, func(p *parting) {
		p.n.lost.Store(true)
		p.meet("11", "..2")
		p.wants("112a")
	})
}
