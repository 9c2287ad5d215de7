package coherence

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// TestPageThatBecomesZeroWhileItComes: a node opens an area of which it is the home, or was until just now, so the base copy has the
// home's bytes. Before a page reaches its working copy another node publishes zeroes to it. The base must be zero then, too: the
// difference would count as stored here.
func TestPageThatBecomesZeroWhileItComes(t *testing.T) {
	t.Run("was home", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newHomed(t, 3, sums(1, dsm.ApplyArrival))
			was, writer, next := s.nodes[0], s.nodes[1], s.nodes[2]
			writer.open(true)
			put(t, writer, 5)
			publish(writer)
			s.drain()
			s.move(next, 1)
			put(t, writer, 0)
			publish(writer)
			s.deliverAll(link{1, 2})
			was.find()
			was.startOpen(true)
			s.drain()
			s.check()
			if err := was.area.WriteAt(context.Background(), []byte{1, 0, 0, 0}, 8); err != nil {
				t.Fatal(err)
			}
			publish(was)
			s.drain()
			want(t, was, 0)
			want(t, writer, 0)
		})
	})
	t.Run("is home", func(t *testing.T) {
		const extents = 6 // more than a home pushes at once
		s := newHomed(t, 2, sums(extents, dsm.ApplySync))
		home, writer := s.nodes[0], s.nodes[1]
		writer.open(true)
		for p := range int64(extents * dsm.ExtentPages) {
			if err := writer.area.WriteAt(t.Context(), []byte{5}, p*dsm.PageSize); err != nil {
				t.Fatal(err)
			}
		}
		publish(writer)
		s.drain()
		home.find()
		home.startOpen(true)
		e := dsm.ExtentIndex(0)
		for e < extents-1 && home.area.extentLocked(e).have == dsm.AllPages {
			e++
		}
		x, p := home.area.extentLocked(e), page(e, 255)
		if x.have.Has(255) {
			t.Fatal("all pages are here already")
		}
		if err := writer.area.WriteAt(t.Context(), []byte{0}, int64(p)*dsm.PageSize); err != nil {
			t.Fatal(err)
		}
		publish(writer)
		s.drain()
		home.startAcquire()
		s.drain()
		mem := home.area.mu.mem
		if !x.have.Has(255) || mem.Working(p)[0] != 0 || mem.Base(p)[0] != 0 || mem.HasTwin(p) {
			t.Errorf("here: %v, working copy %d, base %d, a twin: %v; want zeroes and no twin", x.have.Has(255), mem.Working(p)[0], mem.Base(p)[0], mem.HasTwin(p))
		}
	})
}

// TestRodeOfAnotherNode: only a home on the node itself can say that the base has followed.
func TestRodeOfAnotherNode(t *testing.T) {
	s, _, replica := pair(t, dsm.ApplyArrival)
	put(t, replica, 5)
	publish(replica)
	s.deliverAll(link{1, 0})
	acks := 0
	for _, f := range s.net[link{0, 1}] {
		if ack, ok := f.msg.(*wire.PublishAck); ok {
			ack.Rode = dsm.AllPages
			acks++
		}
	}
	if acks != 1 {
		t.Fatalf("%d acks", acks)
	}
	s.drain()
	s.check()
}
