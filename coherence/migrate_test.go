package coherence

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// MoveArea does what the catalog does: see catalog/place.go.
func (n *simNode) MoveArea(_ context.Context, id dsm.AreaID, to dsm.NodeID, patience uint8, e dsm.Epoch) error {
	s := n.sim
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.lastViewLocked().Clone()
	v.Epoch++
	row := *s.firstRowLocked(v)
	if row.Primary != n.id || row.Source != 0 || e < row.Epoch {
		return context.Canceled
	}
	v.Place(id, dsm.SlotHome{Primary: to, Source: n.id, Epoch: v.Epoch})
	v.OwnOf(id).Patience = patience
	s.log = append(s.log, entry{nil, v})
	return nil
}

// turns has the homes of an area see publishes: of writer i of who in turn, for so many windows each, in all for a number of windows. It returns
// how often the area moves.
func turns(who []dsm.NodeID, home dsm.NodeID, turn, windows int) (moves int) {
	const pace = 50 * time.Millisecond
	now := time.Unix(1, 0)
	l := new(lone)
	for k := range windows * int(migrateWindow/pace) {
		from := who[k*int(pace)/int(migrateWindow)/turn%len(who)]
		now = now.Add(pace)
		if to := l.published(now, from, home); to != 0 {
			moves++
			home = to
			l.reset(uint8(min(2*l.patience, dsm.MostPatience)))
		}
	}
	return moves
}

func TestWhoPublishesAloneGetsTheArea(t *testing.T) {
	const a, b, c = 1, 2, 3
	for _, x := range []struct {
		name         string
		who          []dsm.NodeID
		turn         int
		least, moves int // at least and at most
	}{
		{"the home", []dsm.NodeID{a}, 1, 0, 0},
		{"another", []dsm.NodeID{b}, 1, 1, 1},
		{"three in turn in less than a window", []dsm.NodeID{a, b, c}, 1, 0, 0},
		{"two in turn, each window", []dsm.NodeID{b, c}, 1, 0, 0},
		{"two in turn, 2 s", []dsm.NodeID{b, c}, 2, 0, 2},
		{"two in turn, 3 s", []dsm.NodeID{b, c}, 3, 1, 2},
		{"two in turn, 10 s", []dsm.NodeID{b, c}, 10, 1, 4},
		{"two in turn, 30 s", []dsm.NodeID{b, c}, 30, 1, 5},
		{"two in turn, 60 s", []dsm.NodeID{a, b}, 60, 1, 6},
		{"two in turn, 10 min", []dsm.NodeID{a, b}, 600, 5, 6}, // an hour has six turns
	} {
		if n := turns(x.who, a, x.turn, 3600); n < x.least || n > x.moves {
			t.Errorf("%s: %d moves in an hour, want %d to %d", x.name, n, x.least, x.moves)
		}
	}
	mixed := new(lone)
	for k := range 10_000 { // one in eight is of another node
		from := dsm.NodeID(b)
		if k%8 == 0 {
			from = c
		}
		if to := mixed.published(time.Unix(1, int64(k)*int64(20*time.Millisecond)), from, a); to != 0 {
			t.Fatalf("it moves to %v, of which are 7 in 8 publishes", to)
		}
	}
	seldom := new(lone)
	for k := range 10_000 {
		if to := seldom.published(time.Unix(1, int64(k)*int64(150*time.Millisecond)), b, a); to != 0 {
			t.Fatalf("it moves for 7 publishes a second")
		}
	}
	pauses := new(lone)
	for k := range 10_000 { // a window of publishes, then one without any
		at := time.Duration(k/20)*2*migrateWindow + time.Duration(k%20)*20*time.Millisecond
		if to := pauses.published(time.Unix(1, 0).Add(at), b, a); to != 0 {
			t.Fatalf("it moves, though there are never two windows running")
		}
	}
}

// TestAreaMovesToItsWriter has a node publish to an area that lives elsewhere: the area moves to it, and then its publishes take no message
// before the push. Whoever publishes next to it is merged as well.
func TestAreaMovesToItsWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ino := sums(2, dsm.ApplyArrival)
		ino.Spec.Placement = dsm.PlaceOne
		s := newHomed(t, 3, ino)
		home, writer := s.nodes[0], s.nodes[1]
		s.openAll()
		total := int32(0)
		for range 40 { // four seconds
			total++
			put(t, writer, total)
			publish(writer)
			s.catchUp()
			s.drain()
			s.pass(100 * time.Millisecond)
		}
		s.rested()
		if row := writer.area.rowLocked(0); row.Primary != writer.id || row.Source != 0 {
			t.Fatalf("the home is %+v, and node %v alone published", row, writer.id)
		}
		if own := writer.view.OwnOf(simArea); own.Moves != 1 || own.Patience != 2*dsm.LeastPatience {
			t.Errorf("%d moves, a patience of %d windows", own.Moves, own.Patience)
		}
		for _, n := range s.nodes {
			want(t, n, total)
		}
		put(t, writer, total+1)
		publish(writer)
		if x := writer.area.extentLocked(0); x.pub != nil || x.acked != x.started {
			t.Error("a publish at its home waits")
		}
		s.rested()
		put(t, home, total+11)
		publish(home)
		s.rested()
		for _, n := range s.nodes {
			want(t, n, total+11)
		}
	})
}

// TestAreaOfANodeStays: what a placement says is not moved by itself, and neither what is spread.
func TestAreaOfANodeStays(t *testing.T) {
	for _, where := range []dsm.Placement{"n1", dsm.PlaceSpread} {
		synctest.Test(t, func(t *testing.T) {
			ino := sums(2, dsm.ApplyArrival)
			ino.Spec.Placement = where
			s := newHomed(t, 2, ino)
			s.openAll()
			for k := range int32(60) {
				put(t, s.nodes[1], k)
				publish(s.nodes[1])
				s.catchUp()
				s.drain()
				s.pass(100 * time.Millisecond)
			}
			if row := s.nodes[1].area.rowLocked(0); row.Primary != s.nodes[0].id {
				t.Errorf("%s: the home is %+v", where, row)
			}
		})
	}
}
