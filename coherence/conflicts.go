package coherence

import (
	"bytes"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/pages"
)

// conflicts are those of an area that nobody has cleared: runs of elements to which both sides have stored while this node, or the home, was cut off. See returning.go.
// On a node that is held each is in the Keep before the value that it keeps goes from the working copy, so the next daemon has one or the other.
type conflicts struct {
	list   []pages.Conflict
	last   uint64 // number of the last one
	joins  bool   // the last one may go on
	bytes  int64  // of list
	lost   int64  // bytes that there was no room for
	untold int64  // bytes that the log has not told of
	before int    // how many in list are from the daemon before
}

const (
	// mostTaken is how many bytes of those that stay are kept. The file has them, until somebody changes it.
	mostTaken = 32
	// conflictPart is the part of the node's memory that conflicts may take: 64th, within these bounds.
	conflictPart                        = 64
	leastConflicts, mostConflicts       = 1 << 20, 16 << 20
	conflictCost                  int64 = 128 // of a conflict besides its bytes
	// conflictPage is how many bytes a node tells of at once.
	conflictPage = 256 << 10
)

// conflictRoom returns how many bytes conflicts of all areas may take.
func (n *Node) conflictRoom() int64 {
	if n.cfg.Memory == 0 {
		return mostConflicts
	}
	return min(max(n.cfg.Memory/conflictPart, leastConflicts), mostConflicts)
}

// keepLocked keeps values aside that are given up for others.
func (a *Area) keepLocked(off int64, given, stay []byte) {
	c := &a.absentLocked().conflicts
	n := int64(len(given))
	if c.keptBefore(off, given) {
		return
	}
	if a.node.conflictBytes.Add(n+conflictCost) > a.node.conflictRoom() {
		a.node.conflictBytes.Add(-n - conflictCost)
		c.lost, c.joins = c.lost+n, false
		a.node.cfg.Store.LoseConflicts(a.id, c.lost)
		return
	}
	c.untold += n
	if n > mostTaken {
		stay = nil
	}
	x := pages.Conflict{Area: a.id, Number: c.last, Time: a.now(), Off: off, Kept: given, Taken: stay}
	if k := len(c.list) - 1; c.joins && c.list[k].Off+int64(len(c.list[k].Kept)) == off {
		a.node.conflictBytes.Add(-conflictCost)
	} else {
		c.last++
		x.Number = c.last
	}
	a.node.cfg.Store.KeepConflict(&x)
	c.add(x)
	c.joins = true
}

// add adds a conflict, or to the last one what has the same number. It returns how many bytes more there are.
func (c *conflicts) add(x pages.Conflict) (n int64) {
	n = int64(len(x.Kept))
	k := len(c.list) - 1
	if k < 0 || c.list[k].Number != x.Number {
		x.Kept, x.Taken = bytes.Clone(x.Kept), bytes.Clone(x.Taken)
		c.list, n = append(c.list, x), n+conflictCost
	} else if last := &c.list[k]; len(last.Kept)+len(x.Kept) <= mostTaken && len(last.Taken) == len(last.Kept) && len(x.Taken) == len(x.Kept) {
		last.Kept, last.Taken = append(last.Kept, x.Kept...), append(last.Taken, x.Taken...)
	} else {
		last.Kept, last.Taken = append(last.Kept, x.Kept...), nil
	}
	c.bytes += n
	return n
}

// keptBefore reports whether the daemon before has kept a value. If it was killed just then, the store is still there, and is given up again. That can be so of one page, and until it has resumed.
func (c *conflicts) keptBefore(off int64, given []byte) bool {
	for i := c.before - 1; i >= 0; i-- {
		x := c.list[i]
		end := x.Off + int64(len(x.Kept))
		if (end-1)/dsm.PageSize != off/dsm.PageSize {
			break
		}
		if x.Off <= off && off+int64(len(given)) <= end && bytes.Equal(x.Kept[off-x.Off:][:len(given)], given) {
			return true
		}
	}
	return false
}

// resumeConflicts takes over what earlier daemons have kept.
func (n *Node) resumeConflicts() error {
	all, last := n.cfg.Store.Conflicts()
	n.lastConflict.Store(last)
	for id, left := range all {
		a, err := n.area(id)
		if errs.Is(err, errs.NotExist) { // it was removed
			n.cfg.Store.DropConflicts(id, 0)
			n.cfg.Store.LoseConflicts(id, 0)
			continue
		}
		if err != nil {
			return err
		}
		a.step(func() {
			c := &a.absentLocked().conflicts
			for _, x := range left.List {
				n.conflictBytes.Add(c.add(x))
			}
			c.before, c.lost = len(c.list), left.Lost
		})
	}
	return nil
}

// tellOfConflictsLocked tells the log why values were given up.
func (a *Area) tellOfConflictsLocked(why string) {
	c := &a.absentLocked().conflicts
	if c.untold > 0 {
		a.node.cfg.Log.Warn(why, "area", a.id, "kept_bytes", c.untold, "todo", "see conflicts among the control files of the area")
		c.untold = 0
	}
	if c.lost > 0 {
		a.node.cfg.Log.Error("there is no room to keep what was stored while this node was cut off, and others have changed too", "area", a.id,
			"lost_bytes", c.lost, "room", a.node.conflictRoom())
	}
}

// ListConflicts answers a node, or this one, that asks for the conflicts of an area that this node keeps: with a page of them.
func (n *Node) ListConflicts(m *wire.ListConflicts) *wire.ConflictsListed {
	out := &wire.ConflictsListed{}
	a := n.known(m.Area)
	if a == nil {
		return out
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.absence == nil {
		return out
	}
	c := &a.mu.absence.conflicts
	out.Lost = c.lost
	room := conflictPage
	for _, x := range c.list {
		if x.Number < m.From {
			continue
		}
		if out.More = room <= 0; out.More {
			break
		}
		part := x.Kept
		if x.Number == m.From {
			part = part[min(max(m.Skip, 0), int64(len(part))):]
		}
		rest := part[min(room, len(part)):]
		part = part[:len(part)-len(rest)] // it stays as it is: values are only added behind
		out.List = append(out.List, wire.KeptConflict{Number: x.Number, Time: x.Time, Off: x.Off, Kept: part, Rest: int64(len(rest)), Taken: x.Taken})
		out.More = len(rest) > 0
		room -= len(part) + int(conflictCost)
	}
	return out
}

// ClearConflicts drops the conflicts of an area up to a number; 0: all.
func (n *Node) ClearConflicts(id dsm.AreaID, upTo uint64) {
	if a := n.known(id); a != nil {
		a.step(func() { a.clearConflictsLocked(upTo) })
	}
}

func (a *Area) clearConflictsLocked(upTo uint64) {
	if a.mu.absence == nil {
		return
	}
	c := &a.mu.absence.conflicts
	var gone int64
	c.list = slices.DeleteFunc(c.list, func(x pages.Conflict) bool {
		drop := upTo == 0 || x.Number <= upTo
		if drop {
			gone += int64(len(x.Kept)) + conflictCost
		}
		return drop
	})
	if c.bytes -= gone; len(c.list) == 0 {
		c.lost = 0
	}
	c.joins, c.before = false, 0
	a.node.conflictBytes.Add(-gone)
	a.node.cfg.Store.DropConflicts(a.id, upTo)
	a.node.cfg.Store.LoseConflicts(a.id, c.lost)
}

// conflictBytesLocked returns the memory that conflicts take.
func (a *Area) conflictBytesLocked() int64 {
	if a.mu.absence == nil {
		return 0
	}
	if a.node.cfg.Store != nil { // which has them, too
		return 2 * a.mu.absence.bytes
	}
	return a.mu.absence.bytes
}

// ConflictCount returns how many conflicts are kept.
func (a *Area) ConflictCount() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.absence == nil {
		return 0
	}
	return len(a.mu.absence.list)
}
