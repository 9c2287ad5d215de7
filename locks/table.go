package locks

import (
	"cmp"
	"slices"
)

// table is the locks of one file, and the requests that wait, oldest first.
type table struct {
	granted []Lock // sorted by owner and position; two of one owner neither touch nor overlap, unless they differ in type
	queue   []Request
}

func (t *table) empty() bool { return len(t.granted) == 0 && len(t.queue) == 0 }

// conflict returns a lock that l conflicts with: the one that starts first.
func (t *table) conflict(l Lock) (in Lock, ok bool) {
	for _, h := range t.granted {
		if h.conflicts(l) && (!ok || h.First < in.First) {
			in, ok = h, true
		}
	}
	return in, ok
}

// place gives l to its owner, in place of the locks that the owner had on these bytes. It reports
// whether the owner has less now than before, so that others may be granted something.
func (t *table) place(l Lock) (less bool) {
	var own, rest []Lock
	for _, h := range t.granted {
		if h.Owner == l.Owner {
			own = append(own, h)
		} else {
			rest = append(rest, h)
		}
	}
	var now []Lock
	for _, h := range own {
		if h.Last < l.First || h.First > l.Last {
			now = append(now, h)
			continue
		}
		less = less || h.Type > l.Type
		if h.First < l.First {
			before := h
			before.Last = l.First - 1
			now = append(now, before)
		}
		if h.Last > l.Last {
			after := h
			after.First = l.Last + 1
			now = append(now, after)
		}
	}
	if l.Type != Unlock {
		now = append(now, l)
	}
	slices.SortFunc(now, func(a, b Lock) int { return cmp.Compare(a.First, b.First) })
	joined := now[:0]
	for _, h := range now {
		if n := len(joined); n > 0 && joined[n-1].Type == h.Type && joined[n-1].Last+1 == h.First {
			joined[n-1].Last, joined[n-1].PID = h.Last, l.PID
			continue
		}
		joined = append(joined, h)
	}
	t.granted = append(rest, joined...)
	slices.SortFunc(t.granted, compareLocks)
	return less
}

func compareLocks(a, b Lock) int {
	return cmp.Or(cmp.Compare(a.Owner.Node, b.Owner.Node), cmp.Compare(a.Owner.ID, b.Owner.ID), flockLast(a)-flockLast(b), cmp.Compare(a.First, b.First))
}

func flockLast(l Lock) int {
	if l.Owner.Flock {
		return 1
	}
	return 0
}

// grantedTo returns the locks of an owner.
func (t *table) grantedTo(o Owner) (locks []Lock) {
	for _, h := range t.granted {
		if h.Owner == o {
			locks = append(locks, h)
		}
	}
	return locks
}
