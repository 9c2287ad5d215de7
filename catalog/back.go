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
// slots it had all, before it served them. The bytes of very large files end with the daemon; of their slots, and of those that it was a backup of, it has nothing any more. Where it was the home, backups take over then, as if
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
	left := s.leftBy(o.Node, o.Served)
	if lost := s.lostWith(o.Node, left); len(lost) > 0 {
		slot := sortedKeys(lost)[0]
		return dsm.Inode{}, fail(errs.Busy, "nobody else has slot %d, in which inode %d has bytes", slot, lost[slot].Ino)
	}
	s.reviewed(func(v *dsm.View) {
		for i := range v.Members {
			if v.Members[i].ID == o.Node {
				v.Members[i].Since = v.Epoch
			}
		}
		for slot, h := range v.Rows() {
			h.Withdraw(v, o.Node, left[slot])
		}
	})
	s.joinedAgain(o.Node, o.Noted, o.Keep)
	s.sessions[o.Node].end(o.Last, o.Keep)
	s.effects.locks = append(s.effects.locks, s.book.Back(o.Node)...)
	return dsm.Inode{}, nil
}

// lostWith returns the slots with bytes that nobody has if the daemon of a node is killed, each with the first file that has some. left is what the node has then.
func (s *state) lostWith(n dsm.NodeID, left map[dsm.Slot]dsm.LeftOver) map[dsm.Slot]*inode {
	only := make(map[dsm.Slot]bool)
	for slot, h := range s.view.Rows() {
		if row := *h; !row.Withdraw(s.view, n, left[slot]) {
			only[slot] = true
		}
	}
	return s.bytesIn(only)
}

// mostServed is the size of the largest file of which a daemon goes on as the home.
const mostServed = 64 << 30

// leftBy returns what the node has of slots, by the ledger of the daemon that was killed.
func (s *state) leftBy(n dsm.NodeID, ledger dsm.Ledger) map[dsm.Slot]dsm.LeftOver {
	left := make(map[dsm.Slot]dsm.LeftOver)
	for slot := range s.view.Rows() {
		shares := slot
		if slot >= dsm.Slots {
			shares = s.shares(s.view.Own[slot-dsm.Slots].Area)
		}
		if x := ledger.Has(s.view, n, slot, shares); x.Served {
			left[slot] = x
		}
	}
	if len(left) == 0 {
		return left
	}
	for _, in := range s.inodes {
		if in.Kind != dsm.KindFile || in.Size <= mostServed {
			continue // the memory of all others outlives the daemon
		}
		for e := range in.Spec.CoveringExtents(in.Size) {
			slot := s.view.SlotOf(in.Area(), in.Spec, dsm.ExtentIndex(e))
			if x, served := left[slot]; served {
				x.Kept = false
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

// onlyAtOne yields the slots that only one node has for certain, and that node.
func (s *state) onlyAtOne() iter.Seq2[dsm.Slot, dsm.NodeID] {
	return func(yield func(dsm.Slot, dsm.NodeID) bool) {
		for slot, h := range s.view.Rows() {
			for _, n := range [2]dsm.NodeID{h.Primary, h.Source} {
				if n == 0 || s.view.IsGone(n) {
					continue
				}
				row := *h
				if row.KeepBackups(func(b dsm.Backup) bool { return b.Node != n }); !row.TakeOver(s.view) && !yield(slot, n) {
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
func (c *Catalog) EndWithDaemon(served dsm.Ledger) int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	s := c.mu.state
	return len(s.lostWith(c.self.ID, s.leftBy(c.self.ID, served)))
}
