package coherence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// TestDraftWhereMemoryDoesNotGrow: what a program with memory of its own writes and reads past the page cache where the area has none is ENOSPC, as for others.
func TestDraftWhereMemoryDoesNotGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 2, sums(1, dsm.ApplySync))
		n := s.nodes[0]
		n.open(true)
		s.calm()
		at, f, err := n.area.Attach(t.Context(), 9, true)
		if err != nil || !at.Own() {
			t.Fatal(at, err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		n.starving.Store(true)
		s.resized(2 * dsm.ExtentSize)
		s.drain()
		b := make([]byte, 8)
		try := func(past int64) (write, read error) {
			write = n.area.WriteBy(t.Context(), 9, b, past)
			_, read = n.area.ReadBy(t.Context(), 9, b, past)
			return write, read
		}
		for _, past := range []int64{dsm.ExtentSize, dsm.ExtentSize - 4} {
			if write, read := try(past); errs.KindOf(write) != errs.NoSpace || errs.KindOf(read) != errs.NoSpace {
				t.Errorf("at %d: write %v, read %v, want ENOSPC", past, write, read)
			}
		}
		if write, read := try(0); write != nil || read != nil {
			t.Errorf("where there is memory: write %v, read %v", write, read)
		}
		n.starving.Store(false)
		if write, read := try(dsm.ExtentSize); write != nil || read != nil {
			t.Errorf("where there is memory again: write %v, read %v", write, read)
		}
	})
}

// TestMemoryThatDoesNotGrow: the memory of an area cannot be made longer at one of two nodes. What its programs need of the rest is
// ENOSPC there, nothing else changes, and the log says what to do, once. What others publish to it meanwhile is taken when there is
// memory again: after a while, or when another area gives some back.
func TestMemoryThatDoesNotGrow(t *testing.T) {
	for _, freed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newHomed(t, 2, sums(1, dsm.ApplyArrival))
			home, other := s.nodes[0], s.nodes[1]
			home.open(true)
			other.open(true)
			s.drain()
			var log bytes.Buffer
			home.node.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
			home.starving.Store(true)
			s.resized(2 * dsm.ExtentSize)
			s.drain()

			a, past, b := home.area, int64(dsm.ExtentSize), make([]byte, 8)
			for what, call := range map[string]func(ctx context.Context) error{
				"read":       func(ctx context.Context) error { _, err := a.ReadAt(ctx, b, past); return err },
				"write":      func(ctx context.Context) error { return a.WriteAt(ctx, b, past) },
				"write back": func(ctx context.Context) error { return a.WriteBack(ctx, b, past) },
				"open":       func(ctx context.Context) error { _, err := home.node.Open(ctx, simArea, false); return err },
				"attach":     func(ctx context.Context) error { _, _, err := a.Attach(ctx, 1, true); return err },
			} {
				if err := call(t.Context()); errs.KindOf(err) != errs.NoSpace || !errors.Is(err, syscall.ENOMEM) {
					t.Errorf("%s: %v, want ENOSPC", what, err)
				}
			}
			if err := a.WriteAt(t.Context(), []byte{3}, 0); err != nil {
				t.Error("a store to what there is memory for: ", err)
			}
			if k := strings.Count(log.String(), "vm.max_map_count"); k != 1 {
				t.Errorf("%d lines of the log say what to do:\n%s", k, &log)
			}

			if err := other.area.WriteAt(t.Context(), []byte{7}, past); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- other.area.Publish(t.Context()) }()
			s.drain()
			if len(done) > 0 {
				t.Fatal("a publish is acked that there is no memory for")
			}
			home.starving.Store(false)
			if freed {
				home.node.memoryFreed()
			} else {
				<-time.After(shortRetry)
			}
			s.drain()
			s.drain()
			if len(done) == 0 {
				t.Fatal("the publish is not taken when there is memory again")
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
			if err := a.WriteAt(t.Context(), b, past+8); err != nil {
				t.Error("a store when there is memory again: ", err)
			}
			if got := a.mu.mem.Working(dsm.ExtentPages)[0]; got != 7 {
				t.Errorf("memory has %d, want 7", got)
			}
		})
	}
}

// TestGrowthWhileMemoryIsFreed: a program is in write(2) to the memory of an area of one of two nodes, so what the area had past its end cannot be freed there when it
// grows again. Who needs the rest waits, nothing else does, and when the program goes on the area has its size.
func TestGrowthWhileMemoryIsFreed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 2, sums(1, dsm.ApplyArrival))
		home, other := s.nodes[0], s.nodes[1]
		home.open(true)
		other.open(true)
		a, past := home.area, int64(dsm.ExtentSize)
		at, f, err := a.Attach(t.Context(), 1, true)
		if err != nil {
			t.Fatal(err)
		}
		defer at.Detach()
		defer f.Close()
		if err := a.WriteAt(t.Context(), []byte{9}, 2*dsm.PageSize); err != nil { // what is freed when the area shrinks
			t.Fatal(err)
		}
		s.drain()
		var log bytes.Buffer
		home.node.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		home.busy = true
		for _, size := range []int64{dsm.PageSize, 2 * dsm.ExtentSize} {
			s.resized(size)
			s.drain()
		}
		if size := a.mu.ino.Size; size != dsm.PageSize {
			t.Fatalf("the area has %d bytes", size)
		}
		calls := map[string]func(ctx context.Context) error{
			"read":       func(ctx context.Context) error { _, err := a.ReadAt(ctx, make([]byte, 8), past); return err },
			"write":      func(ctx context.Context) error { return a.WriteAt(ctx, make([]byte, 8), past+8) },
			"write back": func(ctx context.Context) error { return a.WriteBack(ctx, make([]byte, 8), past+16) },
			"track":      func(ctx context.Context) error { return a.Grown(ctx, past, dsm.PageSize) },
			"open": func(ctx context.Context) error {
				_, err := home.node.Open(ctx, simArea, false)
				if err == nil {
					a.Close(false)
				}
				return err
			},
			"attach": func(ctx context.Context) error {
				at, f, err := a.Attach(ctx, 2, false)
				if err == nil {
					err = f.Close()
					at.Detach()
				}
				return err
			},
		}
		soon, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := a.Grown(soon, past, dsm.PageSize); errs.KindOf(err) != errs.Timeout || !a.Growing() || log.Len() > 0 {
			t.Errorf("it nearly always takes a moment; after one: %v, growing %v, and the log says %q", err, a.Growing(), &log)
		}
		for what, call := range calls {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if err := call(ctx); errs.KindOf(err) != errs.Timeout {
				t.Errorf("%s: %v, want a timeout", what, err)
			}
			cancel()
		}
		if said := strings.Count(log.String(), "in write(2)"); said != 2 { // once what is, and once what to do
			t.Errorf("the log says %q", &log)
		}
		if err := errors.Join(a.WriteAt(t.Context(), []byte{3}, 0), a.Grown(t.Context(), 0, dsm.PageSize)); err != nil {
			t.Error("in what there is memory for: ", err)
		}
		if err := other.area.WriteAt(t.Context(), []byte{7}, past); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, len(calls)+1)
		go func() { done <- other.area.Publish(t.Context()) }()
		for _, call := range calls {
			go func() { done <- call(t.Context()) }()
		}
		s.drain()
		if len(done) > 0 {
			t.Fatal("somebody has not waited: ", <-done)
		}
		home.busy = false
		s.calm()
		s.calm()
		for range cap(done) {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if got := a.mu.mem.Working(dsm.ExtentPages)[0]; got != 7 || a.Growing() {
			t.Errorf("memory has %d, want 7; growing %v", got, a.Growing())
		}
	})
}

// TestStoresAcrossTheEndOfMemory: the kernel writes back stores that reach past what there is memory for. It says so at the next fsync,
// and does not write them back again: those that there is memory for must not be lost.
func TestStoresAcrossTheEndOfMemory(t *testing.T) {
	for name, size := range map[string]int64{"at a page": dsm.PageSize, "in a page": dsm.PageSize + 10} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ino := sums(1, dsm.ApplyArrival)
				ino.Size = size
				s := newHomed(t, 1, ino)
				n := s.nodes[0]
				n.open(true)
				n.starving.Store(true)
				s.resized(3 * dsm.PageSize)
				stored := bytes.Repeat([]byte{7}, 3*dsm.PageSize)
				if err := n.area.WriteBack(t.Context(), stored, 0); errs.KindOf(err) != errs.NoSpace {
					t.Errorf("a store past the memory: %v, want ENOSPC", err)
				}
				got := make([]byte, 3*dsm.PageSize)
				if k := n.area.mu.mem.ReadWorking(got, 0); int64(k) != size || !bytes.Equal(got[:size], stored[:size]) {
					t.Errorf("of %d bytes with memory, memory has %d", size, bytes.Count(got, []byte{7}))
				}
				n.starving.Store(false)
			})
		})
	}
}

// TestPageCacheOfRefusedStores: what is refused because there is no memory for it stays in the kernel's page cache. It is dropped from there,
// or the page would show it for ever, to programs of this node alone. A page without such stores stays.
func TestPageCacheOfRefusedStores(t *testing.T) {
	const off, size = dsm.PageSize, dsm.PageSize + 54
	for name, c := range map[string]struct {
		at      int64 // the byte that is stored
		through bool  // by write(2)
		drops   bool
	}{
		"to a mapping, all with memory":       {at: off + 27},
		"to a mapping, past the memory":       {at: off + 59, drops: true},
		"by write(2), all with memory":        {at: off + 27, through: true},
		"by write(2), past the memory":        {at: off + 59, through: true, drops: true},
		"by write(2), from the memory's last": {at: size - 1, through: true, drops: true},
	} {
		for _, demand := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, on demand %v", name, demand), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ino := dsm.Inode{Size: size}
					if demand {
						ino = onDemand(ino)
					}
					s := newHomed(t, 1, ino)
					n := s.nodes[0]
					n.open(true)
					n.page(1)
					n.starving.Store(true)
					s.resized(3 * dsm.PageSize)
					if c.through {
						_ = n.area.WriteAt(t.Context(), []byte{7, 7}, c.at)
					} else {
						page := make([]byte, dsm.PageSize)
						page[c.at-off] = 7
						_ = n.area.WriteBack(t.Context(), page, off)
					}
					n.starving.Store(false)
					<-time.After(shortRetry)
					s.drain()
					n.kernel.finishNotices()
					if drops := n.kernel.cache[1] == nil; drops != c.drops {
						t.Errorf("the page is dropped: %v, want %v", drops, c.drops)
					}
				})
			})
		}
	}
}

// TestPageCacheWithoutRoom: a write(2) begins in a page that the page cache has, and is refused because there is no room for the next one.
func TestPageCacheWithoutRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 1, onDemand(dsm.Inode{Size: dsm.ExtentSize}))
		n := s.nodes[0]
		n.open(true)
		n.page(1)
		room := &n.node.room
		room.taken.Add(room.limit())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := n.area.WriteAt(ctx, bytes.Repeat([]byte{7}, 2*dsm.PageSize), dsm.PageSize); errs.KindOf(err) != errs.NoSpace {
			t.Fatalf("a write(2) without room: %v, want ENOSPC", err)
		}
		room.taken.Add(-room.limit())
		n.kernel.finishNotices()
		if n.kernel.cache[1] != nil {
			t.Error("the page cache goes on showing what was refused")
		}
	})
}

// TestHandoverToAShortArea: an extent that is handed over to a node before it has memory for it is sent again.
func TestHandoverToAShortArea(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 3, sums(1, dsm.ApplyArrival))
		to, replica := s.nodes[1], s.nodes[2]
		to.open(false)
		replica.open(true)
		to.starving.Store(true)
		s.resized(2 * dsm.ExtentSize)
		if err := replica.area.WriteAt(t.Context(), []byte{7}, dsm.ExtentSize); err != nil {
			t.Fatal(err)
		}
		publish(replica)
		s.drain()
		s.move(to, 2)
		s.drain()
		to.starving.Store(false)
		for range 3 {
			<-time.After(shortRetry)
			s.drain()
			s.catchUp()
		}
		if x := to.area.mu.home.extents[1]; x == nil || to.area.mu.mem.Home(dsm.ExtentPages)[0] != 7 {
			t.Error("the extent is not at its new home")
		}
	})
}

// TestResidencyOfAShortArea: the residency changes, by way of an empty area, and the memory for what the area has afterwards cannot
// be made. What others ask for meanwhile waits for it.
func TestResidencyOfAShortArea(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 2, dsm.Inode{Size: dsm.ExtentSize})
		home, other := s.nodes[0], s.nodes[1]
		home.open(false)
		home.starving.Store(true)
		s.changeRules(func(ino *dsm.Inode) { ino.Spec.Residency = dsm.ResidencyDemand })
		s.catchUp()
		other.find()
		other.startOpen(true)
		if err := other.area.WriteAt(t.Context(), []byte{7}, 0); err != nil {
			t.Fatal(err)
		}
		s.drain()
		home.starving.Store(false)
		<-time.After(shortRetry)
		s.drain()
		publish(other)
		s.drain()
		if ino := home.area.mu.ino; ino != home.ino {
			t.Errorf("the area has become %+v, want %+v", ino, home.ino)
		}
		if x := home.area.mu.home.extents[0]; x == nil || home.area.mu.mem.Home(0)[0] != 7 {
			t.Error("the publish is lost")
		}
	})
}

// TestDraftThatDoesNotGrow: the copy that a program has of its own cannot be made longer: the area stays as it is.
func TestDraftThatDoesNotGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 1, sums(1, dsm.ApplyAuto))
		n := s.nodes[0]
		n.open(false)
		at, f, err := n.area.Attach(t.Context(), 1, true)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		var fed atomic.Bool // the timer looks at it, too
		n.node.resize = func(mem interface{ Resize(size int64) error }, size int64) error {
			if mem == at.draft.mem && !fed.Load() {
				return os.NewSyscallError("mmap", syscall.ENOMEM)
			}
			return resize(mem, size)
		}
		s.resized(2 * dsm.ExtentSize)
		if size := n.area.mu.mem.Size(); size != dsm.ExtentSize {
			t.Errorf("the area has %d bytes, and the draft %d", size, dsm.ExtentSize)
		}
		fed.Store(true)
		<-time.After(shortRetry)
		synctest.Wait()
		at.draft.mem.Page(dsm.ExtentPages)[0] = 5
		n.area.takeRange(at.draft, 0, 2*dsm.ExtentSize)
		if got := n.area.mu.mem.Working(dsm.ExtentPages)[0]; got != 5 {
			t.Errorf("memory has %d, want 5", got)
		}
		at.Detach()
	})
}

// TestHandoverFromAShortHome: a home whose memory cannot follow the catalog hands its slots over when it can, and does not send them
// again and again until then.
func TestHandoverFromAShortHome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 2, sums(1, dsm.ApplyArrival))
		home, to := s.nodes[0], s.nodes[1]
		s.openAll()
		put(t, home, 5)
		publish(home)
		s.calm()
		home.starving.Store(true)
		s.resized(2 * dsm.ExtentSize)
		s.changeRules(func(*dsm.Inode) {})
		s.catchUp()
		s.move(to, 1)
		delivered := 0
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); { // of the bubble
			if !s.deliver() {
				s.pass(100 * time.Millisecond)
			} else if delivered++; delivered > 200 {
				t.Fatal("the extent is sent again and again")
			}
		}
		home.starving.Store(false)
		s.pass(shortRetryMost)
		s.pass(2 * memoryRetry)
		s.calm()
		if x := to.area.mu.home.extents[0]; x == nil || x.data.Empty() {
			t.Error("the new home does not have the extent")
		}
	})
}

// TestWaitingMessagesOfABrokenSession: what was sent again after a broken session does not wait twice for memory, or for a handover.
func TestWaitingMessagesOfABrokenSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 2, sums(1, dsm.ApplyArrival))
		home, n := s.nodes[0], s.nodes[1]
		home.open(true)
		n.open(true)
		s.drain()
		home.starving.Store(true)
		s.resized(2 * dsm.ExtentSize)
		put(t, n, 5)
		n.ask("sync", func(ctx context.Context) error { return n.area.Sync(ctx, true) }, nil)
		s.drain()
		few := len(home.area.mu.short.waiting)
		if few == 0 {
			t.Fatal("nothing waits for memory")
		}
		for range 20 {
			home.reset(n)
			n.reset(home)
			s.drain()
		}
		if k := len(home.area.mu.short.waiting); k > few+5 {
			t.Errorf("%d messages wait for memory, where %d did before sessions broke", k, few)
		}
		home.starving.Store(false)
		s.pass(shortRetryMost)
		s.calm()
		want(t, home, 5)
	})
}
