package pages

import (
	"bytes"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/pages/merge"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

// ledgerScript is a ledger with the steps that the tests below are written in. The
// interplay of all steps is the matter of TestLedgerModel; these are the cases
// that random orders meet once in a million steps.
type ledgerScript struct {
	*Cached
	t *testing.T
	k merge.Kernel
}

func newLedgerScript(t *testing.T, size int64) ledgerScript {
	return ledgerScript{NewCached(newTestArea(t, size)), t, mustKernel(t, dsm.MergeSum, dsm.DTypeU8, 0)}
}

// read serves a READ of page p.
func (s ledgerScript) read(p dsm.PageIndex) []byte {
	dst := make([]byte, dsm.PageSize)
	s.Read(int64(p)*dsm.PageSize, dst)
	return dst
}

// update adds 1 to a byte of page p, for another node.
func (s ledgerScript) update(p dsm.PageIndex, at int) {
	s.BeforeMerge(p)
	s.area.Working(p)[at]++
}

// notice takes the next notice, which is of the kind and pages.
func (s ledgerScript) notice(kind NoticeKind, from, to dsm.PageIndex) Notice {
	s.t.Helper()
	n, ok := s.NextNotice()
	end := int64(to) * dsm.PageSize
	if kind == NoticeStore {
		end = min(end, s.area.Size())
	}
	if off := int64(from) * dsm.PageSize; !ok || n.Kind != kind || n.Off != off || n.Len != end-off {
		s.t.Fatalf("notice %v of %d bytes at %d (%v), want %v of pages %d to %d", n.Kind, n.Len, n.Off, ok, kind, from, to)
	}
	return n
}

// quiet fails the test if there is a notice.
func (s ledgerScript) quiet() {
	s.t.Helper()
	if n, ok := s.NextNotice(); ok || !s.Idle() || !s.Writable() || s.CopyBytes() != 0 {
		s.t.Fatalf("notice %+v (%v), idle %v, writable %v, %d bytes held", n, ok, s.Idle(), s.Writable(), s.CopyBytes())
	}
}

func (s ledgerScript) resize(size int64) {
	s.t.Helper()
	if size < s.area.Size() {
		s.BeforeShrink(size)
	}
	resize(s.t, s.area, size)
	s.Truncate(size)
}

// TestNoNoticeWithoutNeed: pages that were not given, or end up as they were,
// need none; others come in runs that do not cross an extent.
func TestNoNoticeWithoutNeed(t *testing.T) {
	for _, writers := range []bool{false, true} {
		s := newLedgerScript(t, dsm.ExtentSize+5*dsm.PageSize)
		s.SetWriters(writers)
		s.update(0, 0)
		s.quiet()
		kind := NoticeStore
		if writers {
			kind = NoticeInvalidate
		}
		for _, p := range []dsm.PageIndex{1, 2, 4, 255, 256} {
			s.read(p)
			s.update(p, 1)
		}
		if copied := s.CopyBytes(); writers && copied != 5*dsm.PageSize || !writers && copied != 0 {
			t.Errorf("writers %v: %d bytes held", writers, copied)
		}
		for _, run := range [][2]dsm.PageIndex{{1, 3}, {256, 257}, {4, 5}, {255, 256}} { // extents take turns
			s.Done(s.notice(kind, run[0], run[1]))
		}
		s.quiet()
		if !writers {
			continue
		}
		s.read(3)
		s.update(3, 5)
		s.area.Working(3)[5]--
		s.quiet()
	}
}

// TestStoreCarriesWhatItCaptured: updates after NextNotice go out in the next
// one, and a READ meanwhile gets what the store will leave.
func TestStoreCarriesWhatItCaptured(t *testing.T) {
	s := newLedgerScript(t, dsm.PageSize+10)
	s.read(1)
	s.update(1, 0)
	n := s.notice(NoticeStore, 1, 2)
	s.update(1, 0)
	if want := append([]byte{1}, make([]byte, 9)...); !bytes.Equal(n.Data, want) || s.read(1)[0] != 1 {
		t.Errorf("the store has %v, READ gets %d", n.Data, s.read(1)[0])
	}
	s.SetWriters(true)
	if s.Writable() {
		t.Error("writable with a store in flight")
	}
	s.Done(n)
	if !s.Writable() || s.Idle() {
		t.Errorf("after the store: writable %v, idle %v", s.Writable(), s.Idle())
	}
	s.Wrote(s.k, dsm.PageSize, []byte{1 + 5}, true) // on top of 1
	if got := s.area.Working(1)[0]; got != 2+5 {
		t.Errorf("the working copy has %d, want 7", got)
	}
	s.Done(s.notice(NoticeInvalidate, 1, 2))
	s.quiet()
}

// TestBlindBecomesWritable: a backlog without copies is worked off before a
// writer is let in, even if updates go on.
func TestBlindBecomesWritable(t *testing.T) {
	s := newLedgerScript(t, 2*dsm.PageSize)
	s.read(0)
	s.read(1)
	s.update(0, 0)
	s.SetWriters(true)
	s.update(1, 0)
	if s.Writable() || s.CopyBytes() != dsm.PageSize {
		t.Errorf("writable %v, %d bytes held", s.Writable(), s.CopyBytes())
	}
	n := s.notice(NoticeInvalidate, 0, 2)
	s.read(0) // tells as well
	if !s.Writable() {
		t.Error("not writable after the READ")
	}
	s.Done(n)
	s.quiet()
}

// TestWriteAfterDrop: a WRITE that fills a page again, after an invalidation
// dropped it and before that is known, keeps the page given.
func TestWriteAfterDrop(t *testing.T) {
	s := newLedgerScript(t, dsm.PageSize)
	s.SetWriters(true)
	s.read(0)
	s.update(0, 0)
	n := s.notice(NoticeInvalidate, 0, 1)
	s.Wrote(s.k, 0, append([]byte{0, 1}, make([]byte, dsm.PageSize-2)...), true)
	s.Done(n)
	if got := s.area.Working(0)[:2]; !bytes.Equal(got, []byte{1, 1}) {
		t.Errorf("the working copy has %v", got)
	}
	s.Done(s.notice(NoticeInvalidate, 0, 1))
	s.quiet()

	s.read(0)
	s.update(0, 0)
	n = s.notice(NoticeInvalidate, 0, 1)
	s.read(0)
	s.Wrote(s.k, 1, []byte{5}, true)
	s.Done(n)
	s.quiet() // up to date, and still given:
	s.update(0, 2)
	s.Done(s.notice(NoticeInvalidate, 0, 1))
	s.quiet()
}

// TestGrowthUnderStore: the area grows within a page while a store of its old
// bytes is in flight, and a READ gives more of the page than the store does.
func TestGrowthUnderStore(t *testing.T) {
	s := newLedgerScript(t, dsm.PageSize+1000)
	s.read(1)
	s.update(1, 0)
	n := s.notice(NoticeStore, 1, 2)
	s.resize(2 * dsm.PageSize)
	s.update(1, 2000)
	if got := s.read(1); got[0] != 1 || got[2000] != 1 {
		t.Errorf("READ gets %d and %d", got[0], got[2000])
	}
	s.SetWriters(true)
	s.Done(n)
	if s.Writable() {
		t.Error("writable on top of an unknown rest of the page")
	}
	s.Done(s.notice(NoticeInvalidate, 1, 2))
	s.quiet()
}

// TestTruncateUnderNotices: pages past the end are dropped, also those that a
// notice is in flight for, and the rest of the last page counts as zero.
func TestTruncateUnderNotices(t *testing.T) {
	s := newLedgerScript(t, 4*dsm.PageSize)
	for p := range dsm.PageIndex(4) {
		copy(s.area.Working(p), pagetest.PageOf(9))
		s.read(p)
	}
	s.update(3, 0)
	store := s.notice(NoticeStore, 3, 4)
	s.SetWriters(true)
	s.update(1, 0) // 9 is given, 10 is here
	s.resize(dsm.PageSize + 100)
	s.resize(4 * dsm.PageSize)
	if s.Writable() {
		t.Error("writable with doubtful pages")
	}
	if got := s.read(3); got[0] != 0 {
		t.Errorf("READ gets %d from before the truncation", got[0])
	}
	s.KernelShrinks(dsm.PageSize + 100)
	// What the kernel has of page 1 after that, and a store:
	k := append(bytes.Repeat([]byte{9}, 100), make([]byte, dsm.PageSize-100)...)
	k[1]++
	s.Wrote(s.k, dsm.PageSize, k, true)
	want := append(bytes.Repeat([]byte{9}, 100), make([]byte, dsm.PageSize-100)...)
	want[0], want[1] = 10, 10
	pagetest.WantPage(t, "working", s.area.Working(1), want)
	n := s.notice(NoticeInvalidate, 1, 3)
	s.Wrote(s.k, dsm.PageSize+2, []byte{10}, true)
	s.Done(n)
	s.Done(s.notice(NoticeInvalidate, 1, 2)) // only a WRITE came
	s.Done(store)
	s.Done(s.notice(NoticeInvalidate, 3, 4))
	s.quiet()
	if got := s.read(0); got[0] != 9 {
		t.Errorf("page 0 has %d", got[0])
	}

	s.read(1)
	s.resize(dsm.PageSize + 40)
	n = s.notice(NoticeInvalidate, 1, 2)
	s.Wrote(s.k, dsm.PageSize+2, []byte{12}, true)
	s.Done(n)
	s.Done(s.notice(NoticeInvalidate, 1, 2)) // of the page cache's bytes past the end
	s.quiet()
}

// TestNewLedger: notices of the ledger before mean nothing, and its copies are
// given back.
func TestNewLedger(t *testing.T) {
	s := newLedgerScript(t, dsm.PageSize)
	s.SetWriters(true)
	s.read(0)
	s.update(0, 0)
	old := s.notice(NoticeInvalidate, 0, 1)
	s.Cached = NewCached(s.area)
	if s.area.frames.used != 0 {
		t.Errorf("%d frames are still in use", s.area.frames.used)
	}
	s.SetWriters(true)
	s.read(0)
	s.update(0, 0)
	n := s.notice(NoticeInvalidate, 0, 1)
	s.Done(old)
	if s.Idle() {
		t.Error("the old notice ended the new one")
	}
	s.Done(n)
	s.quiet()
}

// TestStoreAfterAShrink: another node makes the area shorter and it grows again, and a program whose kernel was not told has stored
// to a page that still shows the bytes of before. What it has stored past the end is not taken, nor are the bytes beneath it. What a
// write(2) brings is stored, also where it is what the page cache shows.
func TestStoreAfterAShrink(t *testing.T) {
	for _, shared := range []bool{false, true} {
		for _, sum := range []bool{false, true} {
			s := newLedgerScript(t, 3*dsm.PageSize)
			if !sum {
				s.k = merge.Kernel{}
			}
			s.SetWriters(true)
			s.SetShared(shared)
			for p := range dsm.PageIndex(3) {
				copy(s.area.Working(p), pagetest.PageOf(7))
				s.read(p)
			}
			s.resize(dsm.PageSize + 100)
			s.resize(3 * dsm.PageSize)
			s.BeforeMerge(1)
			s.area.Working(1)[200] = 4 // another node has stored there since
			k := pagetest.PageOf(7)
			k[50]++
			k[150]++
			if _, _, ok := s.Wrote(s.k, dsm.PageSize, k, true); !ok {
				t.Fatal("refused")
			}
			s.Wrote(s.k, 2*dsm.PageSize+10, []byte{7, 7}, false)
			want := pagetest.PageOf(0)
			copy(want, pagetest.PageOf(7)[:100])
			want[50], want[200] = 8, 4
			pagetest.WantPage(t, "page that is truncated", s.area.Working(1), want)
			want = pagetest.PageOf(0)
			want[10], want[11] = 7, 7
			pagetest.WantPage(t, "page that was written to", s.area.Working(2), want)
			for range 2 { // the WRITEs may have come after the drop
				for n, ok := s.NextNotice(); ok; n, ok = s.NextNotice() {
					s.Done(n)
				}
			}
			s.quiet()
		}
	}
}

// TestWriteAgainAfterAShrink: what has come of a page since a shrink that the kernel may not know of is no store when a write(2) brings it again. With sum it
// counted twice.
func TestWriteAgainAfterAShrink(t *testing.T) {
	for _, shared := range []bool{false, true} {
		s := newLedgerScript(t, 3*dsm.PageSize)
		s.SetWriters(true)
		s.SetShared(shared)
		copy(s.area.Working(1), pagetest.PageOf(7))
		k := s.read(1)
		s.resize(dsm.PageSize + 100)
		s.resize(3 * dsm.PageSize)
		k[150]++
		s.Wrote(s.k, dsm.PageSize+150, k[150:151], false)
		k[300] = 5
		s.Wrote(s.k, dsm.PageSize+300, k[300:301], false)
		for range 2 {
			s.Wrote(s.k, dsm.PageSize+150, k[150:301], false)
			if w := s.area.Working(1); w[150] != 8 || w[300] != 5 {
				t.Errorf("shared %v: 8 and 5 were stored, and are %d and %d", shared, w[150], w[300])
			}
		}
		s.resize(dsm.PageSize + 200)
		s.resize(3 * dsm.PageSize)
		s.Wrote(s.k, dsm.PageSize+150, k[150:301], false)
		if w := s.area.Working(1); w[150] != 8 || w[300] != 5 {
			t.Errorf("shared %v: 8 was stored, and 5 after another shrink, and they are %d and %d", shared, w[150], w[300])
		}
	}
}

// TestStoreOnWhatIsNotKnown: where no room was left to keep what the page cache was given, a WRITE of a mapping to a page of which all was truncated has nothing that
// counts. It is refused when a program of this node has made the file longer, or nobody knows which part was there before. One of write(2) is not.
func TestStoreOnWhatIsNotKnown(t *testing.T) {
	s := newLedgerScript(t, shrinkLimit+3*dsm.PageSize)
	s.SetWriters(true)
	s.Read(0, make([]byte, s.area.Size()))
	s.resize(10)
	s.resize(shrinkLimit + 3*dsm.PageSize)
	last := dsm.PageIndex(shrinkLimit/dsm.PageSize + 2)
	for _, c := range []struct {
		p           dsm.PageIndex
		mixed, back bool
		ok          bool
	}{{0, false, true, true}, {1, false, true, true}, {last, false, true, true}, {last, true, true, false}, {last - 1, true, true, false}, {last - 1, true, false, true}} {
		if c.mixed {
			s.KernelShrinks(s.area.Size())
		}
		if _, _, ok := s.Wrote(s.k, int64(c.p)*dsm.PageSize, pagetest.PageOf(3), c.back); ok != c.ok {
			t.Errorf("WRITE of page %d, of a mapping %v, mixed %v: taken %v", c.p, c.back, c.mixed, ok)
		}
		if w := s.area.Working(c.p); c.back && (w[0] == 3 != (c.p == 0) || w[10] != 0) {
			t.Errorf("WRITE of page %d, of a mapping %v, mixed %v: the working copy has %d and, past the end, %d", c.p, c.back, c.mixed, w[0], w[10])
		}
	}
}

// TestWriteOfWhatWasThere: a write(2) counts as stored also where it brings what the page cache had: an update that came meanwhile does not win. A
// WRITE of a mapping counts only where it differs.
func TestWriteOfWhatWasThere(t *testing.T) {
	for _, back := range []bool{false, true} {
		s := newLedgerScript(t, dsm.PageSize)
		s.k = mustKernel(t, dsm.MergeLast, dsm.DTypeAuto, 0)
		s.SetWriters(true)
		was := s.read(0)[7]
		s.update(0, 7)
		now := s.area.Working(0)[7]
		if now == was {
			t.Fatal("the update changes nothing")
		}
		want := was
		if back {
			want = now
		}
		s.Wrote(s.k, 0, make([]byte, dsm.PageSize), back)
		if got := s.area.Working(0)[7]; got != want {
			t.Errorf("of a mapping: %v: the working copy has %d, want %d", back, got, want)
		}
	}
}
