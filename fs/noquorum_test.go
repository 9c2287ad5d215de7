package fs

import (
	"context"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// cutNames is a catalog that is cut off from the others when a channel is closed: first it finds no
// names, and then it does not answer at all, until it is mended.
type cutNames struct {
	*fakeNames
	noLookup, cut, mend chan struct{}
	waiting             atomic.Int32
}

func newCutNames(n *fakeNames) *cutNames {
	return &cutNames{fakeNames: n, noLookup: make(chan struct{}), cut: make(chan struct{}), mend: make(chan struct{})}
}

func (n *cutNames) wait(ctx context.Context, cut <-chan struct{}) error {
	select {
	case <-cut:
	default:
		return nil
	}
	n.waiting.Add(1)
	select {
	case <-n.mend:
		return nil
	case <-ctx.Done():
		return &errs.Error{Op: "catalog", Kind: errs.Timeout, Err: ctx.Err()}
	}
}

func (n *cutNames) Lookup(ctx context.Context, dir dsm.Ino, name string) (dsm.Inode, error) {
	if err := n.wait(ctx, n.noLookup); err != nil {
		return dsm.Inode{}, err
	}
	return n.fakeNames.Lookup(ctx, dir, name)
}

func (n *cutNames) Getattr(ctx context.Context, ino dsm.Ino) (dsm.Inode, error) {
	if err := n.wait(ctx, n.cut); err != nil {
		return dsm.Inode{}, err
	}
	return n.fakeNames.Getattr(ctx, ino)
}

func (n *cutNames) Create(ctx context.Context, dir dsm.Ino, name string, in dsm.Inode, claim bool, settings ...dsm.Setting) (dsm.Inode, error) {
	if err := n.wait(ctx, n.cut); err != nil {
		return dsm.Inode{}, err
	}
	return n.fakeNames.Create(ctx, dir, name, in, claim, settings...)
}

// TestHarvestWithoutQuorum: the child gets at its files while the catalog answers nobody, also while
// the kernel keeps the root directory locked for a program that waits for it.
func TestHarvestWithoutQuorum(t *testing.T) {
	var names *cutNames
	f := mountTest(t, func(c *Config) {
		names = newCutNames(c.Names.(*fakeNames))
		c.Names, c.FaultTimeout = names, 10*clientTimeout
	})
	mend := sync.OnceFunc(func() { close(names.mend) })
	c, blocked := startClient(t), startClient(t)
	var areas []*fakeArea
	var maps []int
	for _, name := range []string{"w", "v"} {
		areas = append(areas, f.file(c, name, make([]byte, dsm.PageSize)))
		_, m := f.mapFile(c, name, dsm.PageSize)
		maps = append(maps, m)
	}
	published := func(word string) {
		t.Helper()
		for i, a := range areas {
			c.must(clientCall{Op: "store", FD: maps[i], Data: []byte(word)})
			if !a.await(clientTimeout, func() bool { return len(a.published) > 0 && a.published[0] == word[0] }) {
				t.Fatalf("%s of area %d is not published", word, i)
			}
		}
	}
	published("before")
	t.Cleanup(mend)
	close(names.noLookup)
	blocked.start(clientCall{Op: "mkdir", Path: f.path("d"), Mode: 0o755})
	eventually(t, "mkdir waits", func() bool { return names.waiting.Load() > 0 })
	close(names.cut)
	if err := syscall.Kill(f.fs.b.harvest.Pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	published("cut off")
	mend()
	if r := blocked.reply(); r.Errno != 0 {
		t.Errorf("mkdir: %v", r.Errno)
	}
}

// TestNameAskedOnce: a stat while the catalog does not answer ends after one timeout, though the kernel asks
// twice for a name that a program has open.
func TestNameAskedOnce(t *testing.T) {
	var names *cutNames
	f := mountTest(t, func(c *Config) {
		names = newCutNames(c.Names.(*fakeNames))
		c.Names, c.FaultTimeout, c.unfoundWindow = names, 100*time.Millisecond, time.Hour
	})
	c, open := startClient(t), startClient(t)
	f.file(c, "w", []byte("x"))
	open.open(f.path("w"), unix.O_RDONLY)
	close(names.noLookup)
	c.wantErrno(syscall.EIO, clientCall{Op: "stat", Path: f.path("w")})
	if n := names.waiting.Load(); n != 1 {
		t.Errorf("the catalog was asked %d times for one name, want once", n)
	}
	close(names.mend)
	eventually(t, "the name is found", func() bool { return c.call(clientCall{Op: "stat", Path: f.path("w")}).Errno == 0 })
}

// TestControlFilesOfACutOffNode: those of a file can be found while the catalog does not answer, as the node knows the names.
func TestControlFilesOfACutOffNode(t *testing.T) {
	var names *cutNames
	f := mountTest(t, func(c *Config) {
		names = newCutNames(c.Names.(*fakeNames))
		c.Names, c.FaultTimeout = names, 10*clientTimeout
	})
	t.Cleanup(func() { close(names.mend) })
	c := startClient(t)
	f.file(c, "w", []byte("x"))
	names.cutOff.Store(true)
	close(names.noLookup)
	close(names.cut)
	if got := string(c.must(clientCall{Op: "readfile", Path: f.path(".dsm", "areas", "w", "merge")}).Data); got != "last\n" {
		t.Errorf("merge reads %q", got)
	}
	if n := names.waiting.Load(); n != 0 {
		t.Errorf("the catalog was asked %d times", n)
	}
}
