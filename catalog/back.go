package catalog

import (
	"iter"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/hold"
)

// The daemon of a node with a holder was killed, and another has followed: the node is back. It is a member as before, with its claims and its
// locks. But it has nothing any more of what it was the home or a backup of. So backups take over, as if it had died, and what it has sent before counts
// as sent by another incarnation (dsm.Member.Since).
//
// Where nobody can take over, and a file has bytes, the node cannot come back: its daemon ends, and it is marked as gone as any node that
// dies. Where none has, the slot begins anew, also if it was on its way to the node: its source may have offered it, and then nobody would serve it, and a file
// that gets bytes there would wait until the node ends. Who stores these bytes has heard of this first, so the source does not merge them.

func (o backOp) apply(s *state, st step) (dsm.Inode, error) {
	m, ok := s.view.Member(o.Node)
	if !ok || m.Gone || m.Inc != o.Inc || st.node != o.Node {
		return dsm.Inode{}, fail(errs.Evicted, "node %s", o.Node)
	}
	only := make(map[dsm.Slot]bool)
	for slot, n := range s.onlyAtOne() {
		if n == o.Node {
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
		for _, h := range v.Rows() {
			if !withdraw(v, h, o.Node) && h.Emptied {
				*h = dsm.SlotHome{Primary: o.Node, Epoch: v.Epoch} // no file has bytes there
			}
		}
	})
	s.joinedAgain(o.Node, o.Noted, o.Keep)
	s.sessions[o.Node].end(o.Last, o.Keep)
	s.effects.locks = append(s.effects.locks, s.book.Back(o.Node)...)
	return dsm.Inode{}, nil
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

// withdraw takes a node out of a row, of which it has nothing any more. It returns false if it is not certain that somebody else has everything.
//
// A slot that is on its way to the node goes back to its source, if that is a backup in sync: it has everything, whether or not the node has served
// already. If it is none, only the source knows. It may still serve, as it may not have heard of the move, so nobody else can take over before it has
// spoken. So the row is marked, and the source reports as if the node had died (handoverFailedOp): it has never offered the slot, and goes on; or it has,
// and so has stopped to serve, and backups in sync have all that the node has acked.
func withdraw(v *dsm.View, h *dsm.SlotHome, n dsm.NodeID) bool {
	keep(h, func(b dsm.Backup) bool { return b.Node != n })
	switch {
	case h.Primary == n && h.Source != 0 && h.Source != n && !isGone(v, h.Source):
		if i := h.BackupOf(h.Source); i >= 0 && h.Backups[i].InSync {
			*h = restarted(v, *h, h.Source)
			return true
		}
		h.Emptied = true
		for b := range h.InSync() {
			if !isGone(v, b) {
				return true
			}
		}
		return false
	case h.Primary != n && h.Source != n, takeOver(v, h):
		return true
	case h.Primary == n:
		*h = dsm.SlotHome{Primary: n, Epoch: v.Epoch}
	default:
		arrived(h)
	}
	return false
}

// onlyAtOne yields the slots that only one node has for certain, and that node.
func (s *state) onlyAtOne() iter.Seq2[dsm.Slot, dsm.NodeID] {
	return func(yield func(dsm.Slot, dsm.NodeID) bool) {
		for slot, h := range s.view.Rows() {
			for _, n := range [2]dsm.NodeID{h.Primary, h.Source} {
				if n == 0 || isGone(s.view, n) {
					continue
				}
				if row := *h; !withdraw(s.view, &row, n) && !yield(slot, n) {
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

// Uncovered returns how many slots only this node has for certain, and how many only some node has: if its daemon is killed, the next one may not be able to come back. A slot that is to
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
