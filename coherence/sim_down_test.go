package coherence

import (
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// What happens between the kill of a daemon and the next one.

// goesBack takes a node out of the rows, whose daemon was killed. It returns false if nobody else has a slot in which the area has bytes.
func (s *sim) goesBack(v *dsm.View, n *simNode) bool {
	ino := s.lastInode()
	bytes := make(map[dsm.Slot]bool)
	for e := range dsm.ExtentIndex(ino.Spec.CoveringExtents(s.fullSize())) { // it may have been shrunk
		bytes[s.slotOf(v, e)] = true
	}
	ledger := dsm.Ledger{}
	if n.held != nil {
		ledger = n.config.Store.Served()
	}
	left := make(map[dsm.Slot]dsm.LeftOver)
	for sl := range v.Rows() {
		shares := sl
		if sl >= dsm.Slots {
			shares = ino.Spec.SlotOf(simArea, 0)
		}
		left[sl] = ledger.Has(v, n.id, sl, shares)
	}
	for sl, row := range v.Rows() { // as in catalog/back.go
		before := *row
		has := row.Withdraw(v, n.id, left[sl])
		switch {
		case !bytes[sl]:
		case !has, row.Holder() != before.Holder() && v.IsGone(row.Holder()): // it was sent to a node that is evicted, and nobody has it until that is back
			return false
		case row.Source != 0 && v.IsGone(row.Primary) && before.BackupOf(n.id) >= 0 && !isBacked(v, *row): // perhaps it was, and this was the only backup of it
			return false
		}
	}
	v.Members[n.i].Since = v.Epoch
	s.assign(v)
	return true
}

// isBacked reports whether a backup in sync could take over.
func isBacked(v *dsm.View, row dsm.SlotHome) bool { return row.TakeOver(v) }

// allGoBack reports whether all of these nodes can come back, in any order.
func (s *sim) allGoBack(list []*simNode) bool {
	for i := range list {
		v := s.lastView().Clone()
		v.Epoch++
		for k := range list {
			if !s.goesBack(v, list[(i+k)%len(list)]) {
				return false
			}
		}
	}
	return true
}

// untilNext has things happen, perhaps, until the next daemon of a node is there. It returns all nodes whose daemon is killed then.
func (r *simRun) untilNext(k *killed) (down []*killed) {
	down = []*killed{k}
	if r.rng.IntN(2) > 0 {
		return down
	}
	r.setAway(k.n, true) // it takes a while
	for range r.rng.IntN(20) {
		o := r.other()
		if o == nil {
			break
		}
		switch r.rng.IntN(20) {
		case 0, 1:
			r.moveSlots()
		case 2:
			if len(down) > 1 {
				break
			}
			if also := r.killDaemon(o, k.n); also != nil {
				r.both++
				r.setAway(o, true)
				down = append(down, also)
				continue
			}
		}
		r.event(o)
		r.rest()
		for _, k := range down {
			k.n.area = k.memory
			r.storeMeanwhile(k.n)
			k.n.area = nil
			r.evictDead(k.n)
		}
	}
	return down
}

// evictDead has the catalog take a node for dead at times, whose daemon was killed.
func (r *simRun) evictDead(n *simNode) {
	other := slices.ContainsFunc(r.nodes, func(o *simNode) bool { return o != n && o.away })
	if r.kind.aways && r.rng.IntN(10) == 0 && !other && !r.lastView().Members[n.i].Gone && !r.loses(n) {
		r.evictions++
		r.isEvicted(n)
	}
}
