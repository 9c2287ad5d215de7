package coherence

import (
	"context"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// An area that lives at one home moves to the node that alone publishes to it: from then on a publish takes no message before the push.
// Reads do not count, for every reader has its own copy. The home counts publishes in windows of its clock, and looks at a window when
// the next publish comes: nobody moves an area that nobody publishes to.

const (
	// migrateWindow is how long publishes are counted. A move of 16 MiB takes some ten milliseconds.
	migrateWindow = time.Second
	// migrateLeast is how many publishes of a window say anything, and migrateShare of ten must be of one node.
	migrateLeast = 8
	migrateShare = 9
	// migrateProof is how many windows in which its own node alone publishes prove a home right. Two writers that take turns for less than a
	// minute never get there: their area stops moving when the patience has grown beyond a turn.
	migrateProof = 64
	// migratePages bounds what moves by itself, in pages with data: while an area moves, publishes to it wait.
	migratePages = 64 << 20 / dsm.PageSize
	// migrateAtOnce bounds the questions to the catalog that are under way.
	migrateAtOnce = 4
)

// lone is what a home knows of who publishes to an area.
type lone struct {
	since    time.Time // the beginning of the window
	counts   map[dsm.NodeID]int
	total    int
	other    dsm.NodeID // that alone has published in the windows so far
	run      int        // how many these are
	right    int        // windows in which this node alone has published
	patience int        // how long a run has to be
	asking   bool
}

// reset follows a view in which the area has another home, or this node is a new one.
func (l *lone) reset(patience uint8) {
	*l = lone{counts: make(map[dsm.NodeID]int), patience: max(int(patience), dsm.LeastPatience)}
}

// published counts a publish of a node. It returns the node that the area should move to, or 0.
func (l *lone) published(now time.Time, from, self dsm.NodeID) (to dsm.NodeID) {
	if l.counts == nil {
		l.reset(0)
	}
	switch d := now.Sub(l.since); {
	case l.since.IsZero():
		l.since = now
	case d >= migrateWindow:
		l.closeWindow(self)
		if l.run >= l.patience && !l.asking {
			to = l.other
		}
		if d >= 2*migrateWindow {
			l.run = 0 // there was a window without any
		}
		l.since = now
	}
	l.counts[from]++
	l.total++
	return to
}

// closeWindow looks at the publishes of a window.
func (l *lone) closeWindow(self dsm.NodeID) {
	most := dsm.NodeID(0)
	for id, n := range l.counts {
		if l.total >= migrateLeast && 10*n >= migrateShare*l.total {
			most = id
		}
	}
	few := l.total < migrateLeast
	clear(l.counts)
	l.total = 0
	switch {
	case few:
		l.run = 0
	case most == self:
		l.run = 0
		if l.right++; l.right == migrateProof {
			l.right, l.patience = 0, max(l.patience/2, dsm.LeastPatience)
		}
	case most == 0:
		l.run, l.right = 0, 0
	case most == l.other && l.run > 0:
		l.run++
	default:
		l.other, l.run, l.right = most, 1, 0
	}
}

// publishedByLocked counts a publish that was merged, and has the area moved if one other node has made nearly all of them for a while.
func (a *Area) publishedByLocked(from dsm.NodeID, e dsm.ExtentIndex) {
	s, row := a.mu.ino.Spec, a.rowLocked(e)
	if _, fixed := s.Placement.Node(); fixed || s.Mode == dsm.ModeVersioned || !s.OneHome(a.mu.ino.Size) || row.Source != 0 || a.mu.home.data > migratePages {
		return
	}
	l := &a.mu.home.lone
	to := l.published(a.now(), from, a.node.cfg.Self)
	if to == 0 || a.node.moving.Add(1) > migrateAtOnce {
		if to != 0 {
			a.node.moving.Add(-1)
		}
		return
	}
	l.asking = true
	patience, epoch := uint8(min(2*l.patience, dsm.MostPatience)), a.mu.view.Epoch
	a.mu.arrived = append(a.mu.arrived, func() { a.node.handovers.askToMove(a, to, patience, epoch) })
}

// askToMove asks the catalog to move an area to another node.
func (h *handovers) askToMove(a *Area, to dsm.NodeID, patience uint8, e dsm.Epoch) {
	h.later(func() {
		ctx, cancel := context.WithTimeout(h.ctx, 10*time.Second)
		err := h.node.cfg.View.MoveArea(ctx, a.id, to, patience, e)
		cancel()
		h.node.moving.Add(-1)
		if err == nil {
			h.node.stats.areasMoved.Add(1)
		} else {
			h.node.cfg.Log.Debug("an area stays though another node alone publishes to it", "area", a.id, "node", to, "err", err)
		}
		a.step(func() { a.mu.home.lone.asking, a.mu.home.lone.run = false, 0 })
	})
}
