package catalog

import (
	"fmt"
	"math"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/hold"
)

// pageAt makes a file of a page, and sets the row of its slot.
func (m *machine) pageAt(row dsm.SlotHome) (v *dsm.View, f dsm.Inode, at dsm.Slot) {
	m.Helper()
	f = m.must(nodeA, resize(m.file("f"), dsm.PageSize))
	v, at = m.withRow(f, row)
	return v, f, at
}

// withRow begins a view in which the slot of a file has this row: the home has all of it by this view, or it is on its way there, and the source had all before.
func (m *machine) withRow(f dsm.Inode, row dsm.SlotHome) (v *dsm.View, at dsm.Slot) {
	v = m.view.Clone()
	v.Epoch += 10
	row.Epoch, row.Had = v.Epoch, v.Epoch
	if row.Source != 0 {
		row.Had--
	}
	at = v.SlotOf(f.Area(), f.Spec, 0)
	*v.Row(at) = row
	m.view = v
	return v, at
}

// pageOn makes a file of a page of which a node is the home.
func (m *machine) pageOn(n dsm.NodeID) dsm.Inode {
	m.Helper()
	for i := 0; ; i++ {
		if f := m.file(fmt.Sprint("f", i)); homeOf(m, f).Primary == n {
			return m.must(nodeA, resize(f, dsm.PageSize))
		}
	}
}

// servedBy is the ledger of a node that has all of which it is the home.
func (m *machine) servedBy(n dsm.NodeID) dsm.Ledger {
	served := make(dsm.Ledger)
	for slot, h := range m.view.Rows() {
		if h.Primary == n {
			served[m.view.NameOf(slot)] = dsm.Served{Since: h.Had}
		}
	}
	return served
}

// TestBackWithBytes: of a slot that nobody else has a node goes on as the home, if its daemon had all of it, and has it still.
func TestBackWithBytes(t *testing.T) {
	type which struct {
		served func(row dsm.SlotHome) dsm.Ledger
		large  bool
		row    func(h *dsm.SlotHome)
		back   bool
		// to has it then, nodeB unless set; with from, that hands it over to the node
		to, from dsm.NodeID
	}
	const slot = 3
	has := func(e dsm.Epoch) dsm.Ledger { return dsm.Ledger{9: {Since: e}, slot: {Since: e}} }
	now := func(row dsm.SlotHome) dsm.Ledger { return has(row.Epoch) }
	sent := func(row dsm.SlotHome) dsm.Ledger { return dsm.Ledger{slot: {Since: row.Had, Offered: row.Epoch}} }
	was := func(row dsm.SlotHome) dsm.Ledger { return has(row.Had) }
	comes := func(h *dsm.SlotHome) { h.Source, h.Had = nodeA, h.Epoch-1 }
	goes := func(h *dsm.SlotHome) { h.Source, h.Primary, h.Had = nodeB, nodeA, h.Epoch-1 }
	for name, c := range map[string]which{
		"all":                                    {served: now, back: true},
		"nothing":                                {served: func(dsm.SlotHome) dsm.Ledger { return nil }},
		"nothing, as there was nothing":          {served: func(dsm.SlotHome) dsm.Ledger { return nil }, row: func(h *dsm.SlotHome) { h.Had = 0 }, back: true},
		"what it was before":                     {served: func(row dsm.SlotHome) dsm.Ledger { return has(row.Had - 1) }},
		"killed again at once":                   {served: was, row: func(h *dsm.SlotHome) { h.Had = 1 }, back: true},
		"a large file":                           {served: now, large: true},
		"it has arrived there":                   {served: now, row: comes, back: true},
		"it is on its way there":                 {served: was, row: comes, back: true, to: nodeA},
		"it has arrived there, of a large file":  {served: now, large: true, row: comes},
		"it is on its way elsewhere":             {served: was, row: goes, back: true},
		"it was sent elsewhere":                  {served: sent, row: goes, back: true, to: nodeA, from: nodeB},
		"it was sent elsewhere, of a large file": {served: sent, large: true, row: goes},
		"it was sent elsewhere before": {served: func(row dsm.SlotHome) dsm.Ledger {
			return dsm.Ledger{slot: {Since: row.Had, Offered: row.Epoch - 2}}
		}, row: goes, back: true},
		"it is on its way elsewhere, and is not all there": {served: now, row: goes},
	} {
		t.Run(name, func(t *testing.T) {
			m := newSized(t, 1<<40, 1<<40)
			size := int64(dsm.PageSize)
			if c.large {
				size = mostServed + 1
			}
			f := placedFile(m, "f", size, string(dsm.PlaceOne)) // in no other slot, which the daemon may lack
			v, at := m.withRow(f, dsm.SlotHome{Primary: nodeB})
			row := v.Row(at)
			if c.row != nil {
				c.row(row)
			}
			o := backOp{Node: nodeB, Served: c.served(*row)}
			if has, ok := o.Served[slot]; ok {
				delete(o.Served, slot)
				o.Served[v.NameOf(at)] = has
			}
			_, err := m.do(nodeB, o)
			if back := err == nil; back != c.back {
				t.Fatalf("it is back: %v, want %v", err, c.back)
			}
			if c.to == 0 {
				c.to = nodeB
			}
			if got := m.view.Row(at); c.back && (c.from == 0 && (got.Holder() != c.to || got.Epoch != m.view.Epoch) || c.from != 0 && (got.Primary != c.to || got.Source != c.from)) {
				t.Errorf("%+v in epoch %d", got, m.view.Epoch)
			}
		})
	}
}

// TestBothDaemonsKilled: the daemons of a home and of its only backup are killed at once. The home goes on, so nobody needs the backup.
func TestBothDaemonsKilled(t *testing.T) {
	m := newSized(t, 1<<30, 1<<30)
	v, _, at := m.pageAt(dsm.SlotHome{Primary: nodeB})
	v.Row(at).Backups[0] = dsm.Backup{Node: nodeA, InSync: true}
	served := dsm.Ledger{v.NameOf(at): {Since: v.Epoch}}
	if _, err := m.do(nodeB, backOp{Node: nodeB, Served: served}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.do(nodeA, backOp{Node: nodeA}); err != nil {
		t.Errorf("the backup, which has been made the home while its daemon was killed, cannot come back: %v", err)
	}
}

// TestLateCommandsOfAKilledDaemon: none of them is applied any more, but for those that come again.
func TestLateCommandsOfAKilledDaemon(t *testing.T) {
	s := &session{low: 3, results: map[uint64]result{4: {}}}
	s.end(8, []uint64{6})
	for req, want := range map[uint64]bool{3: true, 5: true, 6: false, 7: true, 8: true, 9: false} {
		if r, ok := s.results[req]; ok != want || want && r.err("x") == nil {
			t.Errorf("command %d: %v, %+v", req, ok, r)
		}
	}
	if r := s.results[4]; r.err("x") != nil {
		t.Errorf("a command that was applied: %+v", r)
	}
}

// TestAppliedBeforeAnEviction: what a node with a holder has done before it was evicted is not done once more when the request comes again after it has joined again. So it is also if the cluster has
// taken a snapshot, and if it is evicted once more before it is back.
func TestAppliedBeforeAnEviction(t *testing.T) {
	for _, twice := range []bool{false, true} {
		m := newMachine(t)
		b := member(nodeB)
		b.Held, b.Inc = true, 1
		join := func() { m.must(nodeA, addMemberOp{b}) }
		evict := func() {
			m.must(nodeA, goneOp{Node: nodeB, Inc: b.Inc})
			b.Inc++
		}
		send := func(req uint64, o op) (dsm.Inode, error) {
			return m.send(command{Node: nodeB, Inc: b.Inc, Req: req, Low: 1, Now: m.now}, o)
		}
		join()
		makes := func(name string) op { return createOp{Dir: dsm.RootIno, Name: name, Kind: dsm.KindFile} }
		_, err := send(1, makes("first"))
		ok(t, err)
		made, err := send(2, makes("second"))
		ok(t, err)
		evict()
		image, err := m.image().encode()
		ok(t, err)
		m.state, err = restore(image)
		ok(t, err)
		join()
		if twice {
			_, err = send(2, noopOp{}) // a daemon that lives, and notes nothing
			ok(t, err)
			evict()
			join()
		}
		_, err = send(5, backOp{Node: nodeB, Inc: b.Inc, Last: 4, Keep: []uint64{2, 3}, Noted: 1})
		ok(t, err)
		if again, err := send(2, makes("second")); err != nil || again.Ino != made.Ino {
			t.Errorf("twice %v: made %v, %v; before it was %v", twice, again.Ino, err, made.Ino)
		}
		if _, err := send(3, makes("third")); err != nil || m.last.fate != happened {
			t.Errorf("twice %v: a command that was not applied: %v", twice, err)
		}
		if _, err := send(1, makes("again")); !errs.Is(err, errs.Timeout) {
			t.Errorf("twice %v: a command that nobody asks for any more: %v", twice, err)
		}
		if len(m.evicted) > 0 {
			t.Errorf("twice %v: %d sessions are kept of nodes that are back", twice, len(m.evicted))
		}
	}
}

// TestSessionsOfEvictedNodes: those of the last few are kept, and of nodes with a holder alone.
func TestSessionsOfEvictedNodes(t *testing.T) {
	m := newMachine(t)
	for i := range dsm.NodeID(mostEvicted + 3) {
		b := member(nodeB + i)
		b.Held, b.Inc = i > 0, 1
		m.must(nodeA, addMemberOp{b})
		if _, err := m.send(command{Node: b.ID, Inc: 1, Req: 1, Low: 1, Now: m.now}, noopOp{}); err != nil {
			t.Fatal(err)
		}
		m.must(nodeA, goneOp{Node: b.ID, Inc: 1})
	}
	if got := sortedKeys(m.evicted); len(got) != mostEvicted || got[0] != nodeB+3 {
		t.Errorf("kept: %v", got)
	}
}

// TestEvictedNodeThatLeaves: nothing is kept of a node that was evicted, has joined again and leaves.
func TestEvictedNodeThatLeaves(t *testing.T) {
	m := newSized(t, 1<<30, 1<<30)
	m.evicted[nodeB] = new(session)
	m.must(nodeA, leavingOp{nodeB})
	ready(m)
	m.must(nodeB, removeMemberOp{nodeB})
	if len(m.evicted) > 0 {
		t.Error("its session is kept")
	}
}

// TestUncovered: which slots make it impossible that a daemon is followed.
func TestUncovered(t *testing.T) {
	const self, b, dead, own = 1, 2, 3, dsm.Slots // the first that an area has to itself
	one, two := dsm.ClassOf(1).First, dsm.ClassOf(2).First
	in := dsm.SlotHome{Primary: self, Backups: [dsm.MostBackups]dsm.Backup{{Node: b, InSync: true}}}
	gone := in
	gone.Backups[0].Node = dead
	alone, there, elsewhere := dsm.SlotHome{Primary: self}, dsm.SlotHome{Primary: b}, in
	elsewhere.Source, elsewhere.Primary = self, b
	single := func(size int64) *inode {
		return &inode{Inode: dsm.Inode{Ino: 5, Kind: dsm.KindFile, Size: size, Spec: dsm.Spec{Replicas: 1}}}
	}
	for _, c := range []struct {
		what      string
		slot      dsm.Slot
		row       dsm.SlotHome
		file      *inode
		here, all int
	}{
		{"a backup has it", two, in, nil, 0, 0},
		{"the backup is dead", two, gone, nil, 1, 1},
		{"no backup yet", two, alone, nil, 1, 1},
		{"no backup of what another has", two, there, nil, 0, 1},
		{"on its way, to a backup", two, elsewhere, nil, 0, 1},
		{"no copies, and no file", one, alone, nil, 0, 0},
		{"no copies, and a file without bytes", one, alone, single(0), 0, 0},
		{"no copies, and a file", one, alone, single(5), 1, 1},
		{"no copies, and a file at another node", one, there, single(5), 0, 1},
		{"of its own, without copies and bytes", own, alone, single(0), 0, 0},
		{"of its own, without copies", own, alone, single(5), 1, 1},
		{"of its own, without copies, at another node", own, there, single(5), 0, 1},
	} {
		v := &dsm.View{Epoch: 9, Members: []dsm.Member{{ID: self}, {ID: b}, {ID: dead, Gone: true}}}
		for slot, row := range v.Rows() {
			if *row = alone; dsm.CopiesOf(slot) > 1 {
				*row = in
			}
			if slot == c.slot || c.slot == one && dsm.CopiesOf(slot) == 1 { // wherever the file is
				*row = c.row
			}
		}
		s := newState()
		s.view = v
		if c.file != nil {
			s.inodes[c.file.Ino] = c.file
		}
		if c.slot == own && !v.Place(c.file.Area(), c.row) {
			t.Fatal("no slot of its own")
		}
		x := &Catalog{self: dsm.Member{ID: self}}
		x.mu.Init("catalog.Catalog")
		x.mu.state = s
		if here, all := x.Uncovered(); here != c.here || all != c.all {
			t.Errorf("%s: %d here, %d in all, want %d and %d", c.what, here, all, c.here, c.all)
		}
	}
}

// TestEndOfAllNumbers: a member says that its commands up to a number never happen any more, whichever number that is.
func TestEndOfAllNumbers(t *testing.T) {
	for _, last := range []uint64{0, 5, hold.MostRequests, 3 * hold.MostRequests, math.MaxUint64} {
		s := &session{results: make(map[uint64]result)}
		s.end(last, []uint64{last - 1})
		if n := uint64(len(s.results)); n > hold.MostRequests {
			t.Errorf("up to %d: %d results", last, n)
		}
		if _, ended := s.results[last]; !ended {
			t.Errorf("up to %d: that one is not ended", last)
		}
		if _, ended := s.results[last-1]; ended {
			t.Errorf("up to %d: what is kept has ended", last)
		}
	}
}
