package pages

import (
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestReadDuringAPunch: a READ of the page in which a hole ends waits for its answer, longer than a program takes to go on
// after its punch, and another node stores to the hole. The kernel clears the hole in what the READ brings. That is no store, and the page
// shows the bytes in the end.
func TestReadDuringAPunch(t *testing.T) {
	s := newLedgerScript(t, 2*dsm.PageSize)
	s.SetWriters(true)
	punched := time.Now()
	answered, over := s.KernelPunches(0, 8)
	s.WroteDirect(0, make([]byte, 8))
	answered(punched)
	s.TellPunched(punched.Add(1)) // the READ has come, and is not answered
	s.update(0, 3)
	n := s.notice(NoticeInvalidate, 0, 1) // it waits for the READ
	page := s.read(0)
	if page[3] != 0 {
		t.Fatal("the READ brings what the kernel may still clear")
	}
	page[9]++
	s.Wrote(s.k, 0, page, true) // by the drop
	s.Done(n)
	if w := s.area.Working(0); w[3] != 1 || w[9] != 1 {
		t.Fatalf("the working copy has %d and %d, want 1 and 1", w[3], w[9])
	}
	s.Done(s.notice(NoticeInvalidate, 0, 1))
	s.quiet()
	if page = s.read(0); page[3] != 1 {
		t.Error("the page does not show what another node has stored to the hole")
	}
	s.quiet()
	over()
	s.quiet()
	if len(s.extents) != 1 {
		t.Errorf("the ledger has %d extents", len(s.extents))
	}
}

// TestPunchWithoutAReader: nobody has the pages in which a hole begins and ends. They get one invalidation, as a READ of them may be
// under way; then a READ shows what others have stored to the hole. It is no store, which would bring the pages into the page cache.
func TestPunchWithoutAReader(t *testing.T) {
	s := newLedgerScript(t, 2*dsm.PageSize)
	s.SetWriters(true)
	punched := time.Now()
	answered, over := s.KernelPunches(8, dsm.PageSize)
	s.WroteDirect(8, make([]byte, dsm.PageSize))
	s.SetWriters(false)
	answered(punched)
	s.TellPunched(punched.Add(1))
	s.Done(s.notice(NoticeInvalidate, 0, 2))
	s.TellPunched(punched.Add(1))
	s.quiet()
	s.update(0, 9)
	if page := s.read(0); page[9] != 1 {
		t.Error("the page does not show what another node has stored to the hole")
	}
	over()
	s.quiet()
}

// TestHoleThatIsFilledAgain: before a punch is answered the hole has again what it had, as stores under lost locks are taken back. The page is dropped all
// the same, or the ledger would not know that the kernel clears the hole in it.
func TestHoleThatIsFilledAgain(t *testing.T) {
	s := newLedgerScript(t, dsm.PageSize)
	s.SetWriters(true)
	s.area.Working(0)[3] = 1
	s.read(0)
	answered, over := s.KernelPunches(0, 8)
	s.WroteDirect(0, make([]byte, 8))
	s.update(0, 3)
	s.Done(s.notice(NoticeInvalidate, 0, 1))
	s.quiet()
	answered(time.Now())
	over()
	if page := s.read(0); page[3] != 1 {
		t.Error("the page does not show what the hole has")
	}
	s.quiet()
}
