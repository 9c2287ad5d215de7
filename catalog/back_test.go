package catalog

import (
	"math"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/hold"
)

// TestWithdraw: who has a slot when the daemon of a node was killed, and another has followed.
func TestWithdraw(t *testing.T) {
	const n, s, b, dead = 1, 2, 3, 4
	v := &dsm.View{Epoch: 9, Members: []dsm.Member{{ID: n}, {ID: s}, {ID: b}, {ID: dead, Gone: true}}}
	backups := func(list ...dsm.Backup) (all [dsm.MostBackups]dsm.Backup) {
		copy(all[:], list)
		return all
	}
	in := func(id dsm.NodeID) dsm.Backup { return dsm.Backup{Node: id, InSync: true} }
	for _, c := range []struct {
		what string
		row  dsm.SlotHome
		to   dsm.NodeID
		has  bool
		// emptied says that the source decides
		emptied bool
	}{
		{"another is the home", dsm.SlotHome{Primary: s, Backups: backups(in(n))}, s, true, false},
		{"a backup in sync", dsm.SlotHome{Primary: n, Backups: backups(in(b))}, b, true, false},
		{"a backup that is being filled", dsm.SlotHome{Primary: n, Backups: backups(dsm.Backup{Node: b})}, n, false, false},
		{"nobody else", dsm.SlotHome{Primary: n}, n, false, false},
		{"on its way there, from a backup in sync", dsm.SlotHome{Primary: n, Source: s, Backups: backups(in(s))}, s, true, false},
		{"on its way there, from one that has not followed", dsm.SlotHome{Primary: n, Source: s, Backups: backups(in(b), dsm.Backup{Node: s})}, n, true, true},
		{"on its way there, from one that is no backup", dsm.SlotHome{Primary: n, Source: s, Backups: backups(in(b), in(n))}, n, true, true},
		{"on its way there, and nobody is in sync", dsm.SlotHome{Primary: n, Source: s, Backups: backups(in(n))}, n, false, true},
		{"on its way there, from one that is dead", dsm.SlotHome{Primary: n, Source: dead, Backups: backups(in(b))}, b, true, false},
		{"on its way elsewhere, and a backup has it", dsm.SlotHome{Primary: s, Source: n, Backups: backups(in(n), in(b))}, b, true, false},
		{"on its way elsewhere", dsm.SlotHome{Primary: s, Source: n, Backups: backups(in(n))}, s, false, false},
	} {
		if has := withdraw(v, &c.row, n); has != c.has || c.row.Primary != c.to || c.row.Emptied != c.emptied || c.row.Source != 0 && !c.emptied || c.row.BackupOf(n) >= 0 {
			t.Errorf("%s: %v, %+v", c.what, has, c.row)
		}
	}
}

// TestBackWithoutBytes: a slot in which no file has bytes is on its way to a node whose daemon is killed, and nobody else is certain to have it. It is the node's when the next daemon is back. Its source cannot say that: it has offered the slot.
func TestBackWithoutBytes(t *testing.T) {
	m := newSized(t, 1<<30, 1<<30)
	slots := []dsm.Slot{3, 4}
	v := m.view.Clone()
	v.Epoch++
	for _, slot := range slots {
		v.Slots[slot] = dsm.SlotHome{Primary: nodeB, Source: nodeA, Epoch: v.Epoch}
	}
	v.Slots[4].Emptied = true // by a daemon before
	m.view = v
	m.must(nodeB, backOp{Node: nodeB})
	m.must(nodeA, handoverFailedOp{Lost: slots, Epoch: m.view.Epoch})
	for _, slot := range slots {
		if got := m.view.Slots[slot]; got.Primary != nodeB || got.Source != 0 || got.Emptied || got.Epoch <= v.Epoch {
			t.Errorf("%+v", got)
		}
	}
}

// TestSourceOfAnEmptiedSlot: the source says what becomes of a slot that was on its way to a node whose daemon was killed. What it says of a backup, or the
// daemon before of the slot, does not count meanwhile. A slot that nobody can have stays undecided.
func TestSourceOfAnEmptiedSlot(t *testing.T) {
	for _, c := range []struct {
		what         string
		back, synced bool
		to           dsm.NodeID // 0: it stays
	}{
		{"not offered", true, true, nodeA},
		{"not offered, no backup", true, false, nodeA},
		{"offered", false, true, nodeC},
		{"offered, no backup", false, false, 0},
	} {
		m := newSized(t, 1<<30, 1<<30, 1<<30)
		const slot = 3
		v := m.view.Clone()
		v.Epoch++
		was := dsm.SlotHome{Primary: nodeB, Source: nodeA, Emptied: true, Epoch: v.Epoch}
		was.Backups[0] = dsm.Backup{Node: nodeC, InSync: c.synced}
		v.Slots[slot] = was
		m.view = v
		m.must(nodeA, backupsOp{nodeC, []dsm.Slot{slot}, !c.synced, v.Epoch})
		m.must(nodeB, slotsReadyOp{[]dsm.Slot{slot}, v.Epoch})
		if got := m.view.Slots[slot]; got != was {
			t.Errorf("%s: %+v before the source has spoken", c.what, got)
		}
		said := handoverFailedOp{Epoch: m.view.Epoch}
		if c.back {
			said.Back = []dsm.Slot{slot}
		} else {
			said.Lost = []dsm.Slot{slot}
		}
		m.must(nodeA, said)
		switch got := m.view.Slots[slot]; {
		case c.to != 0 && (got.Emptied || got.Epoch == was.Epoch || got.Primary != c.to && got.Source != c.to):
			t.Errorf("%s: %+v", c.what, got)
		case c.to == 0 && (!got.Emptied || got.Primary != nodeB || got.Source != nodeA):
			t.Errorf("%s: %+v, want it undecided", c.what, got)
		}
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
		_, err = send(5, backOp{nodeB, b.Inc, 4, []uint64{2, 3}, 1})
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
