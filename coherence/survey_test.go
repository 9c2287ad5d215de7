package coherence

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestSurveyWhileASlotMoves: a home has said how many pages it has, and the answer is under way when one of its slots moves. The
// pages in that count once, not at the old home and again at the new one.
func TestSurveyWhileASlotMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 3, sums(2, dsm.ApplyAuto))
		before, after, asks := s.nodes[0], s.nodes[1], s.nodes[2]
		before.open(true)
		for e := range int64(2) {
			if err := before.area.WriteAt(context.Background(), []byte{1, 0, 0, 0}, e*dsm.ExtentSize); err != nil {
				t.Fatal(err)
			}
		}
		publish(before)
		s.drain()
		after.find()
		asks.find()
		pages := make(chan int64)
		go func() {
			n, err := asks.node.CountPages(context.Background(), simArea)
			if err != nil {
				t.Error(err)
			}
			pages <- n
		}()
		synctest.Wait()
		s.deliverAll(link{2, 0})
		s.move(after, 1)
		for range 3 { // the handover ends, and what waited for it
			s.catchUp()
			s.drain()
		}
		if n := <-pages; n != 2 {
			t.Errorf("%d pages, want 2", n)
		}
	})
}

// countWatch is a page cache that counts how often it hears that a number of pages is out of date.
type countWatch struct {
	PageCache
	miscounted atomic.Int32
}

func (w *countWatch) Miscounted(dsm.AreaID) { w.miscounted.Add(1) }

// Miscounted implements PageCache: nobody enters the pages of files.
func (n *simNode) Miscounted(dsm.AreaID) {}

// TestPublishTellsHowManyPages: who publishes to a file of one extent knows then how many pages have data, and asks nobody, until
// another node publishes.
func TestPublishTellsHowManyPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, who := range []struct {
			name      string
			publisher int
		}{{"the home", 0}, {"another node", 1}} {
			apply := dsm.ApplyArrival
			s := newHomed(t, 3, sums(1, apply))
			p, other := s.nodes[who.publisher], s.nodes[2]
			watch := &countWatch{PageCache: p}
			p.open(true)
			other.open(true)
			s.drain()
			store := func(n *simNode, page int64, b byte, want int64) {
				t.Helper()
				if err := n.area.WriteAt(t.Context(), []byte{b, 0, 0, 0}, page*dsm.PageSize); err != nil {
					t.Fatal(err)
				}
				publish(n)
				s.drain()
				if got, known := n.area.Counted(); !known || got != want {
					t.Errorf("%s published: %d pages, known: %v, want %d", who.name, got, known, want)
				}
			}
			store(p, 3, 1, 1)
			store(p, 7, 1, 2)
			p.area.Recounts()
			p.node.SetPageCache(watch)
			store(other, 8, 1, 3)
			if _, known := p.area.Counted(); known {
				t.Errorf("%s: another node has published since, but the number counts as known", who.name)
			}
			if watch.miscounted.Load() != 1 {
				t.Errorf("%s: another node has published, and the page cache is told %d times", who.name, watch.miscounted.Load())
			}
			if !p.area.Recounts() || p.area.Recounts() {
				t.Errorf("%s: another node has published, and the number that was told before is not counted again, once", who.name)
			}
			store(p, 8, 2, 3)
			n, err := p.node.CountPages(t.Context(), simArea)
			if err != nil || n != 3 {
				t.Errorf("%s: %d pages, %v", who.name, n, err)
			}
		}
		// Where updates enter memory in sync calls only, a home does not tell of what others publish.
		s := newHomed(t, 2, sums(1, dsm.ApplySync))
		p := s.nodes[1]
		p.open(true)
		s.drain()
		if err := p.area.WriteAt(t.Context(), []byte{1, 0, 0, 0}, 0); err != nil {
			t.Fatal(err)
		}
		publish(p)
		s.drain()
		if n, known := p.area.Counted(); known {
			t.Errorf("%d pages count as known, but the home does not say if there are more", n)
		}
	})
}
