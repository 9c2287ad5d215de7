package fs

import (
	"context"
	"log/slog"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/locks"
)

// TestUnlockLooksForStoresToMappings: the harvest child is asked where a program can have stored into a mapping, and only
// there: that takes pages that the kernel has.
func TestUnlockLooksForStoresToMappings(t *testing.T) {
	f := mountTest(t)
	f.noInterval()
	c := startClient(t)
	area := f.file(c, "w", make([]byte, dsm.PageSize))
	a := f.fs.b.opens.find(dsm.AreaID(f.names.inoOf("w")))
	eventually(t, "closed", func() bool { return a.handles() == 0 })
	unlock := func(looks bool) {
		t.Helper()
		before := f.fs.b.harvest.Asked()
		a.writeLocked.Store(true)
		if err := f.fs.b.publishForLocks(t.Context(), a, true); err != nil {
			t.Fatal(err)
		}
		if n := f.fs.b.harvest.Asked() - before; looks != (n > 0) {
			t.Errorf("%d harvests, want some: %v", n, looks)
		}
	}
	published := func(word string) {
		t.Helper()
		if got := area.state().published[:len(word)]; string(got) != word {
			t.Errorf("%q is published, want %q", got, word)
		}
	}

	fd := c.open(f.path("w"), unix.O_RDWR)
	unlock(false)
	m := int(c.must(clientCall{Op: "mmap", FD: fd, Len: dsm.PageSize, Flag: rw}).N)
	unlock(false) // no page has been touched
	c.must(clientCall{Op: "store", FD: m, Data: []byte("one")})
	unlock(true)
	published("one")
	c.must(clientCall{Op: "store", FD: m, Data: []byte("two")}) // to a page that is there
	unlock(true)
	published("two")
	c.must(clientCall{Op: "munmap", FD: m})
	c.must(clientCall{Op: "close", FD: fd})
	eventually(t, "closed", func() bool { return a.handles() == 0 })

	fd = c.open(f.path("w"), unix.O_RDWR)
	unlock(false) // the kernel has dropped all pages
	c.must(clientCall{Op: "pwrite", FD: fd, Data: []byte("three")})
	unlock(true)
	published("three")
	c.must(clientCall{Op: "close", FD: fd})
	eventually(t, "closed", func() bool { return a.handles() == 0 })

	fd = c.open(f.path("w"), unix.O_RDONLY)
	area.tell(Notice{Data: make([]byte, dsm.PageSize)})
	if !area.await(clientTimeout, func() bool { return area.done == 1 }) {
		t.Fatal("the notice is not delivered")
	}
	c.open(f.path("w"), unix.O_RDWR)
	unlock(true) // the notice has brought a page
	c.must(clientCall{Op: "close", FD: fd})
}

// lockNames gives the locks of a file to the node that opens it for writing, as the catalog does.
type lockNames struct {
	*fakeNames
	locks *locks.Node
	later bool // it gets them later
}

func (n lockNames) Claim(ctx context.Context, ino dsm.Ino, write bool) (dsm.Inode, error) {
	i, err := n.fakeNames.Claim(ctx, ino, write)
	if err == nil && write && !n.later {
		n.locks.LocksChanged([]locks.Event{{What: locks.Delegated, Ino: ino, Node: 1, Term: 1}})
	}
	return i, err
}

// noCommands is a cluster that lives, and that nobody asks for a lock.
type noCommands struct{ locks.Cluster }

func (noCommands) MayGrant() bool                    { return true }
func (noCommands) ShowLife(context.Context) error    { return nil }
func (noCommands) GrantedLocks(dsm.Ino) []locks.Lock { return nil }

// lockable is a file that a program has open for writing, on a node that has its locks.
func lockable(t *testing.T) (*bridge, *fakeAreas, *locks.Node, *openArea) {
	return openLockable(t, false)
}

func openLockable(t *testing.T, later bool) (*bridge, *fakeAreas, *locks.Node, *openArea) {
	names := newFakeNames()
	node := locks.NewNode(locks.Config{Self: 1, Cluster: noCommands{}, Log: slog.New(slog.DiscardHandler)})
	t.Cleanup(node.Close)
	areas := newFakeAreas(names)
	b := newBridge(Config{Names: lockNames{names, node, later}, Areas: areas, FaultTimeout: time.Minute, Locks: node, Log: slog.New(slog.DiscardHandler)})
	i, err := names.Create(t.Context(), dsm.RootIno, "f", dsm.Inode{Kind: dsm.KindFile, Perm: 0o600}, false)
	if err != nil {
		t.Fatal(err)
	}
	a, _, err := b.opens.open(t.Context(), i.Ino, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	return b, areas, node, a
}

// TestOpenAcquiresForLock: the first lock of a file that was delegated with the open has nothing to acquire.
func TestOpenAcquiresForLock(t *testing.T) {
	b, _, node, a := lockable(t)
	l := locks.Lock{Owner: node.Owner(1, false), Type: locks.Write, Last: locks.End}
	if err := node.Set(t.Context(), dsm.Ino(a.id), l, false, func() error { t.Error("the lock acquires"); return nil }); err != nil {
		t.Error(err)
	}
	b.opens.release(a, true)
}

// TestSignalDuringUnlock: a signal does not end an unlock that publishes. It ends a change of a lock, which stays as it was.
func TestSignalDuringUnlock(t *testing.T) {
	for _, c := range []struct {
		what string
		to   uint32
		want fuse.Status
	}{{"unlock", syscall.F_UNLCK, fuse.OK}, {"share", syscall.F_RDLCK, fuse.EINTR}} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, areas, node, a := lockable(t)
				defer b.background.close()
				defer b.releases.close()
				defer b.opens.release(a, true)
				in := fuse.LkIn{InHeader: *headerOf(0), Fh: b.handles.add(newFileHandle(a, true)), Owner: 1, LkFlags: fuse.FUSE_LK_FLOCK}
				request := func(how uint32, cancel chan struct{}) fuse.Status {
					in := in
					in.Lk = fuse.FileLock{Typ: how, End: locks.End}
					return b.SetLkw(cancel, &in)
				}
				if st := request(syscall.F_WRLCK, make(chan struct{})); !st.Ok() {
					t.Fatalf("lock: %v", st)
				}
				a.stored.Add(1)
				area, answer := areas.area(a.id), make(chan struct{})
				area.update(func() { area.stall, area.stalled = answer, make(chan context.Context, 100) })
				cancel, done := make(chan struct{}), make(chan fuse.Status, 1)
				go func() { done <- request(c.to, cancel) }()
				waits := <-area.stalled
				close(cancel)
				if c.want.Ok() {
					<-time.After(3 * recheck) // of the bubble
					if waits.Err() != nil {
						t.Error("the signal ends it")
					}
				}
				area.update(func() { area.stall = nil })
				if c.want.Ok() {
					close(answer)
				}
				if st := <-done; st != c.want {
					t.Errorf("%v, want %v", st, c.want)
				}
				if granted := len(node.Granted(dsm.Ino(a.id), node.Owner(1, true))); granted != 1 && !c.want.Ok() || granted != 0 && c.want.Ok() {
					t.Errorf("%d locks", granted)
				}
			})
		})
	}
}

// TestSignalDuringALock: a signal ends a call that waits for a lock also while the node brings what others have stored under it. Nothing is locked then.
func TestSignalDuringALock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, areas, node, a := openLockable(t, true)
		defer b.background.close()
		defer b.releases.close()
		defer b.opens.release(a, true)
		node.LocksChanged([]locks.Event{{What: locks.Delegated, Ino: dsm.Ino(a.id), Node: 1, Term: 1}}) // others may have had locks since the open
		area := areas.area(a.id)
		area.update(func() { area.stall, area.stalled = make(chan struct{}), make(chan context.Context, 100) })
		in := fuse.LkIn{InHeader: *headerOf(0), Fh: b.handles.add(newFileHandle(a, true)), Owner: 1, Lk: fuse.FileLock{Typ: syscall.F_WRLCK, End: locks.End}}
		cancel, done := make(chan struct{}), make(chan fuse.Status, 1)
		began := time.Now()
		go func() { done <- b.SetLkw(cancel, &in) }()
		<-area.stalled
		close(cancel)
		if st := <-done; st != fuse.EINTR {
			t.Errorf("%v", st)
		}
		if time.Since(began) > 0 { // of the bubble
			t.Errorf("the call went on for %v", time.Since(began))
		}
		area.update(func() { area.stall = nil })
		if granted := node.Granted(dsm.Ino(a.id), node.Owner(1, false)); len(granted) > 0 {
			t.Errorf("it has %v", granted)
		}
	})
}

// TestCloseForReading: a process closes a descriptor for reading, which releases its locks. What it has stored through another one is published before.
func TestCloseForReading(t *testing.T) {
	b, areas, node, a := lockable(t)
	w, r := b.handles.add(newFileHandle(a, true)), b.handles.add(newFileHandle(a, false))
	in := fuse.LkIn{InHeader: *headerOf(0), Fh: w, Owner: 1, Lk: fuse.FileLock{Typ: syscall.F_WRLCK, End: 1 << 62}}
	if st := b.SetLk(nil, &in); !st.Ok() {
		t.Fatal(st)
	}
	a.stored.Add(1)
	before := areas.area(a.id).state().publishes
	if st := b.Flush(nil, &fuse.FlushIn{InHeader: *headerOf(0), Fh: r, LockOwner: 1}); !st.Ok() {
		t.Fatal(st)
	}
	if granted, published := len(node.Granted(dsm.Ino(a.id), node.Owner(1, false))), areas.area(a.id).state().publishes-before; granted != 0 || published != 1 {
		t.Errorf("%d locks are left, after %d publishes", granted, published)
	}
}

// TestNumberOfAnOpenFileComesAgain: the RELEASE of a file that was closed is served after the next one, to which the kernel has given the same number, has been locked.
func TestNumberOfAnOpenFileComesAgain(t *testing.T) {
	b, _, node, a := lockable(t)
	a.mu.Lock()
	a.mu.handles, a.mu.kernel = a.mu.handles+1, a.mu.kernel+1
	a.mu.Unlock()
	const number = 7
	handles := [2]uint64{b.handles.add(newFileHandle(a, false)), b.handles.add(newFileHandle(a, false))}
	for _, h := range handles {
		in := fuse.LkIn{InHeader: *headerOf(0), Fh: h, Owner: number, LkFlags: fuse.FUSE_LK_FLOCK, Lk: fuse.FileLock{Typ: syscall.F_WRLCK, End: 1 << 62}}
		if st := b.SetLk(nil, &in); !st.Ok() {
			t.Fatal(st)
		}
	}
	for i, want := range []int{1, 0} {
		b.Release(nil, &fuse.ReleaseIn{InHeader: *headerOf(0), Fh: handles[i]})
		b.releases.settle(t.Context())
		if granted := len(node.Granted(dsm.Ino(a.id), node.Owner(number, true))); granted != want {
			t.Errorf("after RELEASE %d there are %d locks, want %d", i+1, granted, want)
		}
	}
}

// TestOpenAfterLocksAreLost: a program whose flock the cluster has dropped closes the file, opens it again and locks it. The kernel says that it has closed it only after that.
func TestOpenAfterLocksAreLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _, node, a := lockable(t)
		defer b.background.close()
		defer b.releases.close()
		const number = 7 // of both open files
		lock := func(fh uint64) fuse.Status {
			in := fuse.LkIn{InHeader: *headerOf(0), Fh: fh, Owner: number, LkFlags: fuse.FUSE_LK_FLOCK, Lk: fuse.FileLock{Typ: syscall.F_WRLCK, End: 1 << 62}}
			return b.SetLk(nil, &in)
		}
		old := b.handles.add(newFileHandle(a, true))
		if st := lock(old); !st.Ok() {
			t.Fatal(st)
		}
		node.Evicted()
		if st := lock(old); st != fuse.EIO {
			t.Errorf("the lock that is lost: %v", st)
		}
		if st := b.Flush(nil, &fuse.FlushIn{InHeader: *headerOf(0), Fh: old}); !st.Ok() {
			t.Error(st)
		}
		go func() {
			time.Sleep(closeLimit / 2)
			b.Release(nil, &fuse.ReleaseIn{InHeader: *headerOf(0), Fh: old})
		}()
		var out fuse.OpenOut
		r := b.begin(nil, headerOf(0))
		if st := b.open(r, dsm.Ino(a.id), syscall.O_RDWR, nil, &out); !st.Ok() {
			t.Error(st)
		}
		r.end()
		node.LocksChanged([]locks.Event{{What: locks.Delegated, Ino: dsm.Ino(a.id), Node: 1, Term: 2}})
		if st := lock(out.Fh); !st.Ok() || node.Dropped(dsm.Ino(a.id)) {
			t.Errorf("the next open file: %v", st)
		}
		b.Release(nil, &fuse.ReleaseIn{InHeader: *headerOf(0), Fh: out.Fh})
	})
}
