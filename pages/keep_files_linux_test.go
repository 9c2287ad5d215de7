package pages

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/hold"
	"github.com/dsmfs/dsmfs/pages/merge"
)

// heldProgram is a held area with a program that has attached it. Daemons come and go.
type heldProgram struct {
	t     *testing.T
	m     *hold.Memory
	shelf *hold.Shelf
	size  int64
	a     *Area
	c     *Cached
	sent  []*Sent
	mem   []byte // of the program
	k     merge.Kernel
}

func (h *heldProgram) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// keep is what a daemon finds.
func (h *heldProgram) keep() *Keep {
	h.t.Helper()
	s, err := NewKeep(h.m, h.shelf)
	h.must(err)
	return s
}

// newHeldProgram makes an area of which page p has p+1 in both copies, and has a program attach it.
func newHeldProgram(t *testing.T, size int64) *heldProgram {
	t.Helper()
	h := &heldProgram{t: t, shelf: hold.NewShelf(), size: size, k: mustKernel(t, dsm.MergeLast, dsm.DTypeAuto, 0)}
	var err error
	h.m, err = hold.Create()
	h.must(err)
	s := h.keep()
	h.a, h.c = beginHeld(t, s, size)
	for p := range dsm.PageIndex(wholePages(size) / dsm.PageSize) {
		copy(h.a.Working(p), fill(byte(p) + 1)[:min(dsm.PageSize, size-int64(p)*dsm.PageSize)])
		h.a.SetBase(p, h.a.Working(p))
	}
	file, err := s.NewFile(5, WorkingCopy)
	h.must(err)
	h.must(h.a.TakeFile(WorkingCopy, file))
	h.must(file.Close()) // the copy has it
	f, err := h.a.OpenWorking(true)
	h.must(err)
	h.mem, err = unix.Mmap(int(f.Fd()), 0, int(wholePages(size)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	h.must(err)
	h.must(f.Close())
	h.c.SetShared(true)
	return h
}

// next has the daemon be killed, and another one follow.
func (h *heldProgram) next() {
	h.t.Helper()
	left := h.keep().Areas()
	if len(left) != 1 || !left[0].Newest() || !left[0].Attached() {
		h.t.Fatalf("left: %+v", left)
	}
	var err error
	h.a, h.sent, err = left[0].TakeBoth(h.k, h.size, h.size)
	h.must(err)
	h.c = ResumeCached(h.a, true, math.MaxInt64)
	h.a.WorkingIsNewest()
	h.c.SetShared(true)
}

// files is how many files the holder has.
func (h *heldProgram) files() (n int) {
	h.t.Helper()
	for k, err := h.shelf.After(0); k != 0; k, err = h.shelf.After(k) {
		h.must(err)
		n++
	}
	return n
}

// TestProgramsKeepTheirMemory: what a program has mapped is the working copy of the daemons that follow. They do not have the file of the Keep to give away. When the replica ends the
// holder has nothing of it any more.
func TestProgramsKeepTheirMemory(t *testing.T) {
	const size = 5*dsm.PageSize + 100
	for _, slot := range []bool{false, true} {
		n := int64(size)
		if slot {
			n += smallCopy
		}
		h := newHeldProgram(t, n)
		for i := range byte(3) {
			h.mem[3*dsm.PageSize+7] = 100 + i
			h.next()
			if w := h.a.Working(3); w[7] != 100+i || w[8] != 4 || h.a.Base(3)[7] != 4 {
				t.Errorf("daemon %d: %d in the working copy, %d in the base", i, w[7:9], h.a.Base(3)[7:9])
			}
			h.a.Working(2)[0] = 50 + i
			if h.mem[2*dsm.PageSize] != 50+i {
				t.Errorf("daemon %d: the program has other memory", i)
			}
			if !h.a.Sealed() || h.a.WantsFile(WorkingCopy) {
				t.Errorf("daemon %d: sealed %v, wants a file %v", i, h.a.Sealed(), h.a.WantsFile(WorkingCopy))
			}
		}
		h.size = 2*dsm.PageSize + 3
		h.next() // it was cut while no daemon was there
		if h.mem[2*dsm.PageSize] != 52 || h.mem[2*dsm.PageSize+3] != 0 || h.mem[3*dsm.PageSize+7] != 0 {
			t.Error("what was cut off is there")
		}
		if h.files() != 1 {
			t.Errorf("the holder has %d files", h.files())
		}
		h.must(h.a.EndReplica())
		if h.files() != 0 {
			t.Errorf("the holder has %d files when the replica has ended", h.files())
		}
	}
}

// opensBase has a program open the base, which moves into a file.
func (h *heldProgram) opensBase() *os.File {
	h.t.Helper()
	file, err := h.keep().NewFile(5, BaseCopy)
	h.must(err)
	h.must(h.a.TakeFile(BaseCopy, file))
	h.must(file.Close()) // the copy has it
	f, err := h.a.OpenBase()
	h.must(err)
	return f
}

// TestReadersKeepTheBase: what a program has mapped to read is the base of the daemons that follow, until nobody needs it any more: also of one that takes no working copy over.
func TestReadersKeepTheBase(t *testing.T) {
	for _, n := range []int64{5*dsm.PageSize + 100, 5*dsm.PageSize + 100 + smallCopy} {
		h := newHeldProgram(t, n)
		f := h.opensBase()
		if _, err := unix.Mmap(int(f.Fd()), 0, dsm.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
			t.Error("a program that reads can store")
		}
		seen, err := unix.Mmap(int(f.Fd()), 0, int(wholePages(n)), unix.PROT_READ, unix.MAP_SHARED)
		h.must(err)
		var st unix.Stat_t
		h.must(unix.Fstat(int(f.Fd()), &st))
		h.must(f.Close())
		look := func(p dsm.PageIndex, want byte) {
			t.Helper()
			if got := seen[int64(p)*dsm.PageSize+9]; got != want || h.a.Base(p)[9] != want {
				t.Errorf("page %d is %d to the program, and %d in the base, want %d", p, got, h.a.Base(p)[9], want)
			}
		}
		for i := range byte(3) {
			h.a.SetBase(3, fill(100+i))
			h.mem[3*dsm.PageSize+9] = 150 + i // what others store is not published
			h.next()
			look(2, 3)
			look(3, 100+i)
			h.a.SetBase(2, fill(200+i))
			look(2, 200+i)
			h.a.SetBase(2, fill(3))
			if !h.a.Is(BaseCopy, st.Ino) || h.a.Is(WorkingCopy, st.Ino) || h.a.WantsFile(BaseCopy) || h.files() != 2 {
				t.Errorf("daemon %d: the base is another memfd, or the holder has %d files", i, h.files())
			}
		}
		in := make(map[dsm.PageIndex]bool)
		h.a.Data(func(p dsm.PageIndex) { in[p] = true })
		if pages := int(wholePages(n) / dsm.PageSize); len(in) != pages {
			t.Errorf("%d pages have data, want %d", len(in), pages)
		}
		p := dsm.PageIndex(wholePages(n) / dsm.PageSize) // killed when only the working copy had grown
		h.must(h.a.working.reserve(int64(p+1) * dsm.PageSize))
		h.must(h.a.working.resize(int64(p+1) * dsm.PageSize))
		copy(h.a.working.page(p), fill(77))
		left := h.keep().Areas()[0]
		n = int64(p+1) * dsm.PageSize
		h.a, err = left.Take(n, n) // no program stores to it any more
		h.must(err)
		if got := h.a.Base(p)[9]; got != 77 {
			t.Errorf("what had grown is %d", got)
		}
		look(3, 152)
		look(2, 3)
		if h.files() != 0 {
			t.Errorf("the holder has %d files when no program has any", h.files())
		}
		h.must(h.a.Close())
		if h.files() != 0 {
			t.Errorf("the holder has %d files in the end", h.files())
		}
	}
}

// TestKilledWhileACopyMoves: the daemon is killed before, while and after a copy moves into a file. The next one has all bytes, and the holder no file that nothing names.
func TestKilledWhileACopyMoves(t *testing.T) {
	const size = 3 * dsm.PageSize
	for step := range 6 {
		m, err := hold.Create()
		if err != nil {
			t.Fatal(err)
		}
		h := &heldProgram{t: t, m: m, shelf: hold.NewShelf(), size: size}
		s := h.keep()
		h.a, h.c = beginHeld(t, s, size)
		which, record := Copy(step/3), h.a.kept.record.Working
		if which == BaseCopy {
			record = h.a.kept.record.Base
		}
		step %= 3
		copy(h.a.of(which).page(1), fill(7))
		copy(h.a.of(which).page(2), fill(8))
		file, err := s.NewFile(5, which)
		h.must(err)
		place := record.Load()
		if step > 0 {
			h.must(h.a.TakeFile(which, file))
		}
		if step == 1 { // the bytes are in the file, and the record does not say so yet
			record.Store(place)
			copy(h.keepBytes(place), fill(7)) // they were there until it did
		}
		left := h.keep().Areas()[0]
		if left.Attached() != (step == 2) {
			t.Errorf("step %d: in a file: %v", step, left.Attached())
		}
		if want := step / 2; h.files() != want {
			t.Errorf("step %d: the holder has %d files", step, h.files())
		}
		a, _, err := left.TakeBoth(mustKernel(t, dsm.MergeLast, dsm.DTypeAuto, 0), size, size)
		h.must(err)
		if got := a.of(which).page(1)[9]; got != 7 {
			t.Errorf("step %d: the page has %d", step, got)
		}
	}
}

// keepBytes returns page 1 of a small copy that was at a place.
func (h *heldProgram) keepBytes(place uint64) []byte {
	h.t.Helper()
	mem, err := unix.Mmap(h.m.FD(), int64(place)&^classMask+dsm.PageSize, dsm.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	h.must(err)
	return mem
}

// TestGivenIsKnownWhileProgramsStore: the next daemon knows what the page cache was given of pages of shared memory, so a WRITE that comes after that changes no more than its program has stored.
func TestGivenIsKnownWhileProgramsStore(t *testing.T) {
	k := mustKernel(t, dsm.MergeLast, dsm.DTypeAuto, 0)
	for _, by := range []string{"READ", "WRITE"} {
		h := newHeldProgram(t, 3*dsm.PageSize)
		page := make([]byte, dsm.PageSize)
		h.settle()
		if h.c.Read(dsm.PageSize, page); by == "WRITE" {
			h.c.Wrote(k, dsm.PageSize, page, false)
		}
		h.mem[dsm.PageSize+5] = 60 // by the program that has attached
		h.next()
		h.mem[dsm.PageSize+6] = 61
		page[7] = 62 // by another one, through the page cache
		if _, _, ok := h.c.Wrote(k, dsm.PageSize, page, true); !ok {
			t.Fatal("the WRITE is refused")
		}
		if got := h.mem[dsm.PageSize+5:][:4]; string(got) != string([]byte{60, 61, 62, 2}) {
			t.Errorf("%s: after a WRITE there is %d", by, got)
		}
		if bad := h.c.Problem(); bad != "" {
			t.Error(bad)
		}
	}
}

// settle has the page cache drop what it has to.
func (h *heldProgram) settle() {
	for n, ok := h.c.NextNotice(); ok; n, ok = h.c.NextNotice() {
		h.c.Done(n)
	}
}

// TestFileIsNotThere: what the holder does not have is an error, and no crash.
func TestFileIsNotThere(t *testing.T) {
	h := newHeldProgram(t, dsm.PageSize)
	n, err := h.shelf.After(0)
	h.must(err)
	h.must(h.shelf.Drop(n))
	if _, _, err := h.keep().Areas()[0].TakeBoth(merge.Kernel{}, dsm.PageSize, dsm.PageSize); !errors.Is(err, unix.ENOENT) {
		t.Errorf("without the file: %v", err)
	}
	r, w, err := os.Pipe()
	h.must(err)
	defer func() { _, _ = r.Close(), w.Close() }()
	other, err := h.shelf.Put(int(r.Fd()))
	h.must(err)
	h.a.kept.record.Working.Store(uint64(placeOfFile(other)))
	if _, _, err := h.keep().Areas()[0].TakeBoth(merge.Kernel{}, dsm.PageSize, dsm.PageSize); err == nil {
		t.Error("a pipe is taken for memory")
	}
}

// TestMovesWhileItChanges: a large copy moves bit by bit, while pages are stored to, freed, cut off and added. In the end the file has what the copy had.
func TestMovesWhileItChanges(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 20 {
		which := Copy(round % 2)
		m, err := hold.Create()
		if err != nil {
			t.Fatal(err)
		}
		h := &heldProgram{t: t, m: m, shelf: hold.NewShelf(), size: moveAhead + 40*dsm.PageSize}
		s := h.keep()
		h.a, h.c = beginHeld(t, s, h.size)
		want := make([]byte, 2*h.size)
		mem := func(p dsm.PageIndex) []byte { return h.a.of(which).page(p) }
		store := func() {
			p := dsm.PageIndex(rng.IntN(int(wholePages(h.size) / dsm.PageSize)))
			if p > 20 && rng.IntN(2) == 0 {
				p = p % 20
			}
			n := copy(mem(p)[:h.c.within(p)], fill(byte(1+rng.IntN(250))))
			copy(want[int64(p)*dsm.PageSize:], mem(p)[:n])
		}
		for range 600 {
			store()
		}
		file, err := s.NewFile(5, which)
		h.must(err)
		other, err := s.NewFile(5, which)
		h.must(err)
		for more := true; more; {
			var another bool
			more, another, err = h.a.MoveAhead(which, file, 50)
			h.must(err)
			if another {
				t.Fatal("it is being moved by somebody else")
			}
			if _, another, err := h.a.MoveAhead(which, other, 50); err != nil || another != h.a.Moves(which) {
				t.Fatalf("another file: %v, %v", another, err)
			}
			for range rng.IntN(20) {
				store()
			}
			if rng.IntN(12) == 0 {
				h.size += int64(rng.IntN(60)-30) * 1000
				h.must(h.a.Resize(h.size))
				clear(want[h.size:])
			}
			if p := dsm.PageIndex(rng.IntN(30)); rng.IntN(8) == 0 {
				clear(mem(p))
				clear(want[int64(p)*dsm.PageSize:][:dsm.PageSize])
				h.must(h.a.FreeZeroed(0, dsm.Range(int(p), int(p)+1)))
			}
		}
		use := file
		switch rng.IntN(4) {
		case 0:
			use = other
		case 1:
			if h.a.StayPut(file); h.a.Moves(which) {
				t.Error("it moves, and is to stay")
			}
			h.must(unix.Ftruncate(file.fd, 0)) // all is copied once more
		}
		h.must(h.a.TakeFile(which, use))
		h.a.StayPut(file)
		h.must(file.Close())
		h.must(other.Close())
		f, err := h.a.of(which).open(false)
		h.must(err)
		got := make([]byte, h.size)
		if _, err := f.ReadAt(got, 0); err != nil || string(got) != string(want[:h.size]) {
			t.Fatalf("the file does not have what the copy had (%v)", err)
		}
		h.must(f.Close())
		if h.files() != 1 || h.a.Moves(which) {
			t.Errorf("the holder has %d files, and it moves: %v", h.files(), h.a.Moves(which))
		}
		h.must(h.a.Close())
	}
}

// TestFollowsWhileAProgramIsStuckInAWrite: a daemon is killed while a program is in write(2) to its memory, for as long as it likes. The next one takes the area over all the same.
func TestFollowsWhileAProgramIsStuckInAWrite(t *testing.T) {
	const size = 5*dsm.PageSize + 100
	h := newHeldProgram(t, size)
	f, err := h.a.OpenWorking(true)
	h.must(err)
	defer f.Close()
	stuck := newStuckPage(t)
	wrote := make(chan error, 1)
	go func() {
		_, err := unix.Pwrite(int(f.Fd()), unsafe.Slice((*byte)(stuck.mem), dsm.PageSize), 2*dsm.PageSize)
		wrote <- os.NewSyscallError("pwrite", err)
	}()
	stuck.awaited()
	h.mem[3*dsm.PageSize] = 99
	h.next()
	var stored []dsm.PageIndex
	h.a.Stored(func(p dsm.PageIndex) { stored = append(stored, p) })
	if h.a.Working(3)[0] != 99 || h.a.Base(3)[0] != 4 || len(stored) != 6 {
		t.Errorf("%d in the working copy, %d in the base; pages %d are there", h.a.Working(3)[0], h.a.Base(3)[0], stored)
	}
	h.size = 2 * dsm.PageSize
	h.next() // it is shorter by now
	if h.mem[3*dsm.PageSize] != 0 || h.mem[5*dsm.PageSize] != 0 {
		t.Error("what was cut off is there")
	}
	stuck.let()
	h.must(<-wrote)
}

// TestFollowsWhileMemoryIsFreed: a process of the daemon before frees what a program has past the end of the area, and waits for the program. The area gets no longer before that is over: what is
// stored there would be freed.
func TestFollowsWhileMemoryIsFreed(t *testing.T) {
	const long, short = 6 * dsm.PageSize, 2*dsm.PageSize + 9
	const from = 3 * dsm.PageSize
	h := newHeldProgram(t, long)
	h.must(h.a.Resize(short))
	st, err := h.a.working.stat()
	h.must(err)
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", h.m.FD()), unix.O_RDWR|unix.O_CLOEXEC, 0)
	h.must(err)
	h.must(unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: hold.FreeMark(st.Ino, from), Len: 1}))
	for range 2 {
		h.size = long // while no daemon is there
		h.next()
		if h.a.Size() != from || h.a.working.size != from || h.a.base.size != from {
			t.Fatalf("it has %d bytes, the copies %d and %d", h.a.Size(), h.a.working.size, h.a.base.size)
		}
		if err := h.a.Resize(long); !errs.Is(err, errs.Busy) {
			t.Errorf("it grows: %v", err)
		}
		if h.a.DropPast() != nil {
			t.Error("two free the same")
		}
		h.must(h.a.Resize(short))
		h.must(h.a.Resize(from))
	}
	h.must(FreePast(h.a.working.fd, from)) // as that process
	h.must(unix.Close(fd))
	h.must(h.a.Resize(long))
	h.next()
	if h.a.Size() != long || h.a.Working(1)[0] != 2 || h.a.Working(4)[0] != 0 {
		t.Errorf("it has %d bytes, %d, %d", h.a.Size(), h.a.Working(1)[0], h.a.Working(4)[0])
	}
}

// TestAreaThatEndsWithItsDaemon: programs may have of it what they may have of an area that is in no Keep: either copy, a working copy that is not sealed any more, and a draft without a HeldFile.
// Its bytes stay, and so does nothing in the Keep when it is closed.
func TestAreaThatEndsWithItsDaemon(t *testing.T) {
	for _, attached := range []bool{false, true} {
		for _, size := range []int64{5*dsm.PageSize + 100, smallCopy + 5*dsm.PageSize} {
			m, err := hold.Create()
			shelf := hold.NewShelf()
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			must(err)
			s, err := NewKeep(m, shelf)
			must(err)
			a, _ := beginHeld(t, s, size)
			copy(a.Working(3), fill(7))
			a.SetBase(3, fill(6))
			if attached {
				file, err := s.NewFile(5, WorkingCopy)
				must(err)
				must(a.TakeFile(WorkingCopy, file))
				f, err := a.OpenWorking(true)
				must(err)
				must(f.Close())
			} else {
				file, err := s.NewFile(5, WorkingCopy)
				must(err)
				_, _, err = a.MoveAhead(WorkingCopy, file, 1)
				must(err)
				defer func() { must(file.Close()) }()
			}
			if _, err := a.OpenBase(); err == nil {
				t.Error("a program has a base that outlives the daemon")
			}
			a.EndsWithDaemon()
			if a.Outlives() || a.WantsFile(WorkingCopy) {
				t.Errorf("outlives %v, wants a file %v", a.Outlives(), a.WantsFile(WorkingCopy))
			}
			must(a.Unshare())
			if a.Sealed() {
				t.Error("the working copy is still sealed")
			}
			reads := func(open func() (*os.File, error), want byte) {
				t.Helper()
				f, err := open()
				must(err)
				var b [1]byte
				if _, err := f.ReadAt(b[:], 3*dsm.PageSize); err != nil || b[0] != want {
					t.Errorf("attached %v, %d bytes: a program reads %d, %v; want %d", attached, size, b[0], err, want)
				}
				must(f.Close())
			}
			reads(func() (*os.File, error) { return a.OpenWorking(false) }, 7)
			reads(a.OpenBase, 6)
			d, err := a.NewDraft(9, nil)
			must(err)
			must(d.Fill(a, 0, size))
			reads(func() (*os.File, error) { return d.Open(true) }, 7)
			must(d.Close())
			must(a.Resize(2 * smallCopy))
			copy(a.Working(smallCopy/dsm.PageSize+3), fill(5))
			must(a.EndReplica())
			must(a.BeginReplica())
			must(a.Close())
			if n := s.mu.slots.used - len(s.mu.slots.free) + s.mu.records.used - len(s.mu.records.free); n != 0 {
				t.Errorf("attached %v, %d bytes: %d records and slots are still in use", attached, size, n)
			}
		}
	}
}

// TestCopiesLeaveTheirFiles: when the replica ends, the home's bytes are no file any more, but for those of a large area. The next daemon has them.
func TestCopiesLeaveTheirFiles(t *testing.T) {
	for size, files := range map[int64]int{3*dsm.PageSize + 7: 0, smallCopy + 7: 0, moveAhead + dsm.PageSize: 1} {
		h := newHeldProgram(t, size)
		f := h.opensBase()
		h.a.BecomeHome(0)
		h.must(h.a.EndReplica())
		if h.files() != files || h.a.Filed(BaseCopy) != (files > 0) {
			t.Errorf("%d bytes: the holder has %d files, want %d", size, h.files(), files)
		}
		copy(h.a.Home(2), fill(200))
		if got := h.a.Home(1)[9]; got != 2 {
			t.Errorf("%d bytes: the home has %d", size, got)
		}
		var err error
		h.a, err = h.keep().Areas()[0].Take(size, size)
		h.must(err)
		h.a.BecomeHome(0)
		if one, two := h.a.Home(1)[9], h.a.Home(2)[9]; one != 2 || two != 200 {
			t.Errorf("%d bytes: the next daemon has %d and %d", size, one, two)
		}
		had := make([]byte, 1)
		if _, err := f.ReadAt(had, dsm.PageSize+9); err != nil || had[0] != 2 {
			t.Errorf("%d bytes: who has mapped it has %d (%v)", size, had[0], err)
		}
		h.must(f.Close())
		h.must(h.a.Close())
		if h.files() != 0 {
			t.Errorf("%d bytes: the holder has %d files in the end", size, h.files())
		}
	}
}

// TestDroppedWhileItIsMapped: the next daemon drops an area that is gone. Programs that have it mapped keep what they have.
func TestDroppedWhileItIsMapped(t *testing.T) {
	h := newHeldProgram(t, 5*dsm.PageSize)
	f := h.opensBase()
	h.must(h.keep().Areas()[0].Drop())
	had := make([]byte, 1)
	if _, err := f.ReadAt(had, 3*dsm.PageSize); err != nil || had[0] != 4 {
		t.Errorf("who reads has %d (%v)", had[0], err)
	}
	if h.mem[3*dsm.PageSize] != 4 {
		t.Errorf("who stores has %d", h.mem[3*dsm.PageSize])
	}
	h.must(f.Close())
	if h.files() != 0 || len(h.keep().Areas()) != 0 {
		t.Errorf("the holder has %d files, and %d areas are left", h.files(), len(h.keep().Areas()))
	}
}
