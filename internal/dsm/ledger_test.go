package dsm

import "testing"

// TestSinceWhenItHasAll: through what becomes of a row it says since when its holder has had all.
func TestSinceWhenItHasAll(t *testing.T) {
	v := &View{Epoch: 9, Members: []Member{{ID: 1}, {ID: 2}, {ID: 3, Gone: true}}}
	rests := SlotHome{Primary: 1, Epoch: 8, Had: 5}
	rests.Backups[0] = Backup{Node: 2, InSync: true}
	moves := rests.MovedTo(v, 2, 2)
	if moves.Holder() != 1 || moves.Had != 5 || moves.Epoch != 9 {
		t.Errorf("handed over: %+v", moves)
	}
	for _, c := range []struct {
		what string
		row  SlotHome
		do   func(h *SlotHome)
		now  NodeID
		had  Epoch
	}{
		{"the same home", rests, func(h *SlotHome) { *h = h.Restarted(v, 1) }, 1, 5},
		{"a backup takes over", rests, func(h *SlotHome) { h.TakeOver(v) }, 2, 9},
		{"nothing moves", rests, (*SlotHome).Arrived, 1, 5},
		{"it has arrived", moves, (*SlotHome).Arrived, 2, 9},
		{"it comes back", SlotHome{Primary: 2, Source: 1, Epoch: 8, Had: 5}, func(h *SlotHome) { *h = h.Restarted(v, 1) }, 1, 5},
		{"it has arrived, and the catalog has not heard of it", SlotHome{Primary: 2, Source: 1, Epoch: 8, Had: 5}, func(h *SlotHome) { *h = h.Restarted(v, 2) }, 2, 8},
		{"it was sent to one that has died", SlotHome{Primary: 3, Source: 1, Epoch: 8, Had: 5}, func(h *SlotHome) { h.Withdraw(v, 1, LeftOver{true, true, true}) }, 3, 8},
		{"nobody has it", SlotHome{Primary: 1, Epoch: 8, Had: 5}, func(h *SlotHome) { h.Withdraw(v, 1, LeftOver{}) }, 1, 0},
	} {
		if c.do(&c.row); c.row.Holder() != c.now || c.row.Had != c.had {
			t.Errorf("%s: %+v, want %d since %d", c.what, c.row, c.now, c.had)
		}
	}
}

// TestLedger: what a node has of slots by its ledger.
func TestLedger(t *testing.T) {
	const shared, area, n, o = 7, AreaID(70), 1, 2
	has, offered := LeftOver{Served: true, Kept: true}, LeftOver{Served: true, Kept: true, Offered: true}
	for _, c := range []struct {
		what string
		row  SlotHome
		own  bool // the row is of the slot that the area has to itself
		l    Ledger
		want LeftOver
	}{
		{"no entry", SlotHome{Primary: n, Epoch: 4, Had: 4}, false, nil, LeftOver{}},
		{"its entry", SlotHome{Primary: n, Epoch: 4, Had: 3}, false, Ledger{shared: {Since: 3}}, has},
		{"an entry of before", SlotHome{Primary: n, Epoch: 4, Had: 4}, false, Ledger{shared: {Since: 3}}, LeftOver{}},
		{"there was nothing", SlotHome{Primary: n, Epoch: 4}, false, nil, has},
		{"there was nothing, at another node", SlotHome{Primary: o, Epoch: 4}, false, Ledger{shared: {Since: 4}}, LeftOver{}},
		{"it comes", SlotHome{Primary: n, Source: o, Epoch: 4}, false, Ledger{shared: {Since: 3}}, LeftOver{}},
		{"it has come", SlotHome{Primary: n, Source: o, Epoch: 4, Had: 3}, false, Ledger{shared: {Since: 4}}, has},
		{"it goes", SlotHome{Primary: o, Source: n, Epoch: 4, Had: 3}, false, Ledger{shared: {Since: 3, Offered: 2}}, has},
		{"it has gone", SlotHome{Primary: o, Source: n, Epoch: 4, Had: 3}, false, Ledger{shared: {Since: 3, Offered: 4}}, offered},
		{"it goes, and the entry is old", SlotHome{Primary: o, Source: n, Epoch: 4, Had: 3}, false, Ledger{shared: {Since: 2, Offered: 4}}, LeftOver{}},
		{"the area's own", SlotHome{Primary: n, Epoch: 4, Had: 3}, true, Ledger{Slots + SlotName(area): {Since: 3}}, has},
		{"the area's own, of which it has not heard", SlotHome{Primary: n, Epoch: 4, Had: 3}, true, Ledger{shared: {Since: 3}}, has},
		{"the area's own, on its way, of which it has not heard", SlotHome{Primary: o, Source: n, Epoch: 4, Had: 3}, true, Ledger{shared: {Since: 3, Offered: 4}}, has},
		{"the area's own, and the shared one has been elsewhere", SlotHome{Primary: n, Epoch: 4, Had: 3}, true, Ledger{shared: {Since: 4}}, LeftOver{}},
		{"the area's own, of which it has heard, and that was due", SlotHome{Primary: n, Epoch: 4, Had: 3}, true, Ledger{shared: {Since: 3}, LastEntered: {Since: 4}}, LeftOver{}},
		{"the area's own, of which it has not heard by then", SlotHome{Primary: n, Epoch: 4, Had: 3}, true, Ledger{shared: {Since: 3}, LastEntered: {Since: 3}}, has},
		{"that of another area with that number", SlotHome{Primary: n, Epoch: 4, Had: 3}, true, Ledger{Slots: {Since: 3}, Slots + 69: {Since: 3}}, LeftOver{}},
		{"the area's own comes", SlotHome{Primary: n, Source: o, Epoch: 4, Had: 3}, true, Ledger{shared: {Since: 4}}, LeftOver{}},
	} {
		v, slot := &View{Epoch: 4}, Slot(shared)
		if c.own {
			v.Place(area, c.row)
			slot = v.Placed(area)
		} else {
			v.Slots[shared] = c.row
		}
		if got := c.l.Has(v, n, slot, shared); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.what, got, c.want)
		}
	}
}

// TestBackToTheSource: a slot is on its way from s to n, and n may have served it, so what s had as its home may be too old. What is there is what s has as a backup in sync, and that ends with its daemon. If s becomes the home
// again, it has all of that since then, not since before the handover: its daemon may be killed before it has taken over.
func TestBackToTheSource(t *testing.T) {
	const n, s = 1, 2
	view := func(gone bool) *View { return &View{Epoch: 9, Members: []Member{{ID: n, Gone: gone}, {ID: s}}} }
	going := func() SlotHome {
		return SlotHome{Primary: n, Source: s, Epoch: 8, Had: 7, Backups: [MostBackups]Backup{{Node: s, InSync: true}}}
	}
	ledger := Ledger{0: {Since: 7, Offered: 8}} // of s
	for _, c := range []struct {
		what   string
		gone   bool
		change func(v *View, row *SlotHome)
	}{
		{"the daemon of the new home was killed, which had served it, and has nothing", false, func(v *View, row *SlotHome) {
			row.Withdraw(v, n, LeftOver{Served: true})
		}},
		{"the new home has died, and the source has all as its backup", true, func(v *View, row *SlotHome) { *row = row.CameBack(v) }},
	} {
		v, row := view(c.gone), going()
		c.change(v, &row)
		if row.Primary != s || row.Source != 0 {
			t.Fatalf("%s: %+v", c.what, row)
		}
		v.Slots[0] = row
		if has := ledger.Has(v, s, 0, 0); has.Served {
			t.Errorf("%s: the source counts as having all by what it had before: %+v; the row is %+v", c.what, has, row)
		}
	}
}
