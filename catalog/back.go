package catalog

import (
	"iter"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/hold"
)

// The daemon of a node with a holder was killed, and another has followed: the node is back. It is a member as before, with its claims and its
// locks. What it has sent before counts as sent by another incarnation (dsm.Member.Since). It goes on as the home with what the daemon before had: that has said of which
// slots it had all, before it served them. The bytes of files of some kinds end with the daemon; of their slots, and of those that it was a backup of, it has nothing any more. Where it was the home, backups take over then, as if
// it had died. A slot that was on its way to the node, and that it had not all of, goes back to its source, which has it still.
//
// So no backup takes over from a node that has everything itself: the daemons of both may have been killed, and then the backup has nothing.
//
// Where nobody has a slot in which a file has bytes, the node cannot come back: its daemon ends, and it is marked as gone as any node that dies. Where no file has bytes, the slot begins anew.

func (o backOp) apply(s *state, st step) (dsm.Inode, error) {
	m, ok := s.view.Member(o.Node)
	if !ok || m.Gone || m.Inc != o.Inc || st.node != o.Node {
		return dsm.Inode{}, fail(errs.Evicted, "node %s", o.Node)
	}
	only, left := make(map[dsm.Slot]bool), s.leftBy(o, m.Since)
	for slot, h := range s.view.Rows() {
		if row := *h; !withdraw(s.view, &row, o.Node, left[slot]) {
			only[slot] = true
		}
	}
	if in := s.bytesIn(only); len(in) > 0 {
		slot := sortedKeys(in)[0]
		return dsm.Inode{}, fail(errs.Busy, "nobody else has slot %d, in which inode %d has bytes", slot, in[slot].Ino)
	}
	s.reviewed(func(v *dsm.View) {
		for i := range v.Members {
			if v.Members[i].ID == o.Node {
				v.Members[i].Since = v.Epoch
			}
		}
		for slot, h := range v.Rows() {
			withdraw(v, h, o.Node, left[slot])
		}
	})
	s.joinedAgain(o.Node, o.Noted, o.Keep)
	s.sessions[o.Node].end(o.Last, o.Keep)
	s.effects.locks = append(s.effects.locks, s.book.Back(o.Node)...)
	return dsm.Inode{}, nil
}

// servedSlot is a slot of which the daemon before had all: since the node became its home in epoch Since. Offered is the epoch of the node to which all was sent last.
type servedSlot struct {
	Slot    dsm.Slot
	Since   dsm.Epoch
	Offered dsm.Epoch
}

func listed(served map[dsm.Slot]dsm.Served) (list []servedSlot) {
	for _, slot := range sortedKeys(served) {
		list = append(list, servedSlot{slot, served[slot].Since, served[slot].Offered})
	}
	return list
}

// mostServed is the size of the largest file of which a daemon goes on as the home.
const mostServed = 64 << 30

// leftOver is what a node has of a slot when its daemon was killed.
type leftOver struct {
	served  bool // the daemon before had all of it, as its home
	kept    bool // and that outlives the daemon
	offered bool // it has sent all to the next home, which may have served it
}

// leftBy returns what the node has of slots. since is when the daemon before was back: if that was killed before it served what was its own then, it had
// changed nothing of it.
func (s *state) leftBy(o backOp, since dsm.Epoch) map[dsm.Slot]leftOver {
	left := make(map[dsm.Slot]leftOver, len(o.Served))
	for _, x := range o.Served {
		h := s.view.Row(x.Slot)
		became := func(home dsm.Epoch) bool { return x.Since == home || since != 0 && home == since }
		switch {
		case h == nil:
		case h.Primary == o.Node && h.Source != 0 && x.Since == h.Epoch, h.Primary == o.Node && h.Source == 0 && became(h.Epoch), h.Source == o.Node && became(h.Had):
			left[x.Slot] = leftOver{served: true, kept: true, offered: h.Source == o.Node && x.Offered == h.Epoch}
		}
	}
	if len(left) == 0 {
		return left
	}
	for _, in := range s.inodes {
		if in.Kind != dsm.KindFile || in.Spec.Residency != dsm.ResidencyDemand && in.Size <= mostServed {
			continue // the memory of all others outlives the daemon
		}
		for e := range in.Spec.CoveringExtents(in.Size) {
			if slot := s.view.SlotOf(in.Area(), in.Spec, dsm.ExtentIndex(e)); left[slot].kept {
				x := left[slot]
				x.kept = false
				left[slot] = x
			}
		}
	}
	return left
}

// end says that commands up to a number which were not applied never are, but for those to keep.
func (s *session) end(last uint64, keep []uint64) {
	if last >= hold.MostRequests {
		s.forget(last - hold.MostRequests + 1)
	}
	for req := s.low; req <= last && req-s.low < hold.MostRequests; req++ { // that is all of them, and ends also if last is the largest number
		if _, again := slices.BinarySearch(keep, req); again {
			continue
		}
		if _, applied := s.results[req]; !applied {
			s.results[req] = resultOf(dsm.Inode{}, fail(errs.Timeout, "the daemon was killed"))
		}
	}
}

// withdraw takes a node out of a row, of which it has nothing any more but what left says. It returns false if it is not certain that somebody has everything.
//
// A slot that is on its way to the node goes back to its source unless the node may have served it: also if the source has offered it. One that is on its way from the node comes back, too, unless it was offered: then the next home has
// all, and may have served it.
func withdraw(v *dsm.View, h *dsm.SlotHome, n dsm.NodeID, left leftOver) bool {
	keep(h, func(b dsm.Backup) bool { return b.Node != n })
	switch {
	case h.Primary != n && h.Source != n, h.Source == n && left.kept && left.offered && !isGone(v, h.Primary):
	case h.Primary == n && h.Source != 0 && !isGone(v, h.Source) && !left.served:
		*h = restarted(v, *h, h.Source)
	case left.kept && !left.offered:
		*h = restarted(v, *h, n)
	case takeOver(v, h):
	case h.Primary == n:
		*h = dsm.SlotHome{Primary: n, Epoch: v.Epoch}
		return false
	default:
		arrived(h)
		return false
	}
	return true
}

// onlyAtOne yields the slots that only one node has for certain, and that node.
func (s *state) onlyAtOne() iter.Seq2[dsm.Slot, dsm.NodeID] {
	return func(yield func(dsm.Slot, dsm.NodeID) bool) {
		for slot, h := range s.view.Rows() {
			for _, n := range [2]dsm.NodeID{h.Primary, h.Source} {
				if n == 0 || isGone(s.view, n) {
					continue
				}
				row := *h
				if keep(&row, func(b dsm.Backup) bool { return b.Node != n }); !takeOver(s.view, &row) && !yield(slot, n) {
					return
				}
			}
		}
	}
}

// bytesIn returns those of the slots in which files have bytes, each with the first such file.
func (s *state) bytesIn(slots map[dsm.Slot]bool) map[dsm.Slot]*inode {
	found := make(map[dsm.Slot]*inode)
	if len(slots) == 0 {
		return found
	}
	for ino, in := range s.inodes {
		if in.Kind != dsm.KindFile {
			continue
		}
		for e := range in.Spec.CoveringExtents(in.Size) {
			slot := s.view.SlotOf(in.Area(), in.Spec, dsm.ExtentIndex(e))
			if first := found[slot]; slots[slot] && (first == nil || ino < first.Ino) {
				found[slot] = in
			}
		}
	}
	return found
}

// Uncovered returns how many slots only this node has for certain, and how many only some node has: if it dies they are lost. A slot that is to
// have copies counts, for a file may get bytes there at any time; one that is to have none, if a file has.
func (c *Catalog) Uncovered() (here, all int) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	s := c.mu.state
	single := make(map[dsm.Slot]bool)
	for slot := range s.onlyAtOne() {
		if s.copiesOf(s.view, slot) == 1 {
			single[slot] = true
		}
	}
	bytes := s.bytesIn(single)
	for slot, n := range s.onlyAtOne() {
		if single[slot] && bytes[slot] == nil {
			continue
		}
		if all++; n == c.self.ID {
			here++
		}
	}
	return here, all
}

// EndWithDaemon returns how many slots with bytes would be lost if the daemon of this node was killed now: nobody else has them for certain, and the next daemon could not go on with them.
func (c *Catalog) EndWithDaemon(served map[dsm.Slot]dsm.Served) int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	s := c.mu.state
	only, left := make(map[dsm.Slot]bool), s.leftBy(backOp{Node: c.self.ID, Served: listed(served)}, 0)
	for slot, h := range s.view.Rows() {
		if row := *h; !withdraw(s.view, &row, c.self.ID, left[slot]) {
			only[slot] = true
		}
	}
	return len(s.bytesIn(only))
}
