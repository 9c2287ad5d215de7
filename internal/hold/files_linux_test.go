package hold

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// memfd returns a file with a number in it.
func memfd(t *testing.T, number byte) int {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err == nil {
		_, err = unix.Pwrite(fd, []byte{number}, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// daemonOf returns the table as a daemon has it. gone says that the daemon has ended, and waits until the holder knows.
func daemonOf(t *testing.T, s *Shelf) (f *Files, gone func()) {
	t.Helper()
	holder, daemon, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	if f, err = NewFiles(daemon); err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		s.Serve(holder)
	}()
	return f, func() {
		_ = unix.Close(daemon)
		<-served
		_ = unix.Close(holder)
	}
}

// TestFilesOutliveTheDaemon: the next daemon gets what the one before has put, and drops what nothing names.
func TestFilesOutliveTheDaemon(t *testing.T) {
	s := NewShelf()
	f, gone := daemonOf(t, s)
	var numbers []uint64
	for i := range byte(3) {
		n, err := f.Put(memfd(t, i))
		if err != nil {
			t.Fatal(err)
		}
		numbers = append(numbers, n)
	}
	if err := f.Drop(numbers[0]); err != nil {
		t.Fatal(err)
	}
	gone()
	f, gone = daemonOf(t, s)
	defer gone()
	var all []uint64
	for n, err := f.After(0); n != 0 || err != nil; n, err = f.After(n) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, n)
	}
	if len(all) != 2 || all[0] != numbers[1] || all[1] != numbers[2] {
		t.Fatalf("there are %v of %v", all, numbers)
	}
	fd, err := f.Get(numbers[2])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	var b [1]byte
	if _, err := unix.Pread(fd, b[:], 0); err != nil || b[0] != 2 {
		t.Errorf("the third has %d, %v", b[0], err)
	}
	if _, err := f.Get(numbers[0]); !errors.Is(err, unix.ENOENT) {
		t.Errorf("what was dropped: %v", err)
	}
	if n, err := f.Put(fd); err != nil || n <= numbers[2] {
		t.Errorf("a number is used again: %d, %v", n, err)
	}
}

// TestShelfTakesAnything: garbage does not end the holder's table, nor take descriptors from it.
func TestShelfTakesAnything(t *testing.T) {
	s := NewShelf()
	holder, daemon, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	f, err := NewFiles(daemon)
	if err != nil {
		t.Fatal(err)
	}
	go s.Serve(holder)
	many := make([]int, 20)
	for i := range many {
		many[i] = memfd(t, 0)
	}
	for _, m := range []struct {
		text   []byte
		rights []byte
	}{{[]byte("x"), nil}, {make([]byte, 100), unix.UnixRights(many...)}, {make([]byte, fileMessage), unix.UnixRights(many[:2]...)}, {make([]byte, fileMessage), nil}} {
		if err := unix.Sendmsg(daemon, m.text, m.rights, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	n, err := f.Put(many[0])
	if err != nil {
		t.Fatal(err)
	}
	if next, err := f.After(0); err != nil || next != n {
		t.Errorf("there is %d, %v; want %d", next, err, n)
	}
	if next, err := f.After(n); err != nil || next != 0 {
		t.Errorf("there is also %d, %v", next, err)
	}
}
