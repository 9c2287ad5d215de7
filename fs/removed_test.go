package fs

import (
	"context"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// overtaken is a catalog in which another node is faster than a removal of this one.
type overtaken struct {
	*fakeNames
	mu     sync.Mutex
	before func() // called once, before the next removal
}

func (n *overtaken) overtake() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.before != nil {
		n.before()
		n.before = nil
	}
}

func (n *overtaken) Rmdir(ctx context.Context, dir dsm.Ino, name string) error {
	n.overtake()
	return n.fakeNames.Rmdir(ctx, dir, name)
}

func (n *overtaken) Rename(ctx context.Context, dir dsm.Ino, name string, newDir dsm.Ino, newName string, how dsm.RenameHow) error {
	n.overtake()
	return n.fakeNames.Rename(ctx, dir, name, newDir, newName, how)
}

// TestRemovedByAnOldName: rmdir(2) and rename(2) tell the kernel that the directory is removed which it had by the name when the call
// began. Another node may have put another one there. The one that was moved away stays in use.
func TestRemovedByAnOldName(t *testing.T) {
	for _, x := range []struct {
		what string
		call clientCall
		seen bool // by another program, before the directory is removed
	}{
		{"rmdir", clientCall{Op: "rmdir", Path: "x"}, false},
		{"rmdir, and the name was looked up", clientCall{Op: "rmdir", Path: "x"}, true},
		{"rename", clientCall{Op: "rename", Path: "w", To: "x"}, false},
		{"rename, and the name was looked up", clientCall{Op: "rename", Path: "w", To: "x"}, true},
	} {
		t.Run(x.what, func(t *testing.T) {
			names := &overtaken{}
			f := mountTest(t, func(c *Config) {
				names.fakeNames = c.Names.(*fakeNames)
				c.Names = names
			})
			c, other := startClient(t), startClient(t)
			for _, dir := range []string{"w", "x", "y"} {
				c.must(clientCall{Op: "mkdir", Path: f.path(dir), Mode: 0o755})
			}
			f.file(c, "x/a", []byte("a"))
			fd := other.open(f.path("x", "a"), os.O_RDONLY) // or the kernel may forget the directory
			names.before = func() {
				for _, move := range [][2]string{{"x", "z"}, {"y", "x"}} {
					if err := names.fakeNames.Rename(t.Context(), dsm.RootIno, move[0], dsm.RootIno, move[1], dsm.RenameReplace); err != nil {
						t.Error(err)
					}
				}
				if x.seen {
					looked := names.count("Lookup")
					other.start(clientCall{Op: "stat", Path: f.path("x")})
					eventually(t, "looked up", func() bool { return names.count("Lookup") > looked })
				}
			}
			call := x.call
			call.Path = f.path(call.Path)
			if call.To != "" {
				call.To = f.path(call.To)
			}
			c.must(call)
			if x.seen {
				other.reply()
			}
			for _, program := range []*client{c, other} {
				if got := program.must(clientCall{Op: "readdir", Path: f.path("z")}).Names; !slices.Equal(got, []string{"a"}) {
					t.Errorf("the directory that was moved has %q, want a", got)
				}
				program.must(clientCall{Op: "stat", Path: f.path("z", "a")})
			}
			other.must(clientCall{Op: "close", FD: fd})
		})
	}
}
