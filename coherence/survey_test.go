package coherence

import (
	"context"
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
