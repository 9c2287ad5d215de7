package harvest

import (
	"errors"
	"log/slog"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/errs"
)

const freerChild = "DSMFS_TEST_FREER_CHILD"

// TestFreer: one child after the other frees what is past an offset, and it ends with the Freer. That another process is left behind is in
// TestUnmountWhileAProgramIsStuckInAWrite of integration.
func TestFreer(t *testing.T) {
	if os.Getenv(freerChild) != "" {
		if err := Main(os.Stdin, os.Stdout); err != nil {
			t.Error(err)
		}
		return
	}
	t.Setenv(freerChild, "1")
	f := NewFreer([]string{"/proc/self/exe", "-test.run=^TestFreer$"}, slog.New(slog.DiscardHandler))
	fd, err := unix.MemfdCreate("t", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	b := make([]byte, 4*4096)
	for _, from := range []int64{3 * 4096, 4096} {
		_, err := unix.Pwrite(fd, b, 0)
		if err := errors.Join(err, f.Free(fd, from, Mark{})); err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || st.Blocks*512 != from || st.Size != int64(len(b)) {
			t.Errorf("%d bytes of memory, length %d (%v), want %d", st.Blocks*512, st.Size, err, from)
		}
	}
	marks, err := unix.MemfdCreate("m", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(marks)
	own := unix.Flock_t{Type: unix.F_WRLCK, Start: 7, Len: 1}
	if err := unix.FcntlFlock(uintptr(marks), unix.F_OFD_SETLK, &own); err != nil {
		t.Fatal(err)
	}
	if err := f.Free(fd, 0, Mark{FD: marks, At: 7}); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("the byte is locked by another: %v", err)
	}
	if err := f.Free(fd, 0, Mark{FD: marks, At: 8}); err != nil {
		t.Error(err)
	}
	other := unix.Flock_t{Type: unix.F_WRLCK, Start: 8}
	if err := unix.FcntlFlock(uintptr(marks), unix.F_OFD_GETLK, &other); err != nil || other.Type != unix.F_UNLCK {
		t.Errorf("when it is done: %+v, %v", other, err)
	}
	if err := f.Free(-1, 0, Mark{}); !errors.Is(err, unix.ENOENT) {
		t.Errorf("a descriptor that is not there: %v", err)
	}
	if k := len(f.mu.idle); k != 1 || f.mu.running != 1 {
		t.Fatalf("%d of %d children do nothing", k, f.mu.running)
	}
	c := f.mu.idle[0]
	f.Stop()
	<-c.exited
	if err := f.Free(fd, 0, Mark{}); !errs.Is(err, errs.Closed) {
		t.Errorf("after Stop: %v", err)
	}
}
