package pages

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

// isSealed fails the test unless a program with the descriptor can make the memory neither shorter nor longer, and not seal it.
func isSealed(t *testing.T, f *os.File, n int64) {
	t.Helper()
	for _, end := range []int64{0, n - 1, n + 8<<20, 2 * dsm.MaxAreaSize} {
		if err := f.Truncate(end); !errors.Is(err, unix.EPERM) {
			t.Errorf("resize to %d: %v, want EPERM", end, err)
		}
	}
	for _, seal := range []int{unix.F_SEAL_GROW, unix.F_SEAL_WRITE, unix.F_SEAL_FUTURE_WRITE, unix.F_SEAL_EXEC} {
		if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seal); !errors.Is(err, unix.EPERM) {
			t.Errorf("seal %#x is added: %v", seal, err)
		}
	}
}

// programsMemory is memory that a program has open for writing.
type programsMemory struct {
	kind    string // working, demand or draft
	a       *Area
	f       *os.File
	resize  func(int64) error
	bytesOf *areaCopy
}

// eachMemory runs a test with each kind of it, of an area of so many bytes.
func eachMemory(t *testing.T, size int64, do func(t *testing.T, m programsMemory)) {
	t.Helper()
	for _, kind := range []string{"working", "demand", "draft"} {
		t.Run(kind, func(t *testing.T) {
			newArea := newTestArea
			if kind == "demand" {
				newArea = newTestDemandArea
			}
			a := newArea(t, size)
			m, open := programsMemory{kind: kind, a: a, resize: a.Resize, bytesOf: a.working}, a.OpenWorking
			if kind == "draft" {
				d, err := a.NewDraft(0, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer d.Close()
				open, m.resize, m.bytesOf = d.Open, d.Resize, d.memory
			}
			if kind == "demand" && a.Attachable() != nil {
				t.Skip(a.Attachable())
			}
			f, err := open(true)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			m.f = f
			do(t, m)
		})
	}
}

// TestSealed: a program that may write the working copy, or has a draft, cannot change its length. It stores past the end, which the daemon does not
// take for a part of the area, and finds zeroes there when the area grows.
func TestSealed(t *testing.T) {
	const before, small, large = 9*dsm.PageSize - 100, 2*dsm.PageSize + 10, 40 * dsm.PageSize
	eachMemory(t, before, func(t *testing.T, m programsMemory) {
		a, f, resize, bytesOf := m.a, m.f, m.resize, m.bytesOf
		isSealed(t, f, before)
		want := bytes.Repeat([]byte("stored"), before)[:before]
		store := func(b []byte, off int64) {
			t.Helper()
			if _, err := f.WriteAt(b, off); err != nil {
				t.Fatal(err)
			}
		}
		look := func(what string, n int64) {
			t.Helper()
			got := make([]byte, n)
			if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, want[:n]) {
				t.Errorf("%s: other bytes are there (%v)", what, err)
			}
		}
		takes := func(what string, pages int64) {
			t.Helper()
			if n, err := bytesOf.resident(); err != nil || n != pages*dsm.PageSize {
				t.Errorf("%s: %d bytes of memory (%v), want %d pages", what, n, err, pages)
			}
		}
		store(want, 0)
		store(pagetest.PageOf(9), 20*dsm.PageSize)
		if n, err := a.Extended(); n != before || err != nil {
			t.Errorf("the area ends at %d (%v) where a program has made the file longer", n, err)
		}
		if err := dropPast(bytesOf); err != nil {
			t.Fatal(err)
		}
		look("stored past the end", before)
		takes("stored past the end", 9)
		if err := resize(small); err != nil {
			t.Fatal(err)
		}
		clear(want[small:])
		look("shrunk by the area", before)
		if err := dropPast(bytesOf); err != nil {
			t.Fatal(err)
		}
		look("freed", before)
		takes("shrunk", 3)
		store(bytes.Repeat([]byte{7}, before-small), small)
		drop := bytesOf.droppingPast()
		if bytesOf.droppingPast() != nil {
			t.Error("it is freed twice at once")
		}
		if err := drop(FreePast); err != nil {
			t.Fatal(err)
		}
		takes("stored past the end, and dropped", 3)
		store(bytes.Repeat([]byte{7}, before-small), small)
		drop = bytesOf.droppingPast()
		for _, size := range []int64{small - 1, small} {
			if err := resize(size); err != nil {
				t.Fatal(err)
			}
		}
		if err := resize(large); !errs.Is(err, errs.Busy) {
			t.Errorf("it grows to where memory is being freed (%v)", err)
		}
		if err := drop(FreePast); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			store(bytes.Repeat([]byte{7}, before-small), small)
			err := resize(large)
			if m.kind != "demand" && err != nil || m.kind == "demand" && !errs.Is(err, errs.Busy) { // a page that is not here has to be a hole
				t.Errorf("it grows to where a program has stored: %v", err)
			}
			if err := errors.Join(dropPast(bytesOf), resize(large)); err != nil {
				t.Fatal(err)
			}
			clear(want[small-1:])
			want = append(want, make([]byte, large-len(want))...)
			look("grown again", large)
			if err := errors.Join(resize(small), dropPast(bytesOf)); err != nil {
				t.Fatal(err)
			}
			takes("shrunk again", 3)
		}
		if err := errors.Join(resize(0), dropPast(bytesOf)); err != nil {
			t.Fatal(err)
		}
		takes("empty", 0)
	})
}

// TestUnshare: memory that programs have had, and have not any more, is a file again that ends where the area does.
func TestUnshare(t *testing.T) {
	for _, size := range []int64{100, smallCopy + 10, 2 << 20} {
		a := newTestArea(t, size)
		f, err := a.OpenWorking(true)
		if err != nil {
			t.Fatal(err)
		}
		isSealed(t, f, size)
		last := dsm.PageIndex((size - 1) / dsm.PageSize)
		a.Working(last)[0] = 5
		if _, err := f.WriteAt([]byte("past"), size); err != nil {
			t.Fatal(err)
		}
		if err := a.Unshare(); err != nil || a.Sealed() {
			t.Fatalf("sealed %v, %v", a.Sealed(), err)
		}
		if _, err := f.WriteAt(pagetest.PageOf(9), 0); err != nil {
			t.Fatal(err)
		}
		g, err := a.OpenWorking(false)
		if err != nil {
			t.Fatal(err)
		}
		if st, err := g.Stat(); err != nil || st.Size() != size {
			t.Errorf("the file has %d bytes (%v), want %d", st.Size(), err, size)
		}
		if n, err := a.working.resident(); err != nil || n != dsm.PageSize {
			t.Errorf("%d bytes of memory (%v)", n, err)
		}
		if b := a.Working(last); b[0] != 5 || size > dsm.PageSize && a.Working(0)[0] != 0 {
			t.Error("other bytes are there")
		}
		a.working.fileWrite(a.working.fd, []byte{9}, size+200, size+200) // as a program that has the direct file does, which is then that long
		if end, err := a.Extended(); err != nil || end != size+201 {
			t.Errorf("the file ends at %d (%v), want %d", end, err, size+201)
		}
		if err := a.Resize(size + 201); err != nil {
			t.Fatal(err)
		}
		between := make([]byte, 200)
		if a.ReadWorking(between, size); !bytes.Equal(between, make([]byte, 200)) {
			t.Error("what a program had stored past the end is in the area that is longer")
		}
		for _, f := range []*os.File{f, g} {
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
