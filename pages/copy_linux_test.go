package pages

import (
	"bytes"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

// copyModel is what a copy is to be: bytes, and the pages that take memory.
type copyModel struct {
	bytes []byte
	takes map[dsm.PageIndex]bool
}

func (m *copyModel) resize(n int64) {
	m.zero(n, int64(len(m.bytes)))
	m.bytes = slices.Clone(append(m.bytes, make([]byte, max(n-int64(len(m.bytes)), 0))...)[:n])
	maps.DeleteFunc(m.takes, func(p dsm.PageIndex, _ bool) bool { return int64(p)*dsm.PageSize >= n })
}

func (m *copyModel) zero(from, to int64) {
	for p := range m.takes {
		start, end := int64(p)*dsm.PageSize, int64(p+1)*dsm.PageSize
		if start < to && end > from {
			clear(m.bytes[min(max(start, from), int64(len(m.bytes))):min(end, to, int64(len(m.bytes)))])
		}
		if start >= from && end <= to {
			delete(m.takes, p)
		}
	}
}

func (m *copyModel) check(t *testing.T, c *areaCopy) {
	t.Helper()
	if !bytes.Equal(c.mem[:len(m.bytes)], m.bytes) {
		t.Fatalf("%v of %d bytes: other bytes are there", c, len(m.bytes))
	}
}

func (m *copyModel) checkData(t *testing.T, c *areaCopy, off, n int64) {
	t.Helper()
	got, want := map[dsm.PageIndex]bool{}, map[dsm.PageIndex]bool{}
	if err := c.data(off, n, func(off, n int64) {
		for p, to := pagesOf(off, n); p < to; p++ {
			got[p] = true
		}
	}); err != nil {
		t.Fatal(err)
	}
	for p, to := pagesOf(off, n); p < to; p++ {
		if m.takes[p] {
			want[p] = true
		}
	}
	if !maps.Equal(got, want) {
		t.Fatalf("%v: pages %v take memory, want %v", c, got, want)
	}
	if n, err := c.resident(); err != nil || n != int64(len(m.takes))*dsm.PageSize {
		t.Fatalf("%v takes %d bytes (%v), want %d pages", c, n, err, len(m.takes))
	}
}

// dropPast frees what a copy has past its end.
func dropPast(c *areaCopy) error {
	if drop := c.droppingPast(); drop != nil {
		return drop(FreePast)
	}
	return nil
}

// TestCopy does random operations on a copy that is small or large, anonymous or a memfd, and moves between
// these, beside the model.
func TestCopy(t *testing.T) {
	rng := pagetest.Rand(t)
	for _, filed := range []bool{false, true} {
		for range 30 {
			testCopy(t, rng, newCopy(7, "t", filed))
		}
	}
}

func testCopy(t *testing.T, rng *rand.Rand, c *areaCopy) {
	m := copyModel{takes: map[dsm.PageIndex]bool{}}
	most := []int64{3 * dsm.PageSize, 2 * smallCopy, 3 << 20}[rng.IntN(3)]
	for range 60 {
		size := int64(len(m.bytes))
		switch op := rng.IntN(9); {
		case op < 2:
			n := rng.Int64N(most + 1)
			if n < size { // as Area.Resize does
				if err := c.zero(n, min(wholePages(n), c.len)); err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(c.reserve(wholePages(n)), c.resize(n), dropPast(c)); err != nil {
				t.Fatal(err)
			}
			m.resize(n)
		case op < 6 && size > 0:
			off := rng.Int64N(size)
			p := dsm.PageIndex(off / dsm.PageSize)
			b := byte(rng.IntN(3))
			if op == 5 {
				c.write(p, []byte{b}, int(off%dsm.PageSize))
			} else {
				c.page(p)[off%dsm.PageSize] = b
			}
			m.bytes[off], m.takes[p] = b, true
		case op == 6 && size > 0:
			from := rng.Int64N(size)
			to := from + rng.Int64N(c.len-from+1)
			if err := c.free(from, to); err != nil {
				t.Fatal(err)
			}
			m.zero(from, to)
		case op == 7 && c.filed && rng.IntN(5) == 0:
			f, err := c.open(rng.IntN(2) == 0)
			if err != nil {
				t.Fatal(err)
			}
			if st, err := f.Stat(); err != nil || st.Size() < size || st.Size() > size && !c.sealed {
				t.Fatalf("the file has %d bytes (%v), want %d", st.Size(), err, size)
			}
			_ = f.Close()
		case op == 8 && c.sealed: // a program stores past the end
			at := size + rng.Int64N(most)
			if _, err := unix.Pwrite(c.fd, pagetest.PageOf(9), at); err != nil {
				t.Fatal(err)
			}
			if at < c.len {
				m.takes[dsm.PageIndex(at/dsm.PageSize)] = true
			}
			n := min(rng.Int64N(most+1), size)
			if rng.IntN(2) == 0 {
				n = size + rng.Int64N(most)
			}
			if err := errors.Join(c.reserve(wholePages(n)), c.resize(n), dropPast(c)); err != nil {
				t.Fatal(err)
			}
			if n < size { // as Area.Resize does
				m.zero(n, wholePages(n))
			}
			m.resize(n)
			for p, to := pagesOf(at, dsm.PageSize); p < to; p++ { // it is zero, and not freed
				if off := int64(p) * dsm.PageSize; off >= wholePages(size) && off < c.len {
					m.takes[p] = true
				}
			}
			if n, err := c.resident(); err != nil || n != int64(len(m.takes))*dsm.PageSize {
				t.Fatalf("%v takes %d bytes (%v), want %d pages", c, n, err, len(m.takes))
			}
			if rng.IntN(4) == 0 {
				if err := c.unshare(); err != nil || c.sealed {
					t.Fatalf("%v has no memory of its own (%v)", c, err)
				}
			}
		}
		m.checkData(t, c, rng.Int64N(most/dsm.PageSize+1)*dsm.PageSize, rng.Int64N(most))
		if rng.IntN(6) == 0 { // reading makes pages of holes in a memfd
			if n, err := c.resident(); err == nil && (c.fd < 0 || n == c.len) {
				m.check(t, c)
			}
		}
	}
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
}

// descriptors returns how many the process has.
func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestDescriptors: only memory that programs have, or that is large, takes one, and only while there is a replica.
func TestDescriptors(t *testing.T) {
	had := descriptors(t)
	var all []*Area
	for i, size := range []int64{1, smallCopy, 1 << 20, 30 << 20} {
		a, err := NewArea(dsm.AreaID(i+1), size)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		all = append(all, a)
	}
	want := func(what string, n int) {
		t.Helper()
		if got := descriptors(t) - had; got != n {
			t.Errorf("%s: %d descriptors, want %d", what, got, n)
		}
	}
	want("homes", 0)
	for _, a := range all {
		if err := a.BeginReplica(); err != nil {
			t.Fatal(err)
		}
	}
	want("replicas", 2)
	opened(t, all[0])
	want("one that a program has", 3)
	for _, a := range all {
		a.Working(0)[0] = 1
		if err := a.EndReplica(); err != nil {
			t.Fatal(err)
		}
	}
	want("homes again", 0)
	if err := all[0].BeginReplica(); err != nil || all[0].Working(0)[0] != 0 {
		t.Errorf("a new replica has bytes of the last one (%v)", err)
	}
}

// TestMemoryIsFreedLater: what frees the memory of a working copy may be called when there is a new one.
func TestMemoryIsFreedLater(t *testing.T) {
	a := newTestArea(t, 30<<20)
	had := descriptors(t)
	a.Working(0)[0] = 1
	free := a.EndReplicaLater()
	if err := a.BeginReplica(); err != nil {
		t.Fatal(err)
	}
	a.Working(1)[0] = 2
	if got := descriptors(t); got != had+1 {
		t.Errorf("%d descriptors with two working copies, %d with one", got, had)
	}
	if err := free(); err != nil {
		t.Fatal(err)
	}
	if got := descriptors(t); got != had {
		t.Errorf("%d descriptors, want %d", got, had)
	}
	if a.Working(0)[0] != 0 || a.Working(1)[0] != 2 {
		t.Error("the new working copy has other bytes")
	}
}

// TestWithoutDescriptors: without any, areas of all sizes have memory, and only programs that are to map it have to wait.
func TestWithoutDescriptors(t *testing.T) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	set := func(l unix.Rlimit) {
		t.Helper()
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
			t.Fatal(err)
		}
	}
	a, large := newTestArea(t, 10), newTestArea(t, 3<<20)
	resize(t, large, 10) // it is a memfd, and stays one
	set(unix.Rlimit{Cur: 3, Max: was.Max})
	defer set(was)
	a.Working(0)[9] = 9
	resize(t, a, 5<<20)
	resize(t, large, 5<<20)
	b, err := NewArea(43, 5<<20)
	if err == nil {
		err = b.BeginReplica()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for _, x := range []*Area{a, b} {
		x.Working(1027)[5] = 7
		if _, err := x.OpenWorking(true); !errors.Is(err, unix.EMFILE) {
			t.Errorf("open: %v", err)
		}
	}
	set(was)
	for _, x := range []*Area{a, b} {
		opened(t, x)
		if x.Working(1027)[5] != 7 || x == a && x.Working(0)[9] != 9 {
			t.Error("bytes are lost")
		}
		var got []int64
		if err := x.DataRanges(2*dsm.PageSize, 5<<20, func(off, n int64) { got = append(got, off/dsm.PageSize, n/dsm.PageSize) }); err != nil || !slices.Equal(got, []int64{1027, 1}) {
			t.Errorf("data at pages, lengths %v (%v)", got, err)
		}
	}
}

// TestDemandMoves: which pages are here does not change when a program comes.
func TestDemandMoves(t *testing.T) {
	a := newTestDemandArea(t, 4*dsm.PageSize)
	if err := a.Attachable(); err != nil {
		t.Skip(err)
	}
	install(t, a, 1, make([]byte, dsm.PageSize))
	install(t, a, 3, pagetest.PageOf(3))
	opened(t, a)
	wantResident(t, "working copy", a.working, dsm.Range(1, 2).Or(dsm.Range(3, 4)))
	install(t, a, 2, pagetest.PageOf(2))
	pagetest.WantPage(t, "working", a.Working(3), pagetest.PageOf(3))
	evict(t, a, dsm.Range(1, 4), true, dsm.PageSet{})
}

// TestArena takes and gives pieces of all sizes, which must not overlap, and are zero.
func TestArena(t *testing.T) {
	rng := pagetest.Rand(t)
	a := newArena()
	type used struct {
		mem   []byte
		piece piece
		mark  byte
	}
	var all []used
	drop := func(i int) {
		h := all[i]
		if h.mem[0] != h.mark || h.mem[len(h.mem)-1] != h.mark {
			t.Fatal("a piece is used twice")
		}
		if err := a.give(h.piece); err != nil {
			t.Fatal(err)
		}
		all[i] = all[len(all)-1]
		all = all[:len(all)-1]
	}
	for range 5000 {
		if len(all) > 0 && rng.IntN(5) < 2 {
			drop(rng.IntN(len(all)))
			continue
		}
		n := 1 + rng.Int64N(smallCopy)
		mem, p, err := a.take(n)
		if err != nil {
			t.Fatal(err)
		}
		if int64(len(mem)) < n || mem[0] != 0 || mem[len(mem)-1] != 0 {
			t.Fatalf("a piece for %d bytes has %d, and is not new", n, len(mem))
		}
		h := used{mem, p, byte(1 + rng.IntN(255))}
		mem[0], mem[len(mem)-1] = h.mark, h.mark
		all = append(all, h)
	}
	for len(all) > 0 {
		drop(0)
	}
	for k, c := range a.mu.classes {
		if len(c.open) > 1 || c.idle != len(c.open) {
			t.Errorf("class %d keeps %d blocks, %d of them idle", k, len(c.open), c.idle)
		}
	}
}
