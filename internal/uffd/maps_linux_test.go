package uffd

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMaps: a mapping to read counts as one, not as one that is stored to.
func TestMaps(t *testing.T) {
	fd, err := unix.MemfdCreate("maps", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	size := 2 * os.Getpagesize()
	var st unix.Stat_t
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	is := func(what string, maps, stores bool) {
		t.Helper()
		m, err := Maps(os.Getpid(), st.Dev, st.Ino)
		s, failed := MapsElsewhere(os.Getpid(), st.Dev, st.Ino, nil)
		if err != nil || failed != nil || m != maps || s != stores {
			t.Errorf("%s: it has it mapped: %v (%v), to store: %v (%v)", what, m, err, s, failed)
		}
	}
	is("before", false, false)
	for _, c := range []struct {
		what        string
		prot, flags int
		stores      bool
	}{
		{"shared, to read", unix.PROT_READ, unix.MAP_SHARED, false},
		{"private", unix.PROT_READ | unix.PROT_WRITE, unix.MAP_PRIVATE, false},
		{"shared, to store", unix.PROT_READ | unix.PROT_WRITE, unix.MAP_SHARED, true},
	} {
		m, err := unix.Mmap(fd, 0, size, c.prot, c.flags)
		if err != nil {
			t.Fatal(err)
		}
		is(c.what, true, c.stores)
		if err := unix.Munmap(m); err != nil {
			t.Fatal(err)
		}
	}
	is("afterwards", false, false)
}
