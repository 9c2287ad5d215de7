package fs

import (
	"context"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// overtaken is a catalog in which another node is faster than a removal of this one.
type overtaken struct {
	*fakeNames
	mu     sync.Mutex
	before []func() // one is called before each removal
}

func (n *overtaken) overtake() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.before) > 0 {
		n.before[0]()
		n.before = n.before[1:]
	}
}

func (n *overtaken) Rmdir(ctx context.Context, dir dsm.Ino, name string, is dsm.Ino) error {
	n.overtake()
	return n.fakeNames.Rmdir(ctx, dir, name, is)
}

func (n *overtaken) Rename(ctx context.Context, dir dsm.Ino, name string, newDir dsm.Ino, newName string, how dsm.RenameHow, over dsm.Ino) error {
	n.overtake()
	return n.fakeNames.Rename(ctx, dir, name, newDir, newName, how, over)
}

// TestRemovedByAnOldName: rmdir(2) and rename(2) tell the kernel that the directory is removed which it had by the name when the call
// began. Another node may have put another one there, or nothing. The one that was moved away stays in use, also by who works in it. If
// that happens once more in the same call, it can be found anew.
func TestRemovedByAnOldName(t *testing.T) {
	rmdir, rename := clientCall{Op: "rmdir", Path: "x"}, clientCall{Op: "rename", Path: "w", To: "x"}
	for _, x := range []struct {
		what  string
		call  clientCall
		moves [][][2]string // of another node, before each try
		seen  bool          // by another program, before the directory is removed
	}{
		{"rmdir", rmdir, [][][2]string{{{"x", "z"}, {"y", "x"}}}, false},
		{"rmdir, and the name was looked up", rmdir, [][][2]string{{{"x", "z"}, {"y", "x"}}}, true},
		{"rmdir, twice", rmdir, [][][2]string{{{"x", "z"}, {"y", "x"}}, {{"x", "v"}, {"u", "x"}}}, false},
		{"rename", rename, [][][2]string{{{"x", "z"}, {"y", "x"}}}, false},
		{"rename, and the name was looked up", rename, [][][2]string{{{"x", "z"}, {"y", "x"}}}, true},
		{"rename, twice", rename, [][][2]string{{{"x", "z"}, {"y", "x"}}, {{"x", "v"}, {"u", "x"}}}, false},
		{"rename over nothing", rename, [][][2]string{{{"x", "z"}}}, false},
	} {
		t.Run(x.what, func(t *testing.T) {
			names := &overtaken{}
			f := mountTest(t, func(c *Config) {
				names.fakeNames = c.Names.(*fakeNames)
				c.Names = names
			})
			c, other, inside := startClient(t), startClient(t), startClient(t)
			for _, dir := range []string{"u", "w", "x", "y"} {
				c.must(clientCall{Op: "mkdir", Path: f.path(dir), Mode: 0o755})
			}
			f.file(c, "x/a", []byte("a"))
			fds := []int{other.open(f.path("x", "a"), os.O_RDONLY), other.open(f.path("y"), os.O_RDONLY|unix.O_DIRECTORY)} // or the kernel may forget the directories
			inside.must(clientCall{Op: "chdir", Path: f.path("x")})
			for _, moves := range x.moves {
				names.before = append(names.before, func() {
					for _, move := range moves {
						if err := names.fakeNames.Rename(t.Context(), dsm.RootIno, move[0], dsm.RootIno, move[1], dsm.RenameReplace, 0); err != nil {
							t.Error(err)
						}
					}
					if x.seen {
						looked := names.count("Lookup")
						other.start(clientCall{Op: "stat", Path: f.path("x")})
						eventually(t, "looked up", func() bool { return names.count("Lookup") > looked })
					}
				})
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
				if len(x.moves) > 1 {
					program.must(clientCall{Op: "mkdir", Path: f.path("v", "b"), Mode: 0o755})
					program.must(clientCall{Op: "rmdir", Path: f.path("v", "b")})
				}
			}
			if got := inside.must(clientCall{Op: "readdir", Path: "."}).Names; !slices.Equal(got, []string{"a"}) {
				t.Errorf("who works in the directory that was moved finds %q, want a", got)
			}
			inside.must(clientCall{Op: "mkdir", Path: "b", Mode: 0o755})
			inside.must(clientCall{Op: "chdir", Path: "/"})
			for _, fd := range fds {
				other.must(clientCall{Op: "close", FD: fd})
			}
		})
	}
}

// TestRemovalIsRefusedOnce: a thread is told ESTALE only if the kernel looks up the path once more then.
func TestRemovalIsRefusedOnce(t *testing.T) {
	for _, once := range []bool{false, true} {
		k := newKernel(t)
		k.once = once
		x := k.mkdir(dsm.RootIno, "x")
		k.mkdir(dsm.RootIno, "y")
		k.lookup(1, rootNode, "x", x)
		k.move(dsm.RootIno, "x", dsm.RootIno, "z")
		k.move(dsm.RootIno, "y", dsm.RootIno, "x")
		rmdir := header(opRmdir, 1, rootNode)
		if !once {
			if st := k.b.Rmdir(nil, &rmdir, "x"); st != fuse.Status(syscall.ESTALE) {
				t.Errorf("first: %v, want ESTALE", st)
			}
		}
		if st := k.b.Rmdir(nil, &rmdir, "x"); !st.Ok() {
			t.Errorf("looked up once: %v: %v", once, st)
		}
		if st := k.b.Rmdir(nil, &rmdir, "x"); st != fuse.ENOENT {
			t.Errorf("once more: %v, want ENOENT", st)
		}
	}
}

// TestVictim: the kernel removes what it has told the thread of last, or anybody if it did not ask for the thread.
func TestVictim(t *testing.T) {
	k := newKernel(t)
	x, y := k.mkdir(dsm.RootIno, "x"), k.mkdir(dsm.RootIno, "y")
	want := func(tid uint32, want dsm.Ino) {
		t.Helper()
		if got := k.b.victim(tid, place{rootNode, "x"}); got != want {
			t.Errorf("thread %d would remove directory %d, want %d", tid, got, want)
		}
	}
	want(1, 0)
	k.lookup(1, rootNode, "x", x)
	want(1, x)
	want(2, x)
	k.move(dsm.RootIno, "x", dsm.RootIno, "z")
	k.move(dsm.RootIno, "y", dsm.RootIno, "x")
	k.lookup(2, rootNode, "x", y)
	want(1, x) // still under its lock
	want(2, y)
	want(3, y)
	k.lookup(1, rootNode, "z", x)
	want(1, y)
	k.move(dsm.RootIno, "x", dsm.RootIno, "v")
	in := header(opLookup, 2, rootNode)
	if st := k.b.Lookup(nil, &in, "x", new(fuse.EntryOut)); st != fuse.ENOENT {
		t.Fatal(st)
	}
	want(2, 0)
	if _, err := k.names.Create(t.Context(), dsm.RootIno, "x", dsm.Inode{Kind: dsm.KindFile, Perm: 0o644}, false); err != nil {
		t.Fatal(err)
	}
	k.lookup(2, rootNode, "x", k.names.inoOf("x"))
	want(2, 0)
}
