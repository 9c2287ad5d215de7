package pages

import (
	"encoding/binary"
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
	file, err := s.NewFile(5)
	h.must(err)
	h.must(h.a.TakeFile(file))
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
			if !h.a.Sealed() || h.a.WantsFile() {
				t.Errorf("daemon %d: sealed %v, wants a file %v", i, h.a.Sealed(), h.a.WantsFile())
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

// TestKilledWhileACopyMoves: the daemon is killed before, while and after the working copy moves into a file. The next one has all bytes, and the holder no file that nothing names.
func TestKilledWhileACopyMoves(t *testing.T) {
	const size = 3 * dsm.PageSize
	for step := range 3 {
		m, err := hold.Create()
		if err != nil {
			t.Fatal(err)
		}
		h := &heldProgram{t: t, m: m, shelf: hold.NewShelf(), size: size}
		s := h.keep()
		h.a, h.c = beginHeld(t, s, size)
		copy(h.a.Working(1), fill(7))
		copy(h.a.working.page(2), fill(8))
		file, err := s.NewFile(5)
		h.must(err)
		place := h.a.kept.record.Working.Load()
		if step > 0 {
			h.must(h.a.TakeFile(file))
		}
		if step == 1 { // the bytes are in the file, and the record does not say so yet
			h.a.kept.record.Working.Store(place)
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
		if a.Working(1)[9] != 7 {
			t.Errorf("step %d: the page has %d", step, a.Working(1)[9])
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

// killedAt does what a daemon does, which is killed at a call of step, after kill others; if there are fewer it is not.
func killedAt(kill int, do func(step func())) {
	killed := errors.New("killed")
	defer func() {
		if r := recover(); r != nil && r != error(killed) {
			panic(r)
		}
	}()
	do(func() {
		if kill == 0 {
			panic(killed)
		}
		kill--
	})
}

// TestKilledDuringASharedMerge: the daemon is killed at any point of a merge into memory to which a program stores meanwhile, and after. What came in is there, what the program has stored stays, also where it
// puts back what was there before; and nothing else counts as a store.
func TestKilledDuringASharedMerge(t *testing.T) {
	const p = 1
	k := mustKernel(t, dsm.MergeLast, dsm.DTypeAuto, 0)
	for kill := range 12 {
		for _, again := range []bool{false, true} { // the next daemon is killed, too
			h := newHeldProgram(t, 3*dsm.PageSize)
			program := h.mem[p*dsm.PageSize:][:dsm.PageSize]
			mine, coming, after := fill(2), fill(2), fill(2)
			for i := range dsm.PageSize / 2 {
				mine[i] = 3 // a publish that is under way
				h.a.Working(p)[i] = 3
			}
			for i := range dsm.PageSize {
				if i%3 == 0 {
					after[i] = 9
				}
				coming[i] = after[i]
				if i < dsm.PageSize/2 {
					coming[i] = 3
				}
			}
			program[9], program[4000] = 77, 78
			part := h.a.KeepSent(0, 41, dsm.Range(p, p+1), dsm.PageSet{}, nil, []byte("part"))
			s := h.a.KeepSent(0, 42, dsm.Range(p, p+1), dsm.Range(p, p+1), nil, []byte("body"))
			killedAt(kill, func(step func()) {
				step()
				h.a.BeginMerge(p, true, []SentOf{s.Of(p), part.Of(p)})
				step()
				note := h.a.noteShared(p, []SentOf{{s, true, false}, {part, false, false}}, mine, coming, after)
				step()
				half := append(append([]byte(nil), coming[:2992]...), mine[2992:]...)
				k.MergeNoted(note, p, mine, h.a.Working(p), half)
				step()
				program[2058] = 79 // an element that is merged already
				program[12] = 80
				program[2061] = mine[2061] // likewise, with what was there before
				program[3003] = 81
				k.MergeRest(note, p, mine, h.a.Working(p), coming)
				step()
				copy(h.a.OwnBase(p)[:100], after)
				step()
				h.a.SetBase(p, after)
				step()
				part.Merged(p)
				s.Without(p)
				step()
				h.a.frames.untag(h.a.note[0])
				h.a.frames.untag(h.a.note[1])
				step()
				h.a.EndMerge()
				step()
			})
			began := kill >= 2 // all that the next daemon needs is noted
			h.next()
			if again {
				h.next()
			}
			program[4090] = 82
			want := append([]byte(nil), mine...)
			base := fill(2)
			if began {
				want, base = append([]byte(nil), coming...), after
			}
			want[9], want[4000], want[4090] = 77, 78, 82
			if kill >= 4 {
				want[2058], want[12], want[2061], want[3003] = 79, 80, mine[2061], 81
			}
			if string(program) != string(want) || string(h.a.Base(p)) != string(base) {
				t.Errorf("killed at %d: %s, %s", kill, differ(program, want), differ(h.a.Base(p), base))
			}
			in := dsm.Range(p, p+1)
			wants := in
			if began {
				wants = dsm.PageSet{}
			}
			if len(h.sent) != 2 || h.sent[0].Pages() != wants || h.sent[1].Pages() != in || h.sent[1].Besides() != wants {
				t.Errorf("killed at %d: of what was sent there is %v", kill, h.sent)
			}
			if h.a.frames.used > 3 {
				t.Errorf("killed at %d: %d frames are in use", kill, h.a.frames.used)
			}
		}
	}
}

// TestKilledInAReplaceThatIsShared: the same where what a page is merged from is its base.
func TestKilledInAReplaceThatIsShared(t *testing.T) {
	const p = 1
	for _, rule := range []dsm.MergeRule{dsm.MergeLast, dsm.MergeSum} {
		k := mustKernel(t, rule, dsm.DTypeI64, 0)
		for kill := range 9 {
			h := newHeldProgram(t, 3*dsm.PageSize)
			h.k = k
			program := h.mem[p*dsm.PageSize:][:dsm.PageSize]
			set := func(i int, n uint64) { binary.LittleEndian.PutUint64(program[8*i:], n) }
			coming := fill(2)
			for i := 8; i < dsm.PageSize; i += 16 {
				coming[i]++
			}
			set(9, 77)
			set(400, 78)
			s := h.a.KeepSent(0, 42, dsm.Range(p, p+1), dsm.PageSet{}, nil, []byte("body"))
			killedAt(kill, func(step func()) {
				step()
				note := h.a.noteIncoming(p, coming, []SentOf{{Sent: s}})
				step()
				half := append(append([]byte(nil), coming[:2992]...), fill(2)[2992:]...)
				k.MergeNoted(note, p, h.a.OwnBase(p), h.a.Working(p), half)
				step()
				set(21, 79) // an element that is merged already
				set(22, binary.LittleEndian.Uint64(fill(2)))
				step()
				k.MergeRest(note, p, h.a.OwnBase(p), h.a.Working(p), coming)
				step()
				h.a.frames.tag(h.a.note[7], frameIncomingMerged, p, 0)
				copy(h.a.OwnBase(p)[:100], coming)
				step()
				h.a.SetBase(p, coming)
				s.Merged(p)
				step()
				h.a.EndMerge()
				step()
			})
			h.next()
			h.next()
			want, base, lacks := fill(2), fill(2), true
			if kill > 0 {
				copy(want, coming)
				base, lacks = coming, false
			}
			put := func(i int, n uint64) { binary.LittleEndian.PutUint64(want[8*i:], n) }
			put(9, 77)
			if rule == dsm.MergeSum && kill > 0 {
				put(9, 78)
			}
			put(400, 78)
			if kill > 2 {
				put(21, 79)
				put(22, binary.LittleEndian.Uint64(fill(2)))
			}
			if string(program) != string(want) || string(h.a.Base(p)) != string(base) {
				t.Errorf("%v, killed at %d: %s; the base: %s", rule, kill, differ(program, want), differ(h.a.Base(p), base))
			}
			if len(h.sent) != 1 || h.sent[0].Of(p).Lacks != lacks {
				t.Errorf("%v, killed at %d: of what was sent there is %v", rule, kill, h.sent[0].Pages())
			}
			if h.a.frames.used > 1 {
				t.Errorf("%v, killed at %d: %d frames are in use", rule, kill, h.a.frames.used)
			}
		}
	}
}

// differ says where two pages differ.
func differ(got, want []byte) string {
	for i := range want {
		if got[i] != want[i] {
			return fmt.Sprintf("byte %d is %d, want %d", i, got[i], want[i])
		}
	}
	return "same"
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
	for range 20 {
		m, err := hold.Create()
		if err != nil {
			t.Fatal(err)
		}
		h := &heldProgram{t: t, m: m, shelf: hold.NewShelf(), size: moveAhead + 40*dsm.PageSize}
		s := h.keep()
		h.a, h.c = beginHeld(t, s, h.size)
		want := make([]byte, 2*h.size)
		store := func() {
			p := dsm.PageIndex(rng.IntN(int(wholePages(h.size) / dsm.PageSize)))
			if p > 20 && rng.IntN(2) == 0 {
				p = p % 20
			}
			n := copy(h.a.Working(p)[:h.c.within(p)], fill(byte(1+rng.IntN(250))))
			copy(want[int64(p)*dsm.PageSize:], h.a.Working(p)[:n])
		}
		for range 600 {
			store()
		}
		file, err := s.NewFile(5)
		h.must(err)
		other, err := s.NewFile(5)
		h.must(err)
		for more := true; more; {
			var another bool
			more, another, err = h.a.MoveAhead(file, 50)
			h.must(err)
			if another {
				t.Fatal("it is being moved by somebody else")
			}
			if _, another, err := h.a.MoveAhead(other, 50); err != nil || another != h.a.Moves() {
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
				clear(h.a.Working(p))
				clear(want[int64(p)*dsm.PageSize:][:dsm.PageSize])
				h.must(h.a.FreeZeroed(0, dsm.Range(int(p), int(p)+1)))
			}
		}
		use := file
		if rng.IntN(4) == 0 {
			use = other
		}
		h.must(h.a.TakeFile(use))
		h.a.StayPut(file)
		h.must(file.Close())
		h.must(other.Close())
		f, err := h.a.OpenWorking(false)
		h.must(err)
		got := make([]byte, h.size)
		if _, err := f.ReadAt(got, 0); err != nil || string(got) != string(want[:h.size]) {
			t.Fatalf("the file does not have what the copy had (%v)", err)
		}
		h.must(f.Close())
		if h.files() != 1 || h.a.Moves() {
			t.Errorf("the holder has %d files, and it moves: %v", h.files(), h.a.Moves())
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
				file, err := s.NewFile(5)
				must(err)
				must(a.TakeFile(file))
				f, err := a.OpenWorking(true)
				must(err)
				must(f.Close())
			} else {
				file, err := s.NewFile(5)
				must(err)
				_, _, err = a.MoveAhead(file, 1)
				must(err)
				defer func() { must(file.Close()) }()
			}
			if _, err := a.OpenBase(); err == nil {
				t.Error("a program has a base that outlives the daemon")
			}
			a.EndsWithDaemon()
			if a.Outlives() || a.WantsFile() {
				t.Errorf("outlives %v, wants a file %v", a.Outlives(), a.WantsFile())
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
