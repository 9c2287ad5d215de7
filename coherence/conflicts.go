package coherence

import (
	"bytes"
	"slices"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// Conflict is a run of elements to which both sides have stored while this node, or the home, was cut off. See returning.go.
type Conflict struct {
	Number uint64 // counts those of the area on this node, from 1
	Time   time.Time
	Off    int64
	Kept   []byte // the values that were given up
	Taken  []byte // those that stay, if they are short
}

// conflicts are those of an area that nobody has cleared.
type conflicts struct {
	list   []Conflict
	last   uint64 // number of the last one
	joins  bool   // the last one may go on
	bytes  int64  // of list
	lost   int64  // bytes that there was no room for
	untold int64  // bytes that the log has not told of
}

const (
	// mostTaken is how many bytes of Conflict.Taken are kept. The file has them, until somebody changes it.
	mostTaken = 32
	// conflictPart is the part of the node's memory that conflicts may take: 64th, within these bounds.
	conflictPart                        = 64
	leastConflicts, mostConflicts       = 1 << 20, 16 << 20
	conflictCost                  int64 = 128 // of a Conflict besides its bytes
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
	c := &a.mu.absence.conflicts
	n := int64(len(given))
	if a.node.conflictBytes.Add(n+conflictCost) > a.node.conflictRoom() {
		a.node.conflictBytes.Add(-n - conflictCost)
		c.lost, c.joins = c.lost+n, false
		return
	}
	c.untold += n
	if k := len(c.list) - 1; c.joins && c.list[k].Off+int64(len(c.list[k].Kept)) == off {
		a.node.conflictBytes.Add(-conflictCost)
		c.bytes += n
		x := &c.list[k]
		if x.Kept = append(x.Kept, given...); len(x.Kept) <= mostTaken {
			x.Taken = append(x.Taken, stay...)
		} else {
			x.Taken = nil
		}
		return
	}
	c.last++
	x := Conflict{Number: c.last, Time: a.now(), Off: off, Kept: bytes.Clone(given)}
	if n <= mostTaken {
		x.Taken = bytes.Clone(stay)
	}
	c.list, c.joins, c.bytes = append(c.list, x), true, c.bytes+n+conflictCost
}

// tellOfConflictsLocked tells the log what was found when this node, or a home, came back.
func (a *Area) tellOfConflictsLocked() {
	c := &a.mu.absence.conflicts
	if c.untold > 0 {
		a.node.cfg.Log.Warn("programs here and others have stored to the same elements while a node was cut off: the values of the majority stay",
			"area", a.id, "kept_bytes", c.untold, "todo", "see conflicts among the control files of the area")
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
	c.list = slices.DeleteFunc(c.list, func(x Conflict) bool {
		drop := upTo == 0 || x.Number <= upTo
		if drop {
			gone += int64(len(x.Kept)) + conflictCost
		}
		return drop
	})
	if c.bytes -= gone; len(c.list) == 0 {
		c.lost = 0
	}
	c.joins = false
	a.node.conflictBytes.Add(-gone)
}

// conflictBytesLocked returns the memory that conflicts take.
func (a *Area) conflictBytesLocked() int64 {
	if a.mu.absence == nil {
		return 0
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
