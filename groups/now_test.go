package groups

import (
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// TestNowWaitsForNobody has the functions for a loop called while another goroutine has the lock.
func TestNowWaitsForNobody(t *testing.T) {
	c := newCluster(t, 2)
	members := c.join(2, 0, 1)
	ended := make(chan error, 2)
	done := func(_ Result, err error) { ended <- err }
	n := c.nodes[1]
	report := &wire.GroupReport{Group: 9, Epoch: 1}

	n.mu.Lock()
	if taken, err := members[1].ArriveNow(1, done); taken || err != nil {
		t.Errorf("an arrival while another goroutine is at work: %t, %v", taken, err)
	}
	if n.HandleNow(1, report) {
		t.Error("a message was handled while another goroutine was at work")
	}
	n.mu.Unlock()

	for _, m := range members {
		if taken, err := m.ArriveNow(1, done); !taken || err != nil {
			t.Fatalf("an arrival when nobody is at work: %t, %v", taken, err)
		}
	}
	for range members {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if taken, err := members[0].ArriveNow(5, done); !taken || err == nil {
		t.Errorf("an arrival out of turn: %t, %v", taken, err)
	}
	if !n.HandleNow(1, report) {
		t.Error("a report of nobody was left to another goroutine")
	}
	report.Seats = make([]wire.GroupSeat, few+1)
	if n.HandleNow(1, report) {
		t.Error("the loop took a report of many members")
	}
}

// busyArea is an area at which another goroutine is at work until over is closed.
type busyArea struct {
	noted
	over  chan struct{}
	given chan dsm.RoundID
}

func (a *busyArea) AbandonRound(id dsm.RoundID) {
	<-a.over
	a.given <- id
}

// TestNowGivesRoundsUpElsewhere has a message give up a round whose area is busy.
func TestNowGivesRoundsUpElsewhere(t *testing.T) {
	c := newCluster(t, 2)
	n := c.nodes[1]
	m := c.join(2, 0, 1)[1]
	area := &busyArea{over: make(chan struct{}), given: make(chan dsm.RoundID, 1)}
	if err := m.Accumulate(t.Context(), 1, 5, area, func(dsm.RoundID) error { return nil }); err != nil {
		t.Fatal(err)
	}
	n.mu.Lock()
	m.endLocked(errs.E(errs.Closed, "test", "the member is none any more"))
	n.settleLocked(true)
	close(area.over)
	if id := <-area.given; id != m.Round(1) {
		t.Errorf("round %v was given up, want %v", id, m.Round(1))
	}
}
