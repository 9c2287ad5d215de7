package pages

import (
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

// TestWriteLeavesTheRestUnknown: of a page that was truncated, and of which nobody knows what the page cache was given, a write(2) makes only its own bytes
// known. If a program of this node has made the file longer, a WRITE of a mapping is refused after it as before.
func TestWriteLeavesTheRestUnknown(t *testing.T) {
	for _, shared := range []bool{false, true} {
		s := newLedgerScript(t, shrinkLimit+2*dsm.PageSize)
		s.SetWriters(true)
		s.Read(0, make([]byte, s.area.Size()))
		s.resize(0)
		s.resize(shrinkLimit + 2*dsm.PageSize)
		s.KernelShrinks(s.area.Size())
		s.SetShared(shared)
		last := dsm.PageIndex(shrinkLimit/dsm.PageSize + 1)
		if _, _, ok := s.Wrote(s.k, int64(last)*dsm.PageSize, []byte{1, 2, 3}, false); !ok {
			t.Errorf("shared: %v: a write(2) is refused", shared)
		}
		if _, _, ok := s.Wrote(s.k, int64(last)*dsm.PageSize, pagetest.PageOf(3), true); ok {
			t.Errorf("shared: %v: a WRITE of a mapping is taken, though nobody knows what is a store in it", shared)
		}
	}
}

// TestExpectedPagesStay: a page of which a WRITE waits is not dropped any more.
func TestExpectedPagesStay(t *testing.T) {
	s := newDemandScript(t, 2*dsm.PageSize)
	s.SetWriters(true)
	s.read(0)
	s.drop(dsm.Range(0, 1), dsm.PageSet{})
	s.Expect(0)
	if n, ok := s.NextNotice(); ok {
		t.Errorf("notice %v of %d bytes at %d", n.Kind, n.Len, n.Off)
	}
}

// TestStoreOfALastPageThatGrows: a store notice ends where the area ended. What came behind that while it was in flight needs another.
func TestStoreOfALastPageThatGrows(t *testing.T) {
	s := newLedgerScript(t, 100)
	s.read(0)
	s.update(0, 5)
	n := s.notice(NoticeStore, 0, 1)
	s.resize(dsm.PageSize)
	s.update(0, 200)
	s.Done(n)
	if _, ok := s.NextNotice(); !ok {
		t.Error("the page cache is not told of what lies behind the end that was")
	}
}
