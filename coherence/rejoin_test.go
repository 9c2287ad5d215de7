package coherence

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// TestRejoinedInTheMiddleOfABatch: a home that was away while its area went to another node and back again, and has a batch under way, gives
// up its own copy, which is out of date, and the batch.
func TestRejoinedInTheMiddleOfABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newOwnCase(t, 2, dsm.Spec{})
		a, b := c.nodes[0], c.nodes[1]
		if err := c.opens(a); err != nil {
			t.Fatal(err)
		}
		c.calm()
		a.node.links.window = 2 * dsm.PageSize // so that a batch does not fit
		for _, p := range hot {
			c.stores(a, int64(p)*dsm.PageSize, 1)
		}
		q := a.ask("publish", a.area.Publish, nil)
		c.rest()
		s := a.area.mu.home.subs[b.id]
		if !q.over.Load() || !s.batches.sending || len(a.area.mu.home.extents) == 0 {
			t.Fatal("no batch is under way")
		}
		a.area.Close(true)
		a.area.Close(false)
		a.area.expire()
		c.changeView(func(v *dsm.View) { v.Place(simArea, dsm.SlotHome{Primary: a.id, Source: b.id, Epoch: v.Epoch}) })
		a.apply()
		if a.area.mu.replica.subscribed || s.batches != nil || len(a.area.mu.home.extents) > 0 {
			t.Errorf("the batch is %v, home copies of %d extents are left", s.batches, len(a.area.mu.home.extents))
		}
	})
}

// TestAnotherNodeHasJoinedAgain: what is under way to it is sent again under its number, and it has no subscription any more.
func TestAnotherNodeHasJoinedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 2, sums(1, dsm.ApplyArrival))
		home, n := s.nodes[0], s.nodes[1]
		home.find()
		n.open(true)
		put(t, n, 5)
		publish(n)
		again := func(o *simNode) {
			s.changeView(func(v *dsm.View) {
				v.Members = append([]dsm.Member(nil), v.Members...)
				v.Members[o.i].Inc++
				v.Members[o.i].Since++
			})
		}
		sent := func() (seqs []dsm.Seq) {
			for _, f := range s.net[link{n.i, home.i}] {
				if m, ok := f.msg.(*wire.Publish); ok {
					seqs = append(seqs, m.Seq)
				}
			}
			return seqs
		}
		first := sent()
		s.net[link{n.i, home.i}] = nil
		again(home)
		n.apply()
		if got := sent(); len(first) != 1 || !slices.Equal(got, first) {
			t.Errorf("it has sent publishes %v, and then %v", first, got)
		}
		home.apply()
		if home.area.mu.home.subs[n.id] == nil {
			t.Fatal("nobody has subscribed")
		}
		again(n)
		home.apply()
		if home.area.mu.home.subs[n.id] != nil {
			t.Error("a node that has joined again is still subscribed")
		}
	})
}
