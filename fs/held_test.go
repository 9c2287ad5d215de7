package fs

import (
	"context"
	"log/slog"
	"os"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/fs/attach"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/hold"
)

// journalOf has the bridge keep what programs have open.
func journalOf(t *testing.T, b *bridge) *hold.Memory {
	t.Helper()
	mem, err := hold.Create()
	if err != nil {
		t.Fatal(err)
	}
	b.held.journal = mem.Files()
	return mem
}

func becomesVersioned(t *testing.T, b *bridge, a *openArea) {
	t.Helper()
	i, err := b.cfg.Names.SetSpec(t.Context(), dsm.Ino(a.id), "mode", "versioned")
	if err != nil {
		t.Fatal(err)
	}
	a.note(i)
}

// TestHandleIsHeldUntilItIsPublished: a file was closed after the last store, and the daemon is killed before that is published. The next daemon has the handle, which it closes.
func TestHandleIsHeldUntilItIsPublished(t *testing.T) {
	b, areas, _, a := lockable(t)
	defer b.background.close()
	defer b.releases.close()
	mem := journalOf(t, b)
	kept := func() (fhs []uint64) {
		t.Helper()
		next := newBridge(b.cfg)
		if err := mem.Files().Read(next.held.readLocked); err != nil {
			t.Fatal(err)
		}
		for fh := range next.held.mu.handles {
			fhs = append(fhs, fh)
		}
		return fhs
	}
	fh := b.handles.add(newFileHandle(a, true))
	if err := b.held.opened(&request{}, heldHandle{fh: fh, ino: dsm.Ino(a.id), flags: uint32(os.O_RDWR)}); err != nil {
		t.Fatal(err)
	}
	a.stored.Add(1)
	area, answer := areas.area(a.id), make(chan struct{})
	area.update(func() { area.stall, area.stalled = answer, make(chan context.Context, 100) })
	b.Release(nil, &fuse.ReleaseIn{Fh: fh})
	<-area.stalled
	if got := kept(); len(got) != 1 || got[0]&closing == 0 {
		t.Errorf("handles %x, want one that is being closed", got)
	}
	close(answer)
	b.releases.settle(t.Context())
	if got := kept(); len(got) != 0 {
		t.Errorf("handles %x after that", got)
	}
}

// TestHandleIsHeldForItsProcess: the thread that has opened a versioned file may have ended when the next daemon asks which process may be storing to it.
func TestHandleIsHeldForItsProcess(t *testing.T) {
	b, _, _, a := lockable(t)
	defer b.background.close()
	defer b.releases.close()
	journalOf(t, b)
	becomesVersioned(t, b, a)
	runtime.LockOSThread() // not unlocked: the test need not have the thread of the process
	in := fuse.OpenIn{InHeader: fuse.InHeader{NodeId: uint64(a.id), Caller: fuse.Caller{Pid: uint32(unix.Gettid())}}, Flags: uint32(os.O_RDWR)}
	var out fuse.OpenOut
	if st := b.Open(nil, &in, &out); !st.Ok() {
		t.Fatal(st)
	}
	if got := b.held.mu.handles[out.Fh].tid; int(got) != os.Getpid() {
		t.Errorf("the handle is held for %d, want process %d", got, os.Getpid())
	}
}

// newHeldFile returns what a node holds, nothing, and the names of its cluster, with one file.
func newHeldFile(t *testing.T) (*hold.Memory, *fakeNames, dsm.Inode) {
	t.Helper()
	mem, err := hold.Create()
	if err != nil {
		t.Fatal(err)
	}
	names := newFakeNames()
	i, err := names.Create(t.Context(), dsm.RootIno, "f", dsm.Inode{Kind: dsm.KindFile, Perm: 0o600}, false)
	if err != nil {
		t.Fatal(err)
	}
	return mem, names, i
}

// TestResumeTellsTheKernelNothing: a notice can wait for a WRITE, which is served only when all is open again. It is told when the data plane knows
// whom to tell.
func TestResumeTellsTheKernelNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem, names, i := newHeldFile(t)
		areas := newFakeAreas(names)
		b := newBridge(Config{Names: names, Areas: areas, FaultTimeout: time.Minute, Log: slog.New(slog.DiscardHandler)})
		defer b.background.close()
		defer b.releases.close()
		served := make(chan struct{})
		b.notify.server = slowCache{func() { <-served }}
		b.held.journal = mem.Files()
		for fh, flags := range []int{os.O_RDONLY, os.O_RDWR} { // the second would wait for the notice
			h := heldHandle{fh: uint64(fh) + 1, ino: i.Ino, flags: uint32(flags)}
			if err := b.held.journal.Append(h.record()); err != nil {
				t.Fatal(err)
			}
		}
		area := areas.area(dsm.AreaID(i.Ino))
		area.notices = []Notice{{Len: dsm.PageSize}}
		b.cfg.Areas = yieldingAreas{areas}
		if err := b.held.resume(2, nil, nil); err != nil {
			t.Fatal(err)
		}
		f := &FS{b: b}
		f.Changed(area.id)
		close(served)
		synctest.Wait()
		if area.done != 1 {
			t.Error("the notice was not delivered afterwards")
		}
	})
}

// yieldingAreas lets all that an open has begun go as far as it can.
type yieldingAreas struct{ *fakeAreas }

func (y yieldingAreas) Reopen(ctx context.Context, id dsm.AreaID, write bool) (Area, error) {
	synctest.Wait()
	return y.fakeAreas.Reopen(ctx, id, write)
}

// silentNames answers nothing that needs the cluster.
type silentNames struct{ *fakeNames }

func (silentNames) Claim(ctx context.Context, _ dsm.Ino, _ bool) (dsm.Inode, error) {
	<-ctx.Done()
	return dsm.Inode{}, errs.E(errs.Timeout, "claim", "")
}

// TestResumeWithoutAnswer: the cluster does not answer a daemon that takes over, for instance as it has just evicted the node. The daemon ends, and the next one has all that programs had open.
func TestResumeWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem, names, i := newHeldFile(t)
		follow := func(n Names) (*bridge, error) {
			b := newBridge(Config{Names: n, Areas: newFakeAreas(names), FaultTimeout: time.Minute, Log: slog.New(slog.DiscardHandler)})
			b.held.journal = mem.Files()
			t.Cleanup(func() {
				b.background.close()
				b.releases.close()
			})
			return b, b.held.resume(2, nil, nil)
		}
		b, err := follow(names)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.held.opened(&request{}, heldHandle{fh: 1, ino: i.Ino, flags: uint32(os.O_RDWR)}); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := follow(silentNames{names}); !errs.Is(err, errs.Timeout) {
				t.Errorf("it goes on without what it could not open: %v", err)
			}
		}
		b, err = follow(names)
		if err != nil || b.handles.get(1) == nil {
			t.Errorf("what a program has open is not open: %v", err)
		}
	})
}

// TestAttachmentsAreKept: the next daemon knows what programs have attached, also when the journal was written anew; what has ended stays so, and numbers are not used again.
func TestAttachmentsAreKept(t *testing.T) {
	mem, err := hold.Create()
	if err != nil {
		t.Fatal(err)
	}
	daemon := func() *heldFiles {
		b := newBridge(Config{Names: newFakeNames(), Held: mem, FaultTimeout: time.Minute, Log: slog.New(slog.DiscardHandler)})
		t.Cleanup(b.background.close)
		t.Cleanup(b.releases.close)
		b.held.journal = mem.Files()
		if err := b.held.journal.Read(b.held.readLocked); err != nil {
			t.Fatal(err)
		}
		return &b.held
	}
	x := daemon()
	h := attach.Held{File: 7, PID: 8, Start: 9, UID: 10, Write: true, Unnamed: true, Memory: 11}
	note := func(h attach.Held) uint64 {
		t.Helper()
		n, err := x.Attached(h)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	h.Number = note(h)
	other := note(attach.Held{File: 7})
	h.Unnamed = false
	if n := note(h); n != h.Number {
		t.Errorf("it has number %d, and then %d", h.Number, n)
	}
	x.Detached(other)
	note(attach.Held{Number: other, File: 7}) // a NAME that ends late
	for i := range 2 {
		next := daemon()
		if len(next.mu.attached) != 1 || next.mu.attached[h.Number] != h {
			t.Errorf("the next daemon knows of %v, want %v", next.mu.attached, h)
		}
		if i == 0 {
			if err := x.compactLocked(); err != nil {
				t.Fatal(err)
			}
		}
	}
	mem.Word(hold.Refused).Store(1)
	if n := note(attach.Held{File: 12}); n != 0 {
		t.Errorf("an attachment that no other daemon takes over has number %d", n)
	}
}

// TestLateHandlesAreHeld: who has opened a file of which bytes are lost has it open when another daemon has followed, and can truncate it. Each handle is closed once, whichever request has opened it.
func TestLateHandlesAreHeld(t *testing.T) {
	mem, names, i := newHeldFile(t)
	areas := newFakeAreas(names)
	if _, err := names.SetAttr(t.Context(), i.Ino, dsm.SetAttr{Size: new(int64(5))}); err != nil {
		t.Fatal(err)
	}
	areas.area(dsm.AreaID(i.Ino)).lost.Store(true)
	daemon := func(number uint64) *bridge {
		b := newBridge(Config{Names: names, Areas: areas, FaultTimeout: time.Minute, Log: slog.New(slog.DiscardHandler)})
		t.Cleanup(b.background.close)
		t.Cleanup(b.releases.close)
		b.held.journal, b.notify.server = mem.Files(), slowCache{func() {}}
		if number > 1 {
			if err := b.held.resume(number, nil, nil); err != nil {
				t.Fatal(err)
			}
		}
		return b
	}
	b := daemon(1)
	var fhs []uint64
	for n := range uint64(3) {
		var out fuse.OpenOut
		if st := b.Open(nil, &fuse.OpenIn{InHeader: fuse.InHeader{NodeId: uint64(i.Ino), Unique: 2 * (n + 1)}, Flags: uint32(os.O_RDWR)}, &out); !st.Ok() {
			t.Fatal(st)
		}
		fhs = append(fhs, out.Fh)
	}
	b.Release(nil, &fuse.ReleaseIn{Fh: fhs[2]})
	for n := range uint64(2) { // the second daemon is killed when it has opened one of them, and the SETATTR comes again
		b = daemon(n + 2)
		if got := len(b.handles.mu.open); got != 2 {
			t.Fatalf("daemon %d has %d handles, want 2", n+2, got)
		}
		_, is := b.handles.get(fhs[0]).(*lateHandle)
		if want := n == 0; is != want {
			t.Fatalf("daemon %d: the first handle is late: %t", n+2, is)
		}
		areas.area(dsm.AreaID(i.Ino)).lost.Store(false)
		r := b.begin(nil, &fuse.InHeader{NodeId: uint64(i.Ino), Unique: 100})
		defer r.end()
		for fh, h := range b.handles.late(i.Ino) {
			if n == 0 && fh == fhs[1] {
				continue
			}
			if err := b.enterOneLate(t.Context(), r, fh, h); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, fh := range fhs[:2] {
		if _, ok := b.handles.get(fh).(*fileHandle); !ok {
			t.Errorf("handle %d is that of no open file", fh)
		}
	}
}
