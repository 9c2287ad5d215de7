package pages

import (
	"bytes"
	"math"
	"os"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/hold"
	"github.com/dsmfs/dsmfs/pages/merge"
)

// nextDaemon returns what a daemon finds of the only area.
func nextDaemon(t *testing.T, m *hold.Memory, size, least int64) (*Area, []*Sent, *Cached) {
	t.Helper()
	if least == size {
		return daemonAfterShrink(t, m, size, least, math.MaxInt64)
	}
	return daemonAfterShrink(t, m, size, least, least)
}

// daemonAfterShrink is nextDaemon when what programs see was truncated meanwhile, from the byte uncertain on.
func daemonAfterShrink(t *testing.T, m *hold.Memory, size, least, uncertain int64) (*Area, []*Sent, *Cached) {
	t.Helper()
	left := newTestStore(t, m).Areas()
	if len(left) != 1 || !left[0].Newest() {
		t.Fatalf("left: %+v", left)
	}
	a, sent, err := left[0].TakeBoth(mustKernel(t, dsm.MergeLast, dsm.DTypeAuto, 0), size, least)
	if err != nil {
		t.Fatal(err)
	}
	return a, sent, ResumeCached(a, true, uncertain)
}

// newHeldReplica returns an area of a new store that programs have open for writing. All of it is here.
func newHeldReplica(t *testing.T, size int64) (*hold.Memory, *Area, *Cached) {
	t.Helper()
	m, err := hold.Create()
	if err != nil {
		t.Fatal(err)
	}
	a, c := beginHeld(t, newTestStore(t, m), size)
	return m, a, c
}

// beginHeld returns the same of a store that is there.
func beginHeld(t *testing.T, s *Keep, size int64) (*Area, *Cached) {
	t.Helper()
	a, err := s.NewHeldArea(5, size)
	if err == nil {
		err = a.BeginReplica()
	}
	if err != nil {
		t.Fatal(err)
	}
	a.WorkingIsNewest()
	c := NewCached(a)
	c.SetWriters(true)
	return a, c
}

func fill(b byte) []byte { return bytes.Repeat([]byte{b}, dsm.PageSize) }

// TestBothCopiesOutliveTheDaemon: the next daemon has the working copy, the base and what the page cache was given as they were, and what was
// sent. It may be killed, too, at any time.
func TestBothCopiesOutliveTheDaemon(t *testing.T) {
	const size = 300 * dsm.PageSize
	m, a, c := newHeldReplica(t, size)
	set := func(p dsm.PageIndex, working, base byte) {
		copy(a.Working(p), fill(working))
		a.SetBase(p, fill(base))
	}
	page := make([]byte, dsm.PageSize)
	// Page 1: the page cache was given 1, and an update has made it 2.
	set(1, 1, 1)
	c.Read(dsm.PageSize, page)
	c.BeforeMerge(1)
	set(1, 2, 2)
	// Page 2 is homed here, and the home has gone on.
	a.BecomeHome(0)
	copy(a.Working(2), fill(7))
	copy(a.Home(2), fill(3))
	a.BeforeHomeWrite(2, false)
	copy(a.Home(2), fill(4))
	// Page 280 is being merged.
	set(280, 5, 6)
	body := bytes.Repeat([]byte("abcdefgh"), 2000)
	s := a.KeepSent(1, 99, dsm.Range(20, 30), dsm.Range(23, 26), []uint64{11, 12}, body[:5], body[5:])
	part := a.KeepSent(1, 98, dsm.Range(20, 30), dsm.PageSet{}, nil, body)
	part.SetBody(3000, []byte("XY"))
	a.BeginMerge(280, true, []SentOf{part.Of(24), s.Of(24)})
	copy(a.Working(280), fill(8))
	s.Merged(24)
	s.Without(24)
	part.Merged(24)
	other := a.KeepSent(0, 100, dsm.Range(0, 1), dsm.PageSet{}, nil, body)
	other.Drop()

	for daemon := range 3 {
		a, sent, c := nextDaemon(t, m, size, size)
		for p, want := range map[dsm.PageIndex][2]byte{1: {2, 2}, 2: {7, 3}, 280: {5, 6}, 3: {0, 0}} {
			if a.Working(p)[9] != want[0] || a.Base(p)[9] != want[1] {
				t.Errorf("daemon %d: page %d has %d and %d, want %d", daemon, p, a.Working(p)[9], a.Base(p)[9], want)
			}
		}
		if len(sent) != 2 || sent[0].Number() != 98 || sent[0].Pages() != dsm.Range(20, 30) || string(sent[0].Body()[2999:3003]) != "hXYc" {
			t.Fatalf("daemon %d: sent: %+v", daemon, sent)
		}
		if sent = sent[1:]; sent[0].Extent() != 1 || sent[0].Number() != 99 || sent[0].Pages() != dsm.Range(20, 30) || sent[0].Besides() != dsm.Range(23, 26) || sent[0].Head(1) != 12 || !bytes.Equal(sent[0].Body(), body) {
			t.Fatalf("daemon %d: sent: %+v", daemon, sent)
		}
		if g, known := c.Believed(1); !known || g[0] != 1 {
			t.Errorf("daemon %d: the page cache was given page 1 as %v, %v", daemon, g[:1], known)
		}
		if g, known := c.Believed(280); !known || g[0] != 5 {
			t.Errorf("daemon %d: the page cache was given page 280 as %v, %v", daemon, g[:1], known)
		}
		if bad := c.Problem(); bad != "" {
			t.Error(bad)
		}
		a.WorkingIsNewest()
	}
	last, _, c := nextDaemon(t, m, size, size)
	k, err := merge.KernelFor(dsm.MergeLast, dsm.Layout{})
	if err != nil {
		t.Fatal(err)
	}
	now := fill(1)
	now[0] = 77 // what a program has stored to what it was given
	if _, _, ok := c.Wrote(k, dsm.PageSize, now, true); !ok || last.Working(1)[0] != 77 || last.Working(1)[1] != 2 {
		t.Errorf("the store: %v, %d", ok, last.Working(1)[:2])
	}
	if err := last.Close(); err != nil {
		t.Fatal(err)
	}
	if left := newTestStore(t, m).Areas(); len(left) != 0 {
		t.Errorf("left of a closed area: %+v", left)
	}
}

// TestShrinkWhileNoDaemonIsThere: what programs have stored to a page of which it is not known what they saw is refused.
func TestShrinkWhileNoDaemonIsThere(t *testing.T) {
	const size = 4 * dsm.PageSize
	m, a, _ := newHeldReplica(t, size)
	copy(a.Working(2), fill(1))
	a, _, c := nextDaemon(t, m, size, dsm.PageSize)
	if a.Working(2)[0] != 0 {
		t.Error("what was truncated is there")
	}
	if !c.Refuses(2) || c.Writable() {
		t.Error("stores to a page that was truncated are taken")
	}
}

// writtenArea is an area that programs have open for writing, and whose pages the page cache was given. Those before stores have nines.
func writtenArea(t *testing.T, size int64, stores dsm.PageIndex) (*hold.Memory, *Area, *Cached) {
	t.Helper()
	m, a, c := newHeldReplica(t, size)
	for p := range stores {
		copy(a.Working(p), fill(9)[:min(dsm.PageSize, size-int64(p)*dsm.PageSize)])
		a.SetBase(p, a.Working(p))
	}
	c.Read(0, make([]byte, wholePages(size)))
	return m, a, c
}

// TestKilledDuringAShrink: stores to pages before the new end count, also if the daemon is killed before the kernel has dropped what is truncated. Those to
// truncated pages do not: what programs saw around them is not known. The same goes for a WRITE that was not taken.
func TestKilledDuringAShrink(t *testing.T) {
	const size = 6 * dsm.PageSize
	for _, end := range []int64{3 * dsm.PageSize, 3*dsm.PageSize + 100} {
		for _, refused := range []bool{false, true} {
			m, a, c := writtenArea(t, size, 0)
			if refused {
				c.NotTaken(3*dsm.PageSize, fill(5))
			} else {
				c.BeforeShrink(end)
				if err := a.Resize(end); err != nil {
					t.Fatal(err)
				}
				c.Truncate(end)
			}
			for range 2 {
				a, _, next := nextDaemon(t, m, a.Size(), a.Size())
				if err := a.Resize(size); err != nil { // by another node
					t.Fatal(err)
				}
				next.Truncate(size)
				for p := range dsm.PageIndex(6) {
					if next.Refuses(p) != (p >= 3) {
						t.Errorf("shrunk to %d, refused %v: stores to page %d are refused: %v", end, refused, p, next.Refuses(p))
					}
				}
				if bad := next.Problem(); bad != "" {
					t.Error(bad)
				}
			}
			k := mustKernel(t, dsm.MergeLast, dsm.DTypeAuto, 0)
			_, _, next := nextDaemon(t, m, a.Size(), a.Size())
			if _, _, ok := next.Wrote(k, 0, fill(7), true); !ok || next.area.Working(0)[0] != 7 {
				t.Errorf("shrunk to %d, refused %v: a store to page 0 is not taken", end, refused)
			}
		}
	}
}

// TestShrinkIsOver: when a READ ends the doubt about what was truncated, or an invalidation does, the next daemon is certain of all.
func TestShrinkIsOver(t *testing.T) {
	const size, end = 4 * dsm.PageSize, 3*dsm.PageSize + 100
	for _, read := range []bool{false, true} {
		m, a, c := writtenArea(t, size, 0)
		c.BeforeShrink(end)
		if err := a.Resize(end); err != nil {
			t.Fatal(err)
		}
		c.Truncate(end)
		if read {
			c.Read(3*dsm.PageSize, make([]byte, dsm.PageSize))
		}
		for n, ok := c.NextNotice(); ok; n, ok = c.NextNotice() {
			c.Done(n)
		}
		_, _, next := nextDaemon(t, m, end, end)
		if !next.Writable() || next.Refuses(3) {
			t.Errorf("read %v: the next daemon is not certain", read)
		}
	}
}

// TestShrunkAndGrownAroundAKill: an area shrinks while no daemon is there, and grows again before the kernel hears of it. What the kernel then writes back by
// its old size does not bring back what was truncated.
func TestShrunkAndGrownAroundAKill(t *testing.T) {
	const size = 3*dsm.PageSize + 2000
	k := mustKernel(t, dsm.MergeLast, dsm.DTypeAuto, 0)
	for _, least := range []int64{3*dsm.PageSize + 1000, 3 * dsm.PageSize, 2*dsm.PageSize + 1000} {
		m, _, _ := writtenArea(t, size, 4)
		a, _, c := daemonAfterShrink(t, m, least, least, least)
		for p := range dsm.PageIndex(2) {
			if c.Refuses(p) {
				t.Errorf("shrunk to %d: page %d is refused", least, p)
			}
		}
		if err := a.Resize(size); err != nil {
			t.Fatal(err)
		}
		c.Truncate(size)
		now := fill(9)[:2000]
		now[0] = 7
		if _, _, ok := c.Wrote(k, 3*dsm.PageSize, now, true); ok || a.Working(3)[1500] != 0 {
			t.Errorf("shrunk to %d: bytes that were truncated are there again: %d", least, a.Working(3)[1500])
		}
	}
}

// TestKilledWhileAWriteIsRefused: the WRITE comes again to the next daemon. That does not take the page for one that nobody has stored to.
func TestKilledWhileAWriteIsRefused(t *testing.T) {
	const size = 4 * dsm.PageSize
	m, _, c := newHeldReplica(t, size)
	c.Read(2*dsm.PageSize, make([]byte, dsm.PageSize))
	mem, err := unix.Mmap(-1, 0, 2*dsm.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(mem) }()
	copy(mem, fill(9))
	if err := unix.Mprotect(mem[dsm.PageSize:], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	func() { // the daemon is killed in the middle of the bytes
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		defer func() {
			if recover() == nil {
				t.Error("it was not killed")
			}
		}()
		c.NotTaken(2*dsm.PageSize, mem[2048:2048+dsm.PageSize])
	}()
	_, _, c = nextDaemon(t, m, size, size)
	if !c.Refuses(2) {
		g, known := c.Believed(2)
		t.Errorf("a store that comes again is taken: the page cache was given %v, %v", g[:1], known)
	}
}

// TestDroppedAreaLeavesNoFrames: what the frames of an area had that was dropped is not taken for what those of the next one with this number have.
func TestDroppedAreaLeavesNoFrames(t *testing.T) {
	const size = 4 * dsm.PageSize
	m, err := hold.Create()
	if err != nil {
		t.Fatal(err)
	}
	s := newTestStore(t, m)
	begin := func(b byte) (*Area, *Cached) {
		a, c := beginHeld(t, s, size)
		copy(a.Working(2), fill(b))
		c.Read(2*dsm.PageSize, make([]byte, dsm.PageSize))
		return a, c
	}
	a, c := begin(1)
	c.BeforeMerge(2)
	copy(a.Working(2), fill(2))
	s = newTestStore(t, m)
	if err := s.Areas()[0].Drop(); err != nil {
		t.Fatal(err)
	}
	begin(3)
	if _, _, c = nextDaemon(t, m, size, size); string(c.area.Working(2)) != string(fill(3)) {
		t.Error("what was stored is lost")
	}
	if g, known := c.Believed(2); !known || g[0] != 3 {
		t.Errorf("the page cache was given %v, %v", g[:1], known)
	}
}

// TestFramesOfAKeepGoBack: as TestFramesGoBack. What is kept is used again, and the next daemon frees it.
func TestFramesOfAKeepGoBack(t *testing.T) {
	defer KeepIdle(slabBytes * int64(cap(idleSlabs)))
	KeepIdle(2 * slabBytes)
	m, a, _ := newHeldReplica(t, dsm.PageSize)
	before := FrameBytes()
	f := frames{kept: a.kept}
	for range 2 {
		for range 10 * slabFrames {
			x := f.take()
			copy(x.mem, fill(1))
			f.tag(x, frameGiven, 0, 0)
		}
		if got := FrameBytes() - before; got != 10*slabBytes {
			t.Errorf("%d frames take %d bytes", 10*slabFrames, got)
		}
		f.close()
		if got := FrameBytes() - before; got != 2*slabBytes {
			t.Errorf("frames that nothing uses take %d bytes, want %d", got, 2*slabBytes)
		}
	}
	taken := allocated(t, m)
	newTestStore(t, m)
	if got := taken - allocated(t, m); got != 2*slabBytes {
		t.Errorf("the next daemon has freed %d bytes, want %d", got, 2*slabBytes)
	}
}

// TestKilledWhileAWriteIsTaken: the next daemon has the working copy and what the page cache was given both as before the WRITE, which comes again, or both as after it.
func TestKilledWhileAWriteIsTaken(t *testing.T) {
	const size = 4 * dsm.PageSize
	m, a, c := newHeldReplica(t, size)
	copy(a.Working(2), fill(1))
	c.Read(2*dsm.PageSize, make([]byte, dsm.PageSize))
	c.BeforeMerge(2)
	copy(a.Working(2), fill(5))
	look := func(when string, working, given byte) {
		t.Helper()
		for range 2 {
			a, _, c := nextDaemon(t, m, size, size)
			if g, known := c.Believed(2); a.Working(2)[9] != working || !known || g[9] != given {
				t.Errorf("%s: the working copy has %d, the page cache was given %v, %v; want %d and %d", when, a.Working(2)[9], g[:1], known, working, given)
			}
		}
	}
	a.BeginMerge(2, true, nil)
	copy(a.Working(2)[:2000], fill(9))
	look("the working copy is half done", 5, 1)
	a, _, _ = nextDaemon(t, m, size, size)
	a.BeginMerge(2, true, nil)
	copy(a.Working(2), fill(9))
	next := a.frames.take()
	copy(next.mem, fill(4))
	a.frames.tag(next, frameNext, 2, 0)
	look("the next g is there", 5, 1)
	a, _, c = nextDaemon(t, m, size, size)
	a.BeginMerge(2, true, nil)
	copy(a.Working(2), fill(9))
	c.nowGiven(2, 0, fill(4))
	look("done", 9, 4)
	a, _, _ = nextDaemon(t, m, size, size)
	next = a.frames.take()
	copy(next.mem, fill(6))
	a.frames.tag(next, frameNext, 2, 0)
	look("the g before is still there", 9, 6)
}

// TestAttachAfterAKill: the page cache may have any page as it was given by the daemon before. A program that attaches now does not store before that is
// invalidated: then nobody would know what the page cache has.
func TestAttachAfterAKill(t *testing.T) {
	const size = (dsm.ExtentPages + 4) * dsm.PageSize
	m, _, c := newHeldReplica(t, size)
	c.Read((dsm.ExtentPages+1)*dsm.PageSize, make([]byte, dsm.PageSize))
	_, _, c = nextDaemon(t, m, size, size)
	c.SetShared(true)
	if c.Writable() {
		t.Fatal("a program may store at once")
	}
	for n, ok := c.NextNotice(); ok; n, ok = c.NextNotice() {
		c.Done(n)
	}
	if !c.Writable() {
		t.Error("a program may not store when everything is invalidated")
	}
	if p := c.Problem(); p != "" {
		t.Error(p)
	}
}

// TestFramesOfManyAreas: areas that have published take a page or two each for that, and no mappings: a process has only 65,530 of those.
func TestFramesOfManyAreas(t *testing.T) {
	const areas = 2000
	m, err := hold.Create()
	if err != nil {
		t.Fatal(err)
	}
	s, before := newTestStore(t, m), FrameBytes()
	mappings := func() int {
		b, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Count(b, []byte("\n"))
	}
	had := mappings()
	for i := range areas {
		a, err := s.NewHeldArea(dsm.AreaID(i+1), 100)
		if err == nil {
			err = a.BeginReplica()
		}
		if err != nil {
			t.Fatal(err)
		}
		a.WorkingIsNewest()
		for range 3 {
			x := a.KeepSent(0, 1, dsm.Range(0, 1), dsm.PageSet{}, nil, []byte("x"))
			a.BeginMerge(0, true, []SentOf{x.Of(0)})
			a.EndMerge()
			if x.Drop(); a.frames.used != 0 {
				t.Fatalf("%d frames are in use", a.frames.used)
			}
		}
		a.KeepSent(0, 2, dsm.Range(0, 1), dsm.PageSet{}, nil, []byte("x"))
	}
	if got := FrameBytes() - before; got > areas*4*dsm.PageSize {
		t.Errorf("the frames of %d areas take %d bytes", areas, got)
	}
	for _, left := range newTestStore(t, m).Areas() {
		if _, sent, err := left.TakeBoth(mustKernel(t, dsm.MergeLast, dsm.DTypeAuto, 0), 100, 100); err != nil || len(sent) != 1 {
			t.Fatalf("area %d: %d sent, %v", left.ID, len(sent), err)
		}
	}
	if got := mappings() - had; got > 100 {
		t.Errorf("%d areas take %d mappings", areas, got)
	}
}

// TestFramesLinger: memory that is needed again and again is kept meanwhile, and freed when nobody needs it any more.
func TestFramesLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := hold.Create()
		if err != nil {
			t.Fatal(err)
		}
		s, before := newTestStore(t, m), FrameBytes()
		const slabs = 100 // more than KeepIdle lets be kept
		s.Linger(90 * slabBytes)
		use := func() {
			var all []*slab
			for range slabs {
				x := s.grabSlab()
				x.takes(slabFrames)
				all = append(all, x)
			}
			for _, x := range all {
				s.dropSlab(x)
			}
		}
		for range 10 {
			use()
			if took := FrameBytes() - before; took != 90*slabBytes {
				t.Errorf("%d slabs are kept", took/slabBytes)
			}
			time.Sleep(lingerTime / 2)
		}
		time.Sleep(3 * lingerTime)
		if took := FrameBytes() - before; took != 48*slabBytes {
			t.Errorf("%d slabs are kept in the end", took/slabBytes)
		}
		use()
	})
}
