package coherence

import (
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// linkWindow bounds the page data of all areas together that has been sent to one node and is not
// answered. A fast link needs less (see pushWindow), and the transport breaks a session with four
// times as much. A link has less if its part of Config.UnderWay is less.
const linkWindow = 16 << 20

// linkTurn is how much an area may send when it is its turn on a full link.
const linkTurn = dsm.ExtentSize

// links are the ways to the other nodes. Pushes and publishes take credit of a link before they are
// sent. The credit comes back when they are answered, or dropped with their session. Other messages
// are small and need no credit. An area that gets no credit remembers what it has to send as sets
// of pages, and is called when there is credit again, one area after the other.
type links struct {
	window int   // linkWindow; tests use less
	all    int64 // Config.UnderWay
	mu     struct {
		lockrank.Mutex
		to map[dsm.NodeID]*credit
	}
}

// credit is what one link has under way, and which areas wait.
type credit struct {
	used    int
	waiting []*Area
	turn    *Area // the area that may take credit now; nil: any, if none waits
	left    int   // of turn's share
	given   bool  // credit came back during the turn
	calling bool  // callAll is running
}

func (l *links) init(all int64) {
	l.window, l.all = linkWindow, all
	l.mu.Init("coherence.links")
	l.mu.to = make(map[dsm.NodeID]*credit)
}

func (l *links) creditLocked(to dsm.NodeID) *credit {
	c := l.mu.to[to]
	if c == nil {
		c = &credit{}
		l.mu.to[to] = c
	}
	return c
}

// windowFor returns what one link may have under way: as much as any other, so that a slow one does not take what the others need.
func (l *links) windowFor(v *dsm.View) int {
	if l.all == 0 {
		return l.window
	}
	return min(l.window, int(l.all)/max(len(v.Members)-1, 1))
}

// take takes credit for n bytes. If it returns false, the area will be called when there is credit. One message is always let through, so
// that an area whose extent is larger than the window goes on.
func (l *links) take(to dsm.NodeID, a *Area, n int) bool {
	if n == 0 || a.isSelf(to) {
		return true
	}
	window := l.windowFor(a.node.cfg.View.Current())
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.creditLocked(to)
	fits := c.used == 0 || c.used+n <= window
	switch {
	case fits && c.turn == nil && len(c.waiting) == 0:
	case fits && c.turn == a && c.left > 0:
		c.left -= n
	default:
		if i := slices.Index(c.waiting, a); i >= 0 {
			return false
		}
		if c.turn == a && c.left == linkTurn { // it got nothing, so it stays the next one
			c.waiting = slices.Insert(c.waiting, 0, a)
			return false
		}
		c.waiting = append(c.waiting, a)
		return false
	}
	c.used += n
	return true
}

// give gives credit back.
func (l *links) give(to dsm.NodeID, a *Area, n int) {
	if n == 0 || a.isSelf(to) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.creditLocked(to)
	c.used -= n
	c.given = true
	if len(c.waiting) > 0 && !c.calling {
		c.calling = true
		go l.callAll(to, c)
	}
}

// more takes credit unconditionally, for a message that turned out larger than the credit taken for
// it; n may be negative.
func (l *links) more(to dsm.NodeID, a *Area, n int) {
	if n < 0 {
		l.give(to, a, -n)
		return
	}
	if n == 0 || a.isSelf(to) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.creditLocked(to).used += n
}

// callAll calls areas that wait for credit, until there is no credit left or none waits.
func (l *links) callAll(to dsm.NodeID, c *credit) {
	for {
		l.mu.Lock()
		if len(c.waiting) == 0 {
			c.calling = false
			l.mu.Unlock()
			return
		}
		a := c.waiting[0]
		c.waiting = slices.Delete(c.waiting, 0, 1)
		c.turn, c.left, c.given = a, linkTurn, false
		l.mu.Unlock()

		a.step(func() { a.creditReturnedLocked(to) })

		l.mu.Lock()
		full := c.left == linkTurn && len(c.waiting) > 0 && c.waiting[0] == a
		c.turn = nil
		if full && !c.given {
			c.calling = false
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
	}
}

// creditReturnedLocked sends what the area could not send for lack of credit.
func (a *Area) creditReturnedLocked(to dsm.NodeID) {
	a.pumpCopiesLocked(to)
	a.pumpLocked(to, a.mu.home.subs[to])
	a.sendUnsentLocked()
	a.startPublicationsLocked()
}
