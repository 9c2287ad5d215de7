package coherence

import (
	"bytes"
	"reflect"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/pages"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

// heldParted is parted with a node in between that is held.
func heldParted(t *testing.T, f func(p *parting)) {
	synctest.Test(t, func(t *testing.T) { f(newParting(t, dsm.Inode{}, true)) })
}

func (p *parting) list() *wire.ConflictsListed {
	return p.n.node.ListConflicts(&wire.ListConflicts{Area: simArea})
}

// killed has another daemon follow that of the node in between, and wants it to have the same conflicts.
func (p *parting) killed() {
	p.t.Helper()
	before, bytes := p.list(), p.n.node.conflictBytes.Load()
	p.n.follow()
	p.calm()
	after := p.list()
	for _, x := range [][]wire.KeptConflict{before.List, after.List} {
		for i := range x {
			x[i].Time = x[i].Time.Round(0)
			x[i].Taken = append([]byte{}, x[i].Taken...)
		}
	}
	if !reflect.DeepEqual(after, before) {
		p.t.Errorf("the next daemon has conflicts %v, want %v", after, before)
	}
	if got := p.n.node.conflictBytes.Load(); got != bytes {
		p.t.Errorf("they take %d bytes, want %d", got, bytes)
	}
}

// TestKilledWithConflicts: conflicts are there for each daemon that follows, until they are cleared, and none has the number of one before.
func TestKilledWithConflicts(t *testing.T) {
	heldParted(t, func(p *parting) {
		p.meet("1111....5.6.", "22..33..5..7")
		found := "0: 22, not 11"
		p.wants("221133bb5c67", found)
		p.killed()
		p.killed()
		p.wants("221133bb5c67", found)
		p.meet("33..55", "44..66")
		p.wants("441166bb5c67", found, "0: 44, not 33", "4: 66, not 55")
		p.killed()
		p.n.node.ClearConflicts(simArea, 1)
		p.killed()
		p.wants("441166bb5c67", "0: 44, not 33", "4: 66, not 55")
		p.n.node.ClearConflicts(simArea, 0)
		p.killed()
		p.wants("441166bb5c67")
		p.meet("5", "6")
		if got := p.list().List; len(got) != 1 || got[0].Number != 4 {
			t.Errorf("conflicts %v, want one with number 4", got)
		}
		p.n.node.AreaRemoved(dsm.Ino(simArea))
		if all, _ := p.n.config.Store.Conflicts(); len(all) > 0 {
			t.Errorf("conflicts of a file that is removed: %v", all)
		}
	})
}

// TestKilledWithConflictsOfAFileThatIsGone: nobody else drops them.
func TestKilledWithConflictsOfAFileThatIsGone(t *testing.T) {
	heldParted(t, func(p *parting) {
		p.n.config.Store.KeepConflict(&pages.Conflict{Area: simArea + 1, Number: 1, Kept: []byte("1")})
		p.n.config.Store.LoseConflicts(simArea+1, 1)
		p.killed()
		if all, _ := p.n.config.Store.Conflicts(); len(all) > 0 {
			t.Errorf("conflicts of a file that is removed: %v", all)
		}
	})
}

// TestKilledWithoutRoomForConflicts: how much was lost is known to the next daemon, too, and so is what conflicts that go on have.
func TestKilledWithoutRoomForConflicts(t *testing.T) {
	heldParted(t, func(p *parting) {
		a := p.n.area
		a.step(func() {
			a.keepLocked(0, []byte("a"), []byte("b"))
			a.keepLocked(1, bytes.Repeat([]byte("c"), mostTaken-1), bytes.Repeat([]byte("d"), mostTaken-1))
			a.keepLocked(100, []byte("e"), []byte("f"))
			a.keepLocked(101, bytes.Repeat([]byte("g"), mostTaken), bytes.Repeat([]byte("h"), mostTaken))
			a.keepLocked(101+mostTaken, bytes.Repeat([]byte("i"), 3*dsm.PageSize), bytes.Repeat([]byte("j"), 3*dsm.PageSize))
			a.keepLocked(1<<20, make([]byte, mostConflicts), nil)
			a.keepLocked(1<<20+mostConflicts, []byte("k"), nil)
		})
		if got := p.list(); len(got.List) != 3 || got.Lost != mostConflicts {
			t.Fatalf("%d conflicts, and %d bytes lost", len(got.List), got.Lost)
		}
		p.killed()
		p.n.node.ClearConflicts(simArea, 0)
		p.killed()
	})
}

// killedAtStore calls f, which ends at the first store to the working copy of page 0.
func (p *parting) killedAtStore(f func(a *Area)) {
	p.t.Helper()
	a := p.n.area
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := pagetest.KilledAtStore(a.mu.mem.Working(0), func() { f(a) }); err != nil {
		p.t.Fatal(err)
	}
}

// TestKilledWhileAStoreIsGivenUp: the daemon is killed when a store is about to go from the working copy. Then it is among the conflicts already.
func TestKilledWhileAStoreIsGivenUp(t *testing.T) {
	heldParted(t, func(p *parting) {
		p.stores(p.n, "11.1")
		theirs := make([]byte, dsm.PageSize)
		copy(theirs, "22aabbbbcccc")
		p.killedAtStore(func(a *Area) {
			x := a.extentLocked(0)
			a.absentLocked().returning[0] = comparison{at: answered}
			a.mergePageLocked(0, 0, x, theirs, nil, 0, contained{})
		})
		p.killed()
		if got := p.list().List; len(got) != 1 || string(got[0].Kept) != "11" || string(got[0].Taken) != "22" {
			t.Errorf("conflicts %v", got)
		}
	})
}

// TestKilledWhileAStoreIsGivenUpTwice: the next daemon compares as well, and gives the store up again. It is among the conflicts once, until the same happens once more.
func TestKilledWhileAStoreIsGivenUpTwice(t *testing.T) {
	heldParted(t, func(p *parting) {
		p.apart("", "11.1", "22")
		p.lost()
		p.comesBack(p.n)
		theirs := make([]byte, dsm.PageSize)
		copy(theirs, "22aabbbbcccc")
		p.killedAtStore(func(a *Area) { a.mergePageLocked(0, 0, a.extentLocked(0), theirs, nil, 0, contained{}) })
		p.killed()
		p.published(p.n)
		p.wants("22a1bbbbcccc", "0: 22, not 11")
		p.meet("11", "33")
		p.wants("33a1bbbbcccc", "0: 22, not 11", "0: 33, not 11")
	})
}

// TestKilledWhileStoresAreForfeit: likewise, and the next daemon gives them up, too. What is kept already is not kept twice.
func TestKilledWhileStoresAreForfeit(t *testing.T) {
	heldParted(t, func(p *parting) {
		p.stores(p.n, "11.1")
		p.n.lost.Store(true)
		p.killedAtStore((*Area).forfeitLocked)
		p.n.follow()
		p.published(p.n)
		p.wants("aaaabbbbcccc", "0: aa, not 11", "3: a, not 1")
		p.n.node.ClearConflicts(simArea, 0)
		p.stores(p.n, "12")
		p.published(p.n)
		p.wants("aaaabbbbcccc", "0: aa, not 12")
	})
}

// TestTakenIsAsLongAsKept: a conflict that goes on with one of which it is not known what stays.
func TestTakenIsAsLongAsKept(t *testing.T) {
	heldParted(t, func(p *parting) {
		a := p.n.area
		a.step(func() {
			a.keepLocked(0, []byte("aa"), nil) // a store that had not been taken in: see forfeitLocked
			a.keepLocked(2, []byte("bb"), []byte("cc"))
		})
		for _, x := range p.list().List {
			if n := len(x.Taken); n > 0 && n != len(x.Kept) {
				t.Errorf("kept %q, taken %q", x.Kept, x.Taken)
			}
		}
	})
}

// TestSameConflictAgain: long after a kill the same value is given up once more.
func TestSameConflictAgain(t *testing.T) {
	heldParted(t, func(p *parting) {
		p.meet("1111", "22..")
		p.killed()
		p.meet("1", "3")
		p.meet("11", "22")
		p.wants("2111", "0: 22, not 11", "0: 3, not 1", "0: 2, not 1")
	})
}
