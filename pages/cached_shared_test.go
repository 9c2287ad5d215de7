package pages

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

// touched says that an attached program has stored into page p.
func (s ledgerScript) touched(p dsm.PageIndex) {
	e, i := p.Extent()
	s.Touched(e, dsm.Range(i, i+1))
}

// inUse fails the test unless n copies are kept and nothing else.
func (s ledgerScript) inUse(n int) {
	s.t.Helper()
	if s.area.frames.used != n || len(s.given) != n {
		s.t.Errorf("%d copies and %d frames in use, want %d", len(s.given), s.area.frames.used, n)
	}
}

// TestShareWhatWasGiven: pages given before are invalidated before an attached
// program is let in, and their stores until then are merged exactly.
func TestShareWhatWasGiven(t *testing.T) {
	s := newLedgerScript(t, 6*dsm.PageSize)
	s.SetWriters(true)
	for p := range dsm.PageIndex(5) {
		s.read(p)
	}
	s.update(0, 0) // kept before
	s.SetShared(true)
	if s.Writable() || s.CopyBytes() != dsm.PageSize {
		t.Errorf("writable %v, %d bytes held", s.Writable(), s.CopyBytes())
	}
	s.read(5)      // needs nothing
	s.read(2)      // makes it known
	s.update(3, 7) // the same
	s.Wrote(s.k, 3*dsm.PageSize, append([]byte{4}, make([]byte, dsm.PageSize-1)...), true)
	s.Wrote(s.k, 4*dsm.PageSize, append([]byte{4}, make([]byte, dsm.PageSize-1)...), true)
	if got := s.area.Working(3); got[0] != 4 || got[7] != 1 {
		t.Errorf("the working copy has %d and %d", got[0], got[7])
	}
	n := s.notice(NoticeInvalidate, 0, 2)
	if s.Writable() {
		t.Error("writable before page 1 is invalidated")
	}
	s.Done(n)
	if !s.Writable() {
		t.Error("not writable afterwards")
	}
	s.Done(s.notice(NoticeInvalidate, 3, 4))
	s.quiet()
	s.inUse(3) // 2, 4, 5
	s.SetShared(false)
	s.quiet()
	s.inUse(0)
}

// TestSharedKeepsWhatIsGiven: a store of an attached program leads to a notice once
// it is found, and only if the page cache has something else.
func TestSharedKeepsWhatIsGiven(t *testing.T) {
	s := newLedgerScript(t, 3*dsm.PageSize)
	s.SetShared(true)
	s.area.Working(0)[1] = 1
	s.read(0) // finds the store before the scan does
	s.read(1)
	s.touched(0)
	s.touched(2) // was not given
	s.quiet()
	before, err := s.area.ResidentBytes()
	if err != nil {
		t.Fatal(err)
	}
	s.read(2)
	if after, err := s.area.ResidentBytes(); err != nil || after < before+dsm.PageSize || s.CopyBytes() != 0 {
		t.Errorf("resident bytes go from %d to %d (%v), %d held", before, after, err, s.CopyBytes())
	}
	s.area.Working(1)[1] = 1
	s.touched(1)
	if s.CopyBytes() != dsm.PageSize || s.Idle() {
		t.Errorf("%d bytes held, idle %v", s.CopyBytes(), s.Idle())
	}
	s.area.Working(1)[1] = 0
	s.quiet() // stored back
	s.area.Working(1)[1] = 2
	s.touched(1)
	n := s.notice(NoticeInvalidate, 1, 2) // with no writer of the page cache either
	s.read(1)
	s.Done(n)
	s.quiet()
	s.area.Working(2)[1] = 3 // the last store, which nobody has told of
	s.SetShared(false)
	s.inUse(1)
	s.Done(s.notice(NoticeStore, 2, 3))
	s.quiet()
	s.inUse(0)
}

// TestSharedWriteUndoesNothing: a WRITE of a whole page leaves the stores that attached
// programs made since the page was read, found or not.
func TestSharedWriteUndoesNothing(t *testing.T) {
	s := newLedgerScript(t, 2*dsm.PageSize)
	s.SetWriters(true)
	s.SetShared(true)
	k := s.read(0)
	s.area.Working(0)[8]++ // by an attached program
	s.area.Working(0)[9] = 7
	k[8]++
	s.Wrote(s.k, 0, k, true)
	if got := s.area.Working(0)[8:10]; !bytes.Equal(got, []byte{2, 7}) {
		t.Errorf("the working copy has %v, want 2 and 7", got)
	}
	s.Done(s.notice(NoticeInvalidate, 0, 1))
	s.quiet()

	s.Wrote(s.k, dsm.PageSize+3, []byte{1, 2, 3}, false) // write(2) of a page that was not read
	s.quiet()
	s.area.Working(1)[4]++
	s.touched(1)
	s.Wrote(s.k, dsm.PageSize+3, []byte{1, 2 + 5, 3}, false)
	if got := s.area.Working(1)[3:6]; !bytes.Equal(got, []byte{1, 3 + 5, 3}) {
		t.Errorf("the working copy has %v", got)
	}
	s.Done(s.notice(NoticeInvalidate, 1, 2))
	s.quiet()
	s.inUse(0)
}

// TestShareUnderStore: a store notice that was out when the sharing began tells
// what the page cache has.
func TestShareUnderStore(t *testing.T) {
	s := newLedgerScript(t, dsm.PageSize)
	s.read(0)
	s.update(0, 0)
	n := s.notice(NoticeStore, 0, 1)
	s.SetShared(true)
	if s.Writable() {
		t.Error("writable with a store in flight")
	}
	if got := s.read(0)[0]; got != 1 {
		t.Errorf("READ gets %d", got)
	}
	s.Done(n)
	s.quiet()
	s.inUse(1)
	s.area.Working(0)[0]++
	s.Wrote(s.k, 0, []byte{1 + 3}, true)
	if got := s.area.Working(0)[0]; got != 1+1+3 {
		t.Errorf("the working copy has %d, want 5", got)
	}
}

// TestSharedResize: what is stored past the end is no part of the area, and a
// page that was truncated and came back has the attached program's new stores.
func TestSharedResize(t *testing.T) {
	s := newLedgerScript(t, 2*dsm.PageSize+8)
	s.SetWriters(true)
	s.SetShared(true)
	old := pagetest.PageOf(9)
	copy(s.area.Working(1), old)
	s.read(1)
	s.read(2)
	s.area.Working(2)[8] = 5 // past the end
	s.touched(2)
	s.quiet()
	s.resize(2*dsm.PageSize + 16)
	if got := s.area.Working(2)[8]; got != 0 || s.read(2)[8] != 0 {
		t.Errorf("the area grew over %d", got)
	}
	s.quiet()

	s.resize(dsm.PageSize)
	s.resize(2 * dsm.PageSize)
	s.area.Working(1)[8] = 5
	if s.Writable() {
		t.Error("writable with a doubtful page")
	}
	s.Wrote(s.k, dsm.PageSize, make([]byte, dsm.PageSize), false) // of a page that the kernel made of nothing
	if got := s.area.Working(1)[8]; got != 5 {
		t.Errorf("the attached program's store has become %d", got)
	}
	s.Done(s.notice(NoticeInvalidate, 1, 3))
	s.quiet()
	s.inUse(0)
	if got := s.read(7); !allZero(got) { // the kernel may ask by an older size
		t.Error("a page past the end is not zero")
	}
	s.resize(8 * dsm.PageSize)
	s.area.Working(7)[0] = 1
	s.touched(7)
	s.Done(s.notice(NoticeInvalidate, 7, 8))
	s.quiet()
}

// TestAttachedProgram is the program of TestLedgerWithProgram, in a process of its own.
func TestAttachedProgram(t *testing.T) { pagetest.RunProgram(t) }

// TestLedgerWithProgram: a page cache reads and writes a page, updates come, and
// another process adds to its elements all the time. The sum of all is exact, and
// in the end the page cache has it.
func TestLedgerWithProgram(t *testing.T) {
	rng := pagetest.Rand(t)
	for _, r := range pagetest.Programs[:3] {
		t.Run(r.Name, func(t *testing.T) {
			a := newTestArea(t, dsm.PageSize)
			k := mustKernel(t, r.Rule, r.DType, r.Head)
			c := NewCached(a)
			c.SetWriters(true)
			c.SetShared(true)
			seed := rng.Uint64()
			f, err := a.OpenWorking(true)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			ended, wait := r.Start(t, int(f.Fd()), seed)
			defer wait()
			totals := make([]int, dsm.PageSize/r.DType.Size())
			base := make([]byte, dsm.PageSize)
			var cache []byte // nil: the page cache does not have the page
			drop := func() {
				for n, ok := c.NextNotice(); ok; n, ok = c.NextNotice() {
					if n.Kind != NoticeInvalidate {
						t.Fatalf("notice %+v", n)
					}
					if rng.IntN(2) == 0 && cache != nil { // delivers stores before it drops the page
						pagetest.RandomIncrements(rng, r.DType, cache, 0, totals)
						c.Wrote(k, 0, cache, true)
					}
					cache = nil
					c.Done(n)
				}
			}
			for steps := 0; !ended.Load() || steps < 1000; steps++ {
				switch rng.IntN(4) {
				case 0:
					if cache == nil {
						cache = pagetest.AlignedPage(nil)
						c.Read(0, cache)
					}
					pagetest.RandomIncrements(rng, r.DType, cache, 0, totals)
					c.Wrote(k, 0, cache, true)
				case 1:
					incoming := pagetest.AlignedPage(base)
					pagetest.RandomIncrements(rng, r.DType, incoming, 0, totals)
					c.BeforeMerge(0)
					k.MergeShared(0, base, a.Working(0), incoming)
					base = incoming
				case 2:
					c.Touched(0, dsm.Range(0, 1))
				case 3:
					drop()
				}
			}
			mine := rand.New(rand.NewPCG(seed, 1))
			for range pagetest.Stores() {
				totals[r.Element(mine)]++
			}
			for e, want := range totals {
				if got := pagetest.ElementAt(r.DType, a.Working(0)[e*r.DType.Size():]); got != want {
					t.Fatalf("element %d is %d, want %d", e, got, want)
				}
			}
			c.SetShared(false)
			drop()
			if cache != nil {
				pagetest.WantPage(t, "page cache", cache, a.Working(0))
			}
			if !c.Idle() || a.frames.used != 0 {
				t.Errorf("idle %v, %d frames in use", c.Idle(), a.frames.used)
			}
		})
	}
}

// TestNotTakenWhileDropped: what is not taken, of a WRITE that an invalidation delivers, is what the page cache was given. The page is bare,
// and the attached program that waits for it is let in all the same.
func TestNotTakenWhileDropped(t *testing.T) {
	s := newLedgerScript(t, 100)
	s.SetWriters(true)
	s.read(0)
	s.SetShared(true)
	n := s.notice(NoticeInvalidate, 0, 1)
	s.NotTaken(100, make([]byte, dsm.PageSize-100))
	for ok := true; ok; n, ok = s.NextNotice() {
		s.Done(n)
	}
	if !s.Writable() || !s.Idle() {
		t.Errorf("writable %v, idle %v", s.Writable(), s.Idle())
	}
}
