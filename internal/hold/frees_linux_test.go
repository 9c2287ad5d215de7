package hold

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFreeing: the mark of a file says from where on it is freed, is not that of other files, and ends with the open file that has the lock.
func TestFreeing(t *testing.T) {
	m, err := Create()
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	const size = 1 << 42
	for _, from := range []int64{0, 5 << freePage, size - 1<<freePage} {
		for _, ino := range []uint64{1, 77, 1<<32 - 2, 1<<40 + 9} {
			fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", m.FD()), unix.O_RDWR|unix.O_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			l := unix.Flock_t{Type: unix.F_WRLCK, Start: FreeMark(ino, from), Len: 1}
			if err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &l); err != nil {
				t.Fatal(err)
			}
			if got, is, err := m.Freeing(ino); got != from || !is || err != nil {
				t.Errorf("%d from %d: %d, %v, %v", ino, from, got, is, err)
			}
			for _, other := range []uint64{ino - 1, ino + 1} {
				if _, is, err := m.Freeing(other); is || err != nil {
					t.Errorf("%d while %d is freed: %v, %v", other, ino, is, err)
				}
			}
			if err := unix.Close(fd); err != nil {
				t.Fatal(err)
			}
			if _, is, err := m.Freeing(ino); is || err != nil {
				t.Errorf("%d when it is over: %v, %v", ino, is, err)
			}
		}
	}
}
