package coherence

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/hold"
	"github.com/dsmfs/dsmfs/pages"
)

// aloneNode is a node that is alone in its cluster, and its daemons.
type aloneNode struct {
	t     *testing.T
	m     *hold.Memory
	shelf *hold.Shelf
	view  View
}

func newAloneNode(t *testing.T, size int64) *aloneNode {
	t.Helper()
	m, err := hold.Create()
	if err != nil {
		t.Fatal(err)
	}
	alone := oneHome()
	alone.Members = alone.Members[:1]
	return &aloneNode{t, m, hold.NewShelf(), &slowPair{view: alone, size: size}}
}

// daemon starts a daemon.
func (x *aloneNode) daemon() *Node {
	x.t.Helper()
	store, err := pages.NewKeep(x.m, x.shelf)
	if err != nil {
		x.t.Fatal(err)
	}
	first := x.m.Word(hold.Daemons).Add(1) << 40
	n := New(Config{Self: 1, View: x.view, Sender: nowhere{}, Log: slog.New(slog.DiscardHandler), Store: store, First: first, Linger: time.Hour})
	if err := n.Resume(x.t.Context(), true, false); err != nil {
		x.t.Fatal(err)
	}
	return n
}

// attach starts a daemon, and attaches the file for a program. ino is that of the memory.
func (x *aloneNode) attach(size int64) (a *Area, mem []byte, ino uint64) {
	x.t.Helper()
	a, err := x.daemon().Open(x.t.Context(), 1, false)
	if err != nil {
		x.t.Fatal(err)
	}
	at, f, err := a.Attach(x.t.Context(), 77, true)
	if err != nil {
		x.t.Fatal(err)
	}
	defer f.Close()
	if mem, err = unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		x.t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		x.t.Fatal(err)
	}
	at.Track(nil, 0, size)
	return a, mem, st.Ino
}

// follow starts the next daemon, which takes over what the program has attached.
func (x *aloneNode) follow(ino uint64) (*Area, *Attachment) {
	x.t.Helper()
	n := x.daemon()
	a, err := n.Reopen(x.t.Context(), 1, false)
	if err != nil {
		x.t.Fatal(err)
	}
	at, f, err := a.Reattach(77, true, ino)
	if err != nil {
		x.t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		x.t.Fatal(err)
	}
	n.Resumed()
	return a, at
}

// TestAttachedWhenOneFollowsAlone: a program of a node alone goes on with the memory that it has attached when the daemon is killed. What it stores before, meanwhile and afterwards is published, and what is
// read by others is the same.
func TestAttachedWhenOneFollowsAlone(t *testing.T) {
	const size = dsm.ExtentSize + 2*dsm.PageSize + 80
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, published := range []bool{false, true} {
		x := newAloneNode(t, size)
		a, mem, ino := x.attach(size)
		want := make([]byte, size)
		store := func(off int64, b byte) { mem[off], want[off] = b, b }
		look := func(a *Area) {
			t.Helper()
			must(a.Publish(ctx))
			got := make([]byte, size)
			k, err := a.ReadAt(ctx, got, 0)
			must(err)
			for i := range got[:k] {
				if got[i] != want[i] {
					t.Fatalf("published %v: byte %d is %d, want %d", published, i, got[i], want[i])
				}
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			for p := dsm.PageIndex(0); int64(p)*dsm.PageSize < size; p++ {
				if b := a.mu.mem.Base(p); string(b[:1]) != string(want[int64(p)*dsm.PageSize:][:1]) {
					t.Fatalf("published %v: the home has %d at the begin of page %d", published, b[0], p)
				}
			}
		}
		store(0, 1)
		store(dsm.ExtentSize, 2)
		if published {
			look(a)
		}
		store(size-1, 3)
		store(dsm.PageSize, 4)
		for daemon := range byte(3) {
			store(5*dsm.PageSize+int64(daemon), 10+daemon) // while no daemon is there
			a, at := x.follow(ino)
			at.Track(nil, 0, size)
			store(6*dsm.PageSize+int64(daemon), 20+daemon)
			store(0, 30+daemon)
			if daemon != 1 {
				look(a)
			}
		}
	}
}

// summing is a view in which all files sum.
type summing struct{ *slowPair }

func (s summing) Area(id dsm.AreaID) (dsm.Inode, bool) {
	ino, ok := s.slowPair.Area(id)
	sum := sumOf(dsm.DTypeI32, dsm.ApplySync)
	ino.Spec, ino.Layout = sum.Spec, sum.Layout
	return ino, ok
}

func (s summing) AreaSince(id dsm.AreaID, _ dsm.Generation) (dsm.Inode, int64, dsm.Generation, bool) {
	ino, ok := s.Area(id)
	return ino, ino.Size, 0, ok
}

// TestKilledWhileWhatIsPublishedEnds: the daemon of a node alone is killed when the home has what was published, and the node knows so of the first page. It counts once.
func TestKilledWhileWhatIsPublishedEnds(t *testing.T) {
	const size = 3 * dsm.PageSize
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	x := newAloneNode(t, size)
	x.view = summing{x.view.(*slowPair)}
	a, mem, ino := x.attach(size)
	for p := range 3 {
		mem[p*dsm.PageSize] = 1
	}
	a.collect()
	func() {
		defer func() {
			if recover() == nil {
				t.Error("it was not killed")
			}
		}()
		a.mu.Lock()
		defer a.mu.Unlock()
		a.requestPublishLocked()
		a.extentLocked(0).pub.snap = map[int][]byte{1: {}} // what looks at it panics
		a.localLocked()
	}()
	a, _ = x.follow(ino)
	must(a.Publish(ctx))
	got := make([]byte, size)
	_, err := a.ReadAt(ctx, got, 0)
	must(err)
	for p := range 3 {
		if b := got[p*dsm.PageSize]; b != 1 {
			t.Errorf("the element of page %d is %d, want 1", p, b)
		}
	}
}

// TestHeldAttachmentsThatEnd: what no daemon that follows could go on with is refused, or no daemon follows, as the node is told.
func TestHeldAttachmentsThatEnd(t *testing.T) {
	for what, c := range map[string]struct {
		spec    dsm.Spec
		program int
	}{
		"on demand": {dsm.Spec{Residency: dsm.ResidencyDemand}, 77},
		"direct":    {dsm.Spec{}, dsm.ByMount},
	} {
		for _, mayEnd := range []bool{false, true} {
			ino := dsm.Inode{Size: dsm.PageSize, Spec: c.spec}
			s := newSim(t, 1, 2, ino)
			n := s.nodes[1]
			why := ""
			n.config.MayEnd, n.config.Unheld = mayEnd, func(w string) { why = w }
			n.hold()
			n.open(false)
			s.drain()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			for _, write := range []bool{false, true} {
				at, f, err := n.area.Attach(ctx, c.program, write)
				if !mayEnd {
					if !errs.Is(err, errs.Unsupported) {
						t.Errorf("%s, write %v: %v", what, write, err)
					}
					continue
				}
				if err != nil || why == "" {
					t.Errorf("%s, write %v: %v; no daemon follows: %q", what, write, err, why)
					continue
				}
				at.Detach()
				if err := f.Close(); err != nil {
					t.Error(err)
				}
			}
			cancel()
			if k, err := n.shelf.After(0); k != 0 || err != nil {
				t.Errorf("%s: the holder has file %d, %v", what, k, err)
			}
		}
	}
}

// TestFollowsWhileMemoryIsFreed: a process of the daemon before has yet to free what is past the end that a file had: see pages.Left.TakeBoth. The next one has the file that long, and no longer before that is over.
func TestFollowsWhileMemoryIsFreed(t *testing.T) {
	const short, long = 3 * dsm.PageSize, 7*dsm.PageSize + 5
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	x := newAloneNode(t, short)
	a, err := x.daemon().Open(ctx, 1, false)
	must(err)
	_, f, err := a.Attach(ctx, 77, true)
	must(err)
	mem, err := unix.Mmap(int(f.Fd()), 0, short, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(err)
	var st unix.Stat_t
	must(unix.Fstat(int(f.Fd()), &st))
	must(f.Close())
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", x.m.FD()), unix.O_RDWR|unix.O_CLOEXEC, 0)
	must(err)
	must(unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: hold.FreeMark(st.Ino, short), Len: 1}))
	x.view.(*slowPair).size = long
	var at *Attachment
	for range 2 {
		mem[5]++
		a.note(func() { // that daemon does nothing any more
			if timer := a.mu.short.timer; timer != nil {
				timer.Stop()
			}
		})
		n := x.daemon()
		a, err = n.Reopen(ctx, 1, false)
		must(err)
		at, f, err = a.Reattach(77, true, st.Ino)
		must(err)
		must(f.Close())
		n.Resumed()
		now, end := context.WithCancel(ctx)
		end()
		if err := a.Grown(now, 0, long); !errs.Is(err, errs.Timeout) || !a.isShort() || a.size() != short {
			t.Errorf("it has %d bytes: %v", a.size(), err)
		}
		must(a.Grown(ctx, 0, short))
	}
	must(unix.Close(fd))
	must(a.Grown(ctx, 0, long))
	at.Track(nil, 0, long)
	mem[6] = 7
	must(a.Publish(ctx))
	got := make([]byte, 8)
	if n, err := a.ReadAt(ctx, got, 0); err != nil || a.size() != long || got[5] != 2 || got[6] != 7 {
		t.Errorf("%d bytes of %d (%v): %d", n, a.size(), err, got)
	}
}

// size is how long the area is on its node.
func (a *Area) size() (n int64) {
	a.note(func() { n = a.mu.ino.Size })
	return n
}

// TestModeChangesWhileItIsAttached: a program has attached an empty file, whose mode changes then. The next daemon has the copy that the program has mapped.
func TestModeChangesWhileItIsAttached(t *testing.T) {
	for _, from := range []dsm.Mode{dsm.ModeVersioned, dsm.ModeRelaxed} {
		x := newAloneNode(t, 0)
		a, err := x.daemon().Open(t.Context(), 1, false)
		if err != nil {
			t.Fatal(err)
		}
		to := dsm.ModeRelaxed
		if from == to {
			to = dsm.ModeVersioned
		}
		set := func(m dsm.Mode, size int64) {
			a.step(func() {
				ino := a.mu.ino
				ino.Rev++
				ino.Spec.Mode, ino.Size = m, size
				a.inodeChangedLocked(ino)
			})
		}
		set(from, 0)
		at, f, err := a.Attach(t.Context(), 77, false)
		if err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			t.Fatal(err)
		}
		set(to, 5*dsm.PageSize)
		for what, open := range map[string]func() (*Attachment, error){
			"it": func() (*Attachment, error) { return at, nil },
			"the next one": func() (*Attachment, error) {
				at, g, err := a.Reattach(77, false, st.Ino)
				if err == nil {
					err = g.Close()
				}
				return at, err
			},
		} {
			at, err := open()
			if err != nil {
				t.Errorf("from mode %v: %s: %v", from, what, err)
				continue
			}
			g, err := at.Memory()
			if err != nil {
				t.Errorf("from mode %v: memory of %s: %v", from, what, err)
				continue
			}
			var now unix.Stat_t
			if err := unix.Fstat(int(g.Fd()), &now); err != nil || now.Ino != st.Ino {
				t.Errorf("from mode %v: %s has other memory (%v)", from, what, err)
			}
			if err := g.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}
