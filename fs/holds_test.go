package fs

import (
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestCreateHoldsForTheAttach: a program that makes a file over the attach socket and attaches it costs the
// catalog one change. A file that nobody attaches is given up.
func TestCreateHoldsForTheAttach(t *testing.T) {
	f := mountTest(t)
	b := f.fs.b
	m := attachMount{f.names, b}
	root, err := f.names.Getattr(t.Context(), dsm.RootIno)
	if err != nil {
		t.Fatal(err)
	}
	held := func(ino dsm.Ino) bool {
		f.names.mu.Lock()
		defer f.names.mu.Unlock()
		return f.names.nodes[ino].held
	}
	create := func(name string) dsm.Ino {
		i, err := m.Create(t.Context(), &dsm.Credentials{}, root, name, dsm.Inode{Kind: dsm.KindFile, Perm: 0o600, Size: 4096}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !held(i.Ino) {
			t.Errorf("%s is not held", name)
		}
		return i.Ino
	}
	attached, left := create("attached"), create("left")
	area, err := m.Open(t.Context(), attached, true)
	if err != nil {
		t.Fatal(err)
	}
	if n := f.names.count("Hold"); n != 0 {
		t.Errorf("the attach of a new file held it %d times again", n)
	}
	eventually(t, "what nobody attached is given up", func() bool { return !held(left) })
	if !held(attached) {
		t.Error("what is attached was given up")
	}
	area.Close(true)
	eventually(t, "what was attached is given up", func() bool { return !held(attached) })
}
