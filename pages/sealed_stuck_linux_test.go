package pages

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/uffd"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

// stuckPage is a page of memory that the kernel waits for, until let.
type stuckPage struct {
	t   *testing.T
	fd  uintptr
	mem unsafe.Pointer
}

func newStuckPage(t *testing.T) *stuckPage {
	t.Helper()
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	if errno != 0 {
		t.Skipf("userfaultfd for faults of the kernel: %v", errno)
	}
	mem, err := unix.MmapPtr(-1, 0, nil, dsm.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	h := &stuckPage{t, fd, mem}
	t.Cleanup(func() {
		if err := errors.Join(unix.Close(int(fd)), unix.MunmapPtr(mem, dsm.PageSize)); err != nil {
			t.Error(err)
		}
	})
	h.ioctl(0xc018aa3f, unsafe.Pointer(&[3]uint64{0xaa}))                                                // UFFDIO_API
	h.ioctl(0xc020aa00, unsafe.Pointer(&[4]uint64{uint64(uintptr(mem)), dsm.PageSize, 1 /* MISSING */})) // UFFDIO_REGISTER
	return h
}

func (h *stuckPage) ioctl(request uintptr, arg unsafe.Pointer) {
	h.t.Helper()
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, h.fd, request, uintptr(arg)); errno != 0 {
		h.t.Fatalf("ioctl %#x: %v", request, errno)
	}
}

// awaited returns when somebody waits for the page.
func (h *stuckPage) awaited() {
	h.t.Helper()
	if n, err := unix.Read(int(h.fd), make([]byte, 32)); n != 32 || err != nil { // a struct uffd_msg
		h.t.Fatalf("%d bytes: %v", n, err)
	}
}

// let makes the page there, all zero.
func (h *stuckPage) let() {
	h.t.Helper()
	h.ioctl(0xc020aa04, unsafe.Pointer(&[4]uint64{uint64(uintptr(h.mem)), dsm.PageSize})) // UFFDIO_ZEROPAGE
}

// TestDropPastOfABusyFile: a program is in write(2) to its memfd, with bytes that are not there yet, perhaps because this process is to bring them. Who frees what
// is past the end waits for it; nobody who asks for that does.
func TestDropPastOfABusyFile(t *testing.T) {
	a := newTestArea(t, 3*dsm.PageSize)
	f, err := a.OpenWorking(true)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("past"), 7*dsm.PageSize); err != nil {
		t.Fatal(err)
	}
	h := newStuckPage(t)
	wrote := make(chan error, 1)
	go func() {
		_, err := unix.Pwrite(int(f.Fd()), unsafe.Slice((*byte)(h.mem), dsm.PageSize), 0)
		wrote <- os.NewSyscallError("pwrite", err)
	}()
	h.awaited()
	dropped := make(chan error, 1)
	drop := a.DropPast()
	go func() { dropped <- drop(FreePast) }()
	if a.DropPast() != nil {
		t.Error("two wait for the program")
	}
	a.Working(2)[0] = 7
	h.let()
	if err := errors.Join(<-wrote, <-dropped, a.Resize(8*dsm.PageSize)); err != nil {
		t.Fatal(err)
	}
	if a.Working(2)[0] != 7 || a.Working(7)[0] != 0 {
		t.Errorf("page 2 begins with %d, page 7 with %d", a.Working(2)[0], a.Working(7)[0])
	}
	if a.DropPast() != nil {
		t.Error("there is something past the end")
	}
	if _, err := f.WriteAt([]byte("past"), 9*dsm.PageSize); err != nil {
		t.Fatal(err)
	}
	if drop := a.DropPast(); drop == nil {
		t.Error("nothing is freed any more")
	} else if err := drop(FreePast); err != nil {
		t.Error(err)
	}
}

// TestSizeOfABusyFile: a program is in write(2) to its memfd, for as long as it likes. Nothing that is done to the area waits for that; only where memory is being
// freed it cannot grow.
func TestSizeOfABusyFile(t *testing.T) {
	const size, small = 9*dsm.PageSize + 100, 2*dsm.PageSize + 10
	eachMemory(t, size, func(t *testing.T, m programsMemory) {
		f, resize, bytesOf := m.f, m.resize, m.bytesOf
		for _, p := range []int64{1, 5, 6, 9} {
			if _, err := f.WriteAt(pagetest.PageOf(9), p*dsm.PageSize); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := uffd.CountPages(bytesOf.fd, 0, dsm.PageSize); uffd.CannotCount(err) {
			t.Skip("a kernel before 6.5: ", err)
		}
		h := newStuckPage(t)
		wrote := make(chan error, 1)
		go func() {
			_, err := unix.Pwrite(int(f.Fd()), unsafe.Slice((*byte)(h.mem), dsm.PageSize), dsm.PageSize)
			wrote <- os.NewSyscallError("pwrite", err)
		}()
		h.awaited()
		dropped := make(chan error, 1)
		done := make(chan struct{})
		go func() {
			defer close(done)
			var runs []int64
			err := errors.Join(
				bytesOf.data(0, size, func(off, n int64) { runs = append(runs, off/dsm.PageSize, n) }),
				resize(12*dsm.PageSize), resize(small))
			if err != nil || !slices.Equal(runs, []int64{1, dsm.PageSize, 5, 2 * dsm.PageSize, 9, 100}) {
				t.Errorf("%v, data %d", err, runs)
			}
			if !bytesOf.takes(1) || bytesOf.takes(2) {
				t.Error("other pages are there")
			}
			b := make([]byte, size)
			want := append(make([]byte, dsm.PageSize), pagetest.PageOf(9)...)
			if _, err := f.ReadAt(b, 0); err != nil || !bytes.Equal(b, append(want, make([]byte, size-len(want))...)) {
				t.Errorf("what is past the end does not read zero (%v)", err)
			}
			drop := bytesOf.droppingPast()
			go func() { dropped <- drop(FreePast) }()
			if err := errors.Join(resize(small-1), resize(small)); err != nil {
				t.Error(err)
			}
			if err := errors.Join(resize(dsm.PageSize), resize(small)); m.kind != "demand" && err != nil {
				t.Error(err)
			}
			if err := resize(size); !errs.Is(err, errs.Busy) {
				t.Errorf("it grows to where memory is being freed (%v)", err)
			}
		}()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Error("the area waits for the program")
		}
		h.let()
		<-done
		if err := errors.Join(<-wrote, <-dropped, dropPast(bytesOf), resize(size)); err != nil {
			t.Error(err)
		}
	})
}

// TestDropPastOfAnotherFile: what frees memory past the end of the working copy that an area had before is no concern of the one that it has now.
func TestDropPastOfAnotherFile(t *testing.T) {
	a := newTestArea(t, 3*dsm.PageSize)
	open := func() {
		f, err := a.OpenWorking(true)
		if err == nil {
			_, err = f.WriteAt([]byte("past"), 9*dsm.PageSize)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
	}
	open()
	before := a.DropPast() // it waits for a program
	if err := errors.Join(a.EndReplica(), a.BeginReplica()); err != nil {
		t.Fatal(err)
	}
	open()
	resized := make(chan error, 1)
	go func() { resized <- a.Resize(2 * dsm.PageSize) }()
	select {
	case err := <-resized:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Error("a change of the size waits for it")
	}
	if err := before(FreePast); err != nil {
		t.Error(err)
	}
}
