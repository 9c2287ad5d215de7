package pages

import (
	"bytes"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestRestore: a program cuts the working copy, in the middle of a page or at its start; what was published is there again, of
// pages that are here.
func TestRestore(t *testing.T) {
	const pages, gone = 5, 3
	for _, end := range []int64{0, dsm.PageSize, 2*dsm.PageSize + 10} {
		a := newTestArea(t, pages*dsm.PageSize-100)
		opened(t, a)
		here := func(p dsm.PageIndex) bool { return p != gone }
		want := bytes.Repeat([]byte("published"), pages*dsm.PageSize)[:a.Size()]
		copy(a.working.mem[:a.Size()], want)
		copy(a.base.pages(0, pages)[:a.Size()], want)
		clear(want[gone*dsm.PageSize : (gone+1)*dsm.PageSize])
		if cut, err := a.Restore(here); cut || err != nil {
			t.Fatalf("uncut memory is restored: %v, %v", cut, err)
		}
		f, err := a.OpenWorking(true)
		if err != nil {
			t.Fatal(err)
		}
		a.working.mem[0] = 'P' // stored, and only kept if it is not cut off
		if end > 0 {
			want[0] = 'P'
		}
		if err := f.Truncate(end); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_GROW); !errors.Is(err, unix.EPERM) {
			t.Errorf("a seal is added: %v", err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if cut, err := a.Restore(here); !cut || err != nil {
			t.Fatalf("cut to %d: %v, %v", end, cut, err)
		}
		got := make([]byte, a.Size())
		if n := a.ReadWorking(got, 0); int64(n) != a.Size() || !bytes.Equal(got, want) {
			t.Errorf("cut to %d: other bytes are there", end)
		}
		if n, err := a.Extended(); n != a.Size() || err != nil {
			t.Errorf("cut to %d: the file ends at %d, the area at %d (%v)", end, n, a.Size(), err)
		}
	}
}
