package pages

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// A program that was given a descriptor to read with cannot open the memory for
// writing by /proc/self/fd: only the daemon's user can.
func TestMemoryIsPrivate(t *testing.T) {
	a := newTestArea(t, 3*dsm.PageSize)
	f, err := a.OpenWorking(false)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	if st.Mode&0o777 != 0o600 {
		t.Errorf("the memory has mode %o, want 600", st.Mode&0o777)
	}
	if _, err := unix.Mmap(int(f.Fd()), 0, dsm.PageSize, unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		t.Error("a descriptor to read with can be mapped for writing")
	}
}

func TestDataRanges(t *testing.T) {
	all := []dsm.PageIndex{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	for _, c := range []struct {
		name   string
		pages  []dsm.PageIndex // that were stored to, of ten
		off, n int64           // in pages
		want   []int64         // where, how many, where ...
	}{
		{"holes", []dsm.PageIndex{1, 2, 7}, 1, 8, []int64{1, 2, 7, 1}},
		{"no hole", all, 2, 3, []int64{2, 3}},
		{"no hole, past the end", all, 8, 5, []int64{8, 2}},
		{"no hole, at the end", all, 10, 2, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newTestArea(t, 10*dsm.PageSize)
			for _, p := range c.pages {
				a.Working(p)[5] = 1
			}
			var got []int64
			if err := a.DataRanges(c.off*dsm.PageSize, c.n*dsm.PageSize, func(off, n int64) {
				got = append(got, off/dsm.PageSize, n/dsm.PageSize)
			}); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("data at pages, lengths %v, want %v", got, c.want)
			}
		})
	}
}

// TestDataRangesExtended: memory past the end, where a program has written, says nothing of the holes before it.
func TestDataRangesExtended(t *testing.T) {
	a := newTestArea(t, 4*dsm.PageSize)
	f, err := a.OpenWorking(true)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(make([]byte, 4*dsm.PageSize), 4*dsm.PageSize); err != nil {
		t.Fatal(err)
	}
	if err := a.DataRanges(0, 4*dsm.PageSize, func(off, n int64) { t.Errorf("[%d,%d) is a hole", off, off+n) }); err != nil {
		t.Fatal(err)
	}
}
