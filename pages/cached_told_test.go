package pages

import (
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestReadDuringAShrink: the kernel is told of a size while a READ is under way, the area grows, another node stores past that
// size, and only then is the READ answered: the kernel clears what it brings. That is no store, and
// the page shows the bytes in the end.
func TestReadDuringAShrink(t *testing.T) {
	s := newLedgerScript(t, 1000)
	s.SetWriters(true)
	s.KernelTold(1000)
	s.quiet()
	s.resize(2000)
	s.update(0, 1500)
	if s.Idle() {
		t.Error("idle though a READ may bring bytes that the kernel clears")
	}
	page := s.read(0)
	clear(page[1000:]) // by the kernel
	page[3]++
	s.Wrote(s.k, 0, page[:1000], true)
	if w := s.area.Working(0); w[3] != 1 || w[1500] != 1 {
		t.Fatalf("the working copy has %d and %d, want 1 and 1", w[3], w[1500])
	}
	n := s.notice(NoticeInvalidate, 0, 1)
	s.KernelTold(2000) // while the page is dropped
	s.Done(n)
	s.quiet()
	if page = s.read(0); page[1500] != 1 {
		t.Error("the page does not show what was stored")
	}
	s.quiet()
	s.resize(dsm.PageSize)
	s.Done(s.notice(NoticeInvalidate, 0, 1))
	s.quiet()
	if len(s.late) != 0 {
		t.Errorf("%d pages are late", len(s.late))
	}
}

// TestWritePastWhatWasTold: what write(2) adds to a file is shown at once.
func TestWritePastWhatWasTold(t *testing.T) {
	s := newLedgerScript(t, 1000)
	s.SetWriters(true)
	s.KernelTold(1000)
	s.resize(1100)
	s.Delivered(1000, []byte{1, 2}, false)
	s.Wrote(s.k, 1000, []byte{1, 2}, false)
	if page := s.read(0); page[1000] != 1 || page[1001] != 2 {
		t.Errorf("the page shows %v", page[1000:1002])
	}
}

// TestWriteThatWaitedForItsPage: what comes before the kernel is told of a size, and waits for its page, does not show that the kernel
// has truncated the page.
func TestWriteThatWaitedForItsPage(t *testing.T) {
	s := newLedgerScript(t, dsm.PageSize)
	s.SetWriters(true)
	s.Delivered(1500, []byte{1}, true)
	s.KernelTold(1000)
	s.Wrote(s.k, 1500, []byte{1}, true)
	if page := s.read(0); page[1500] != 0 {
		t.Error("the page shows what the kernel may still clear")
	}
	s.Done(s.notice(NoticeInvalidate, 0, 1))
	if page := s.read(0); page[1500] != 1 {
		t.Error("the page does not show what was stored")
	}
}

// TestManyLatePages: the ledger does not keep what was told for ever.
func TestManyLatePages(t *testing.T) {
	s := newLedgerScript(t, 2*lateLimit*dsm.PageSize)
	for p := int64(2*lateLimit - 1); p >= 0; p-- {
		s.KernelTold(p*dsm.PageSize + 8)
		for n, ok := s.NextNotice(); ok; n, ok = s.NextNotice() {
			s.Done(n)
		}
		if len(s.late) > lateLimit+1 {
			t.Fatalf("%d pages are late", len(s.late))
		}
	}
}
