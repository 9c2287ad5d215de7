package merge

import (
	"testing"

	"golang.org/x/sys/cpu"

	"github.com/dsmfs/dsmfs/internal/dsm"
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
