package merge

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/cpu"
	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

// TestSwapUnchanged: it takes notes of what it does, and leaves what programs have stored to.
func TestSwapUnchanged(t *testing.T) {
	if !cpu.X86.HasCX16 {
		t.Skip("this machine has no instruction for two words")
	}
	base, memory, other := make([]uint64, 512), words(make([]byte, dsm.PageSize)), make([]uint64, 512) // a page is aligned
	for i := range base {
		base[i], memory[i], other[i] = uint64(i), uint64(i), uint64(i+1000)
	}
	other[6], other[7] = base[6], base[7]
	memory[21] = 5
	note := uint64(0)
	at := swapUnchanged(memory, base, other, 2, &note)
	if at != 20 || note != 2*20 {
		t.Fatalf("it stops at %d, and notes %d", at, note)
	}
	for i, w := range memory {
		want := uint64(i)
		switch {
		case i == 21:
			want = 5
		case i >= 2 && i < 20 && i != 6 && i != 7:
			want += 1000
		}
		if w != want {
			t.Errorf("word %d is %d, want %d", i, w, want)
		}
	}
	if at = swapUnchanged(memory[:511], base, other, 22, &note); at != 510 || note != 2*510 {
		t.Errorf("it stops at %d, and notes %d", at, note)
	}
}

// TestKilledInASwap: the process ends at the very swap of a pair. The note says which.
func TestKilledInASwap(t *testing.T) {
	if !cpu.X86.HasCX16 {
		t.Skip("this machine has no instruction for two words")
	}
	mem, err := unix.Mmap(-1, 0, 2*dsm.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(mem) }()
	k := mustKernel(t, dsm.MergeSum, dsm.DTypeI64, 0)
	base, incoming, note := make([]byte, dsm.PageSize), make([]byte, dsm.PageSize), make([]byte, NoteSize)
	for i := 64; i < 80; i++ {
		binary.LittleEndian.PutUint64(incoming[8*i:], 100)
	}
	page := mem[:dsm.PageSize]
	if err := pagetest.KilledAtStore(page, func() { k.MergeNoted(note, 0, base, page, incoming) }); err != nil {
		t.Fatal(err)
	}
	if got := words(note)[noteUnchanged]; got != 2*64+1 {
		t.Errorf("the note is %d", got)
	}
	k.MergeRest(note, 0, base, page, incoming)
	if string(page) != string(incoming) {
		t.Error("it is not merged")
	}
	if got := words(note)[noteUnchanged]; got != 2*80 {
		t.Errorf("in the end the note is %d", got)
	}
}
