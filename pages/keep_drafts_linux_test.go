package pages

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/pages/merge"
)

// heldDraft is a heldProgram of which another program, process 9, has a draft. Page p has p+1 there, too.
type heldDraft struct {
	*heldProgram
	d   *Draft
	own []byte // what that program has mapped
}

func newHeldDraft(t *testing.T, k merge.Kernel, size int64) *heldDraft {
	t.Helper()
	h := &heldDraft{heldProgram: newHeldProgram(t, size)}
	h.k = k
	h.c.SetShared(false) // nobody stores to the working copy
	file, err := h.a.kept.store.NewFile(5, WorkingCopy)
	h.must(err)
	h.d, err = h.a.NewDraft(9, file)
	h.must(err)
	h.must(file.Close())
	h.must(h.d.Fill(h.a, 0, size))
	f, err := h.d.Open(true)
	h.must(err)
	h.own, err = unix.Mmap(int(f.Fd()), 0, int(wholePages(size)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	h.must(err)
	h.must(f.Close())
	return h
}

// next has the daemon be killed, and another one follow.
func (h *heldDraft) next() {
	h.t.Helper()
	left := h.keep().Areas()
	if len(left) != 1 || !left[0].Attached() {
		h.t.Fatalf("left: %+v", left)
	}
	var err error
	h.a, h.sent, err = left[0].TakeBoth(h.k, h.size, h.size)
	h.must(err)
	h.a.WorkingIsNewest()
	drafts := h.a.LeftDrafts()
	if len(drafts) != 1 || drafts[0].Program() != 9 {
		h.t.Fatalf("%d drafts are left", len(drafts))
	}
	h.d = drafts[0]
}

// TestDraftOutlivesTheDaemon: a draft is what it was, and where its program has it mapped. One that is closed is gone, with all that it takes.
func TestDraftOutlivesTheDaemon(t *testing.T) {
	const size = 5*dsm.PageSize + 100
	h := newHeldDraft(t, mustKernel(t, dsm.MergeLast, dsm.DTypeAuto, 0), size)
	for i := range byte(3) {
		h.own[3*dsm.PageSize+7] = 100 + i
		h.next()
		if m := h.d.Memory(3); m[7] != 100+i || m[8] != 4 || h.d.Base(3)[7] != 4 || h.a.Working(3)[7] != 4 {
			t.Errorf("daemon %d: %d in the draft, %d in its base, %d in the working copy", i, m[7:9], h.d.Base(3)[7:9], h.a.Working(3)[7:9])
		}
		h.d.Page(2)[0] = 50 + i
		if h.own[2*dsm.PageSize] != 50+i {
			t.Errorf("daemon %d: the program has other memory", i)
		}
	}
	differs := 0
	copy(h.a.Working(4), fill(44))
	h.d.Differs(h.a, func(p dsm.PageIndex) {
		if differs++; p != 4 {
			t.Errorf("page %d differs", p)
		}
	})
	if differs != 1 {
		t.Errorf("%d pages differ", differs)
	}
	h.size = 2*dsm.PageSize + 3
	h.next() // it was cut while no daemon was there
	if h.own[2*dsm.PageSize] != 52 || h.own[2*dsm.PageSize+3] != 0 || h.own[3*dsm.PageSize+7] != 0 {
		t.Error("what was cut off is there")
	}
	if h.files() != 2 {
		t.Errorf("the holder has %d files", h.files())
	}
	h.must(h.d.Close())
	if h.files() != 1 || len(h.keep().drafts) != 0 {
		t.Errorf("the holder has %d files when the draft is closed, and there are drafts of %d areas", h.files(), len(h.keep().drafts))
	}
}

// TestDraftOfAnAreaThatIsGone: nothing is left of a draft when the area is dropped.
func TestDraftOfAnAreaThatIsGone(t *testing.T) {
	for _, closed := range []bool{false, true} {
		h := newHeldDraft(t, mustKernel(t, dsm.MergeLast, dsm.DTypeAuto, 0), dsm.PageSize)
		if closed {
			h.must(h.a.Close()) // and the daemon is killed before it has closed the draft
		} else {
			h.must(h.keep().Areas()[0].Drop())
		}
		s := h.keep()
		if len(s.Areas()) != 0 || len(s.drafts) != 0 || h.files() != 0 {
			t.Errorf("closed %v: %d areas, drafts of %d, %d files", closed, len(s.Areas()), len(s.drafts), h.files())
		}
	}
}

// TestKilledWhileADraftIsTaken: the daemon is killed at any point while what a program has added goes to the working copy. It is there once, when it is taken again.
func TestKilledWhileADraftIsTaken(t *testing.T) {
	k := mustKernel(t, dsm.MergeSum, dsm.DTypeI64, 0)
	const p = 1
	for kill := range 8 {
		h := newHeldDraft(t, k, 3*dsm.PageSize)
		own := h.own[p*dsm.PageSize:][:dsm.PageSize]
		was := binary.LittleEndian.Uint64(fill(2))
		add := func(i int, n uint64) {
			binary.LittleEndian.PutUint64(own[8*i:], binary.LittleEndian.Uint64(own[8*i:])+n)
		}
		add(0, 5)
		add(300, 6)
		take := func(step func()) {
			var now [dsm.PageSize]byte
			step()
			merge.Snapshot(now[:], h.d.Memory(p))
			base, w := h.d.Base(p), h.a.Working(p)
			h.a.BeginTake(h.d, p)
			step()
			merged := now
			k.Merge(p, base, merged[:], w, nil)
			copy(w[:100], merged[:])
			step()
			copy(w, merged[:])
			step()
			copy(base[:1000], now[:])
			step()
			copy(base, now[:])
			step()
			h.a.EndTake(h.d)
			step()
		}
		killedAt(kill, take)
		h.next()
		h.next() // that one is killed, too
		add(0, 7)
		take(func() {})
		for i, want := range map[int]uint64{0: was + 12, 300: was + 6, 1: was} {
			if got := binary.LittleEndian.Uint64(h.a.Working(p)[8*i:]); got != want {
				t.Errorf("killed at %d: element %d is %d more, want %d", kill, i, got-was, want-was)
			}
		}
		if string(h.d.Base(p)) != string(own) {
			t.Errorf("killed at %d: the base of the draft is not what was taken", kill)
		}
	}
}

// TestKilledWhileADraftIsRefreshed: the daemon is killed while what others have added comes to the memory of a program, which adds meanwhile. Each counts once.
func TestKilledWhileADraftIsRefreshed(t *testing.T) {
	const p = 1
	for _, rule := range []dsm.MergeRule{dsm.MergeSum, dsm.MergeLast} {
		k := mustKernel(t, rule, dsm.DTypeI64, 0)
		for kill := range 120 {
			h := newHeldDraft(t, k, 3*dsm.PageSize)
			inPlace := kill%2 != 0 // what others have done is in the working copy, to which no program stores
			kill := kill / 2
			own := h.own[p*dsm.PageSize:][:dsm.PageSize]
			is := fill(2)
			for i := range 40 { // what others have done
				is[8*(10*i+3)]++
			}
			own[8*13], own[8*5] = 50, 51 // what the program has
			refresh := h.refreshUpTo
			if inPlace {
				copy(h.a.Working(p), is)
				refresh = h.refreshInPlaceUpTo
			}
			if kill > 0 {
				refresh(p, is, 8*(10*(kill-1)+3))
			}
			h.next()
			h.next()
			if kill == 0 && inPlace {
				h.a.Refresh(k, h.d, p, h.a.Working(p))
			} else if kill == 0 {
				h.a.Refresh(k, h.d, p, is)
			}
			want := append([]byte(nil), is...)
			want[8*13], want[8*5] = 50, 51
			if rule == dsm.MergeSum {
				want[8*13] = 51
			}
			if string(own) != string(want) || string(h.d.Base(p)) != string(is) {
				t.Errorf("%v, killed at %d: %s; the base: %s", rule, kill, differ(own, want), differ(h.d.Base(p), is))
			}
		}
	}
}

// refreshUpTo is Refresh by a daemon that is killed when it has come to a byte of the page.
func (h *heldDraft) refreshUpTo(p dsm.PageIndex, is []byte, end int) {
	h.t.Helper()
	a, d := h.a, h.d
	a.takeNote(5)
	note := a.note[2:]
	clear(note[2].mem[:merge.NoteSize])
	copy(note[0].mem, d.Base(p))
	copy(note[1].mem, is)
	for i, kind := range []frameKind{frameDraftMine, frameDraftComing, frameDraftNote} {
		a.frames.tag(note[i], kind, uint64(p), uint64(d.kept.i))
	}
	part, base := append([]byte(nil), is...), append([]byte(nil), d.Base(p)...)
	if end < len(part) {
		copy(part[end:], base[end:])
	} else { // it is in the midst of the base
		copy(d.Base(p)[:2000], is)
	}
	h.k.MergeNoted(note[2].mem, p, base, d.Page(p), part)
}

// refreshInPlaceUpTo is the same where the working copy has what is merged.
func (h *heldDraft) refreshInPlaceUpTo(p dsm.PageIndex, is []byte, end int) {
	h.t.Helper()
	a, d := h.a, h.d
	a.takeNote(5)
	note := a.note[4]
	clear(note.mem[:merge.NoteSize])
	a.frames.tag(note, frameRefreshing, uint64(p), uint64(d.kept.i))
	part, base := append([]byte(nil), is...), d.Base(p)
	if end < len(part) {
		copy(part[end:], base[end:])
	}
	h.k.MergeNoted(note.mem, p, base, d.Page(p), part)
	if end >= len(part) { // it is in the midst of the base
		a.frames.tag(note, frameRefreshed, uint64(p), uint64(d.kept.i))
		copy(base[:2000], is)
	}
}

// TestKilledWhileAWriteGoesToSharedMemory: the daemon is killed at any point while a WRITE of the kernel goes to memory to which a program stores. The WRITE comes again. What it brings is there once, and so is what the
// program has stored since.
func TestKilledWhileAWriteGoesToSharedMemory(t *testing.T) {
	const p = 1
	for _, rule := range []dsm.MergeRule{dsm.MergeSum, dsm.MergeLast} {
		k := mustKernel(t, rule, dsm.DTypeI64, 0)
		for kill := range 10 {
			h := newHeldProgram(t, 3*dsm.PageSize)
			h.k = k
			h.settle()
			page := make([]byte, dsm.PageSize)
			h.c.Read(p*dsm.PageSize, page)
			program := h.mem[p*dsm.PageSize:][:dsm.PageSize]
			was := binary.LittleEndian.Uint64(fill(2))
			set := func(b []byte, i int, n uint64) { binary.LittleEndian.PutUint64(b[8*i:], n) }
			for _, i := range []int{0, 100, 300} { // by a program that has mapped it through the mount
				set(page, i, was+1)
			}
			set(program, 300, was+10)
			killedAt(kill, func(step func()) {
				base := append([]byte(nil), h.c.given[p].mem...)
				step()
				note := h.a.noteStored(p, base, page)
				step()
				next := h.c.nextGiven(p, 0, page)
				step()
				part := append(append([]byte(nil), page[:1000]...), base[1000:]...)
				k.StoreNoted(note, p, base, program, part)
				if rule == dsm.MergeLast {
					set(program, 100, was+20) // newer than what the WRITE has brought
				}
				step()
				k.StoreRest(note, p, base, program, page)
				step()
				h.a.frames.put(h.c.given[p])
				step()
				h.c.given[p] = next
				h.a.frames.tag(next, frameGiven, p, 0)
				step()
				h.a.EndMerge()
				step()
			})
			h.next()
			h.next()
			if _, _, ok := h.c.Wrote(k, p*dsm.PageSize, page, true); !ok {
				t.Fatal("the WRITE is refused")
			}
			want := map[int]uint64{0: was + 1, 100: was + 1, 300: was + 1, 5: was}
			if rule == dsm.MergeSum {
				want[300] = was + 11
			} else if kill >= 3 {
				want[100] = was + 20
			}
			for i, want := range want {
				if got := binary.LittleEndian.Uint64(program[8*i:]); got != want {
					t.Errorf("%v, killed at %d: element %d is %d more, want %d", rule, kill, i, got-was, want-was)
				}
			}
			if g, known := h.c.Believed(p); !known || string(g) != string(page) {
				t.Errorf("%v, killed at %d: it is not known what the page cache has", rule, kill)
			}
			if bad := h.c.Problem(); bad != "" {
				t.Error(bad)
			}
		}
	}
}
