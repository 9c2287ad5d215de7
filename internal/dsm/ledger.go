package dsm

// SlotName names a slot for good. The number of a slot that an area has to itself is used again, so it is named after the area.
type SlotName uint64

// LastEntered is the name of no slot. A ledger has under it the epoch of the view by which slots were entered last.
const LastEntered = ^SlotName(0)

// NameOf returns the name of a slot that there is.
func (v *View) NameOf(s Slot) SlotName {
	if s < Slots {
		return SlotName(s)
	}
	return Slots + SlotName(v.Own[s-Slots].Area)
}

// Served says that a node has had all of a slot, as its home, since epoch Since. Offered is the epoch of the next home to which it has sent all of it; 0: none.
type Served struct{ Since, Offered Epoch }

// Ledger is what a daemon has had all of, as the home: it outlives the daemon.
type Ledger map[SlotName]Served

// Has returns what a node has of a slot by the ledger of its daemon, if the view has its row. The daemon may have been killed before it heard that the area has got a slot of its own. Then the ledger has the slot that the area
// has shared with others: shares. Of a slot that is shared it is the same. A slot that began with nothing needs no ledger.
func (l Ledger) Has(v *View, n NodeID, slot, shares Slot) (left LeftOver) {
	row, name := v.Row(slot), v.NameOf(slot)
	since := func(name SlotName, e Epoch) bool {
		x, ok := l[name]
		return ok && x.Since == e
	}
	switch {
	case row.Holder() == n:
		unheard := slot >= Slots && v.Own[slot-Slots].Began > l[LastEntered].Since
		left.Served = row.Had == 0 || since(name, row.Had) || unheard && since(v.NameOf(shares), row.Had)
		left.Offered = row.Source == n && since(name, row.Had) && l[name].Offered == row.Epoch
	case row.Primary == n:
		left.Served = since(name, row.Epoch)
	}
	left.Kept = left.Served
	return left
}
