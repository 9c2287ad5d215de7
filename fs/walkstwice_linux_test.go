package fs

import (
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestWalksTwice looks at threads that wait in a call.
func TestWalksTwice(t *testing.T) {
	b := newBridge(Config{FaultTimeout: time.Minute})
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	thread := make(chan int)
	opened := make(chan int)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		thread <- unix.Gettid()
		fd, err := unix.Open(fifo, unix.O_RDONLY, 0) // waits for a writer
		if err != nil {
			t.Error(err)
		}
		opened <- fd
	}()
	r := b.begin(nil, headerOf(uint32(<-thread)))
	defer r.end()
	eventually(t, "a thread that waits for an open looks up a path", func() bool { return walksTwice(r) })
	w, err := unix.Open(fifo, unix.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fd := <-opened

	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		thread <- unix.Gettid()
		n, err := unix.Read(fd, make([]byte, 1)) // waits for the end of the file
		if n != 0 || err != nil {
			t.Errorf("read %d: %v", n, err)
		}
		opened <- fd
	}()
	r = b.begin(nil, headerOf(uint32(<-thread)))
	defer r.end()
	for range 10 {
		if walksTwice(r) {
			t.Error("a read looks up a path")
		}
	}
	if err := unix.Close(w); err != nil {
		t.Error(err)
	}
	if err := unix.Close(<-opened); err != nil {
		t.Error(err)
	}
	if gone := b.begin(nil, headerOf(1<<30)); walksTwice(gone) {
		t.Error("a thread that is not there is in a call")
	}
}
