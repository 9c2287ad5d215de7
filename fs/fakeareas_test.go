package fs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dsmfs/dsmfs/fs/control"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/head"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// fakeAreas is a data plane without other nodes; tests play these by changing
// the bytes of an area and queueing notices.
type fakeAreas struct {
	names *fakeNames
	cache PageCache
	pages atomic.Int64 // of every area, with data; -1: all

	mu    sync.Mutex
	areas map[dsm.AreaID]*fakeArea
	// told says that areas know their number of pages; asked counts the calls of CountPages.
	told  atomic.Bool
	quiet atomic.Bool // this node publishes nothing
	asked atomic.Int64
	owner atomic.Uint64 // of every area

	conflicts []control.KeptConflicts
	cleared   []string // NODE/NUMBER, as ClearConflicts was told
}

// fakeArea is one area. Hooks are set before the area is used.
type fakeArea struct {
	id    dsm.AreaID
	plane *fakeAreas

	mu        sync.Mutex
	changed   chan struct{} // closed and replaced at every change
	data      []byte        // working copy
	published []byte
	wrote     []string // WriteAt calls, in order
	opens     int
	writers   int
	syncs     int
	publishes int
	acquires  int
	modTime   time.Time
	notices   []Notice
	done      int // notices done
	syncErr   error
	versions  []*fakeVersion
	goesOn    dsm.Version  // see GoesOnAt
	full      atomic.Bool  // there is no memory for older versions
	untyped   atomic.Bool  // CheckWrite refuses
	most      atomic.Int64 // CheckGrowth refuses more; 0: nothing
	told      []int64      // sizes that answers told the kernel

	// merge replaces copying a WRITE into data; called with mu held.
	merge func(p []byte, off int64)
	// gave is told of what a READ returned; called with mu held.
	gave func(p []byte, off int64)
	// block, if not nil, is waited for by ReadAt.
	block chan struct{}
	// attach is Attach; nil: it is refused.
	attach func() (*os.File, error)
	// onSync is called by Sync, without mu.
	onSync    func()
	lasts     int // calls of PublishLast
	abandoned int
	// lost says that bytes are lost: an open fails while the file is not empty.
	lost atomic.Bool
	// stall, if not nil, is waited for by Sync, Publish and Acquire, whose context is sent to stalled.
	stall   chan struct{}
	stalled chan context.Context
	// freed, if not nil, is waited for by Grown.
	freed chan struct{}
}

func newFakeAreas(names *fakeNames) *fakeAreas {
	p := &fakeAreas{names: names, areas: make(map[dsm.AreaID]*fakeArea)}
	p.pages.Store(-1)
	if names != nil {
		names.resized = func(ino dsm.Ino) {
			a := p.area(dsm.AreaID(ino))
			a.update(a.shrinkLocked)
		}
	}
	return p
}

// area returns the area, making it: tests may set it up before it is opened.
func (p *fakeAreas) area(id dsm.AreaID) *fakeArea {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.areas[id]
	if a == nil {
		a = &fakeArea{id: id, plane: p, changed: make(chan struct{})}
		p.areas[id] = a
	}
	return a
}

func (p *fakeAreas) Reopen(ctx context.Context, id dsm.AreaID, write bool) (Area, error) {
	return p.Open(ctx, id, write)
}

func (p *fakeAreas) Open(ctx context.Context, id dsm.AreaID, write bool) (Area, error) {
	a := p.area(id)
	if a.lost.Load() {
		if i, err := p.names.Getattr(ctx, dsm.Ino(id)); err != nil || i.Size > 0 {
			return nil, errs.E(errs.Unavailable, "open", "%w", errs.ErrLost)
		}
	}
	a.update(func() {
		a.opens++
		if write {
			a.writers++
		}
	})
	return a, nil
}

func (p *fakeAreas) Inspect(_ context.Context, id dsm.AreaID) (AreaReport, error) {
	return AreaReport{Version: 4711, Subscribers: []dsm.NodeID{0xc}}, nil
}

func (p *fakeAreas) Homes(dsm.AreaID) ([]AreaHome, error) {
	return []AreaHome{{Node: 0xa}, {Node: 0xb, Sources: []dsm.NodeID{0xc, 0xd}, Backups: []dsm.NodeID{0xe}, Filling: []dsm.NodeID{0xa, 0xf}}}, nil
}

func (p *fakeAreas) CountPages(_ context.Context, id dsm.AreaID) (int64, error) {
	p.asked.Add(1)
	if n := p.pages.Load(); n >= 0 {
		return n, nil
	}
	a := p.area(id)
	a.mu.Lock()
	defer a.mu.Unlock()
	return int64(len(a.data)+dsm.PageSize-1) / dsm.PageSize, nil
}

func (p *fakeAreas) KeepPages() {}

func (p *fakeAreas) Conflicts(context.Context, dsm.AreaID) []control.KeptConflicts {
	return p.conflicts
}

func (p *fakeAreas) ClearConflicts(_ context.Context, _ dsm.AreaID, node dsm.NodeID, upTo uint64) error {
	p.cleared = append(p.cleared, fmt.Sprintf("%d/%d", node, upTo))
	return nil
}

func (p *fakeAreas) Stats() []control.Stat {
	return []control.Stat{{Name: "publishes", Value: "3"}, {Name: "pushes", Value: "4"}}
}

// update changes the area and wakes await.
func (a *fakeArea) update(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
	close(a.changed)
	a.changed = make(chan struct{})
}

// await returns whether cond, called under the lock, came true in time.
func (a *fakeArea) await(timeout time.Duration, cond func() bool) bool {
	end := time.After(timeout)
	for {
		a.mu.Lock()
		ok, changed := cond(), a.changed
		a.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-changed:
		case <-end:
			return false
		}
	}
}

// fakeState is what tests want to know of an area.
type fakeState struct {
	published                                  string
	opens, writers, syncs, publishes, acquires int
}

func (a *fakeArea) state() fakeState {
	a.mu.Lock()
	defer a.mu.Unlock()
	return fakeState{string(a.published), a.opens, a.writers, a.syncs, a.publishes, a.acquires}
}

// shrinkLocked forgets what is past the end of the file.
func (a *fakeArea) shrinkLocked() {
	a.data = a.data[:min(int64(len(a.data)), a.plane.names.size(a.id))]
}

// fitLocked brings the working copy to the size of the file. What was truncated is
// zero when it grows again.
func (a *fakeArea) fitLocked() {
	a.shrinkLocked()
	a.data = append(a.data, make([]byte, a.plane.names.size(a.id)-int64(len(a.data)))...)
}

func (a *fakeArea) Close(write bool) {
	a.update(func() {
		a.opens--
		if write {
			a.writers--
		}
	})
}

func (a *fakeArea) CloseReleased() { a.Close(true) }

func (a *fakeArea) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	a.mu.Lock()
	block := a.block
	a.mu.Unlock()
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
			return 0, &errs.Error{Op: "read", Area: a.id, Kind: errs.Timeout, Err: ctx.Err()}
		}
	}
	n := 0
	a.update(func() {
		a.fitLocked()
		if off < int64(len(a.data)) {
			n = copy(p, a.data[off:])
		}
		if a.gave != nil {
			a.gave(p[:n], off)
		}
	})
	return n, nil
}

func (a *fakeArea) ReadBy(ctx context.Context, _ int, p []byte, off int64) (int, error) {
	return a.ReadAt(ctx, p, off)
}

func (a *fakeArea) WriteBy(ctx context.Context, _ int, p []byte, off int64) error {
	return a.WriteAt(ctx, p, off)
}

func (a *fakeArea) Punch(ctx context.Context, off, n int64) (over func(), err error) {
	return func() {}, a.WriteAt(ctx, make([]byte, n), off)
}

func (a *fakeArea) Grown(ctx context.Context, _, _ int64) error {
	if a.freed == nil {
		return nil
	}
	select {
	case <-a.freed:
		return nil
	case <-ctx.Done():
		return errs.E(errs.Timeout, "grow", "")
	}
}

func (a *fakeArea) Growing() bool { return a.freed != nil }

func (a *fakeArea) WriteBack(_ context.Context, p []byte, off int64) error {
	return a.WriteAt(context.Background(), p, off)
}

func (a *fakeArea) KernelDrops() func()   { return func() {} }
func (a *fakeArea) KernelShrinks(int64)   {}
func (a *fakeArea) KernelLocks()          {}
func (a *fakeArea) Forfeit()              {}
func (a *fakeArea) KernelTold(size int64) { a.update(func() { a.told = append(a.told, size) }) }

func (a *fakeArea) CheckGrowth(size int64) error {
	if most := a.most.Load(); most > 0 && size > most {
		return errs.E(errs.NoSpace, "grow", "")
	}
	return nil
}

func (a *fakeArea) CheckWrite([]byte, int64, bool) error {
	if a.untyped.Load() {
		return errs.E(errs.Invalid, "write", "")
	}
	return nil
}

func (a *fakeArea) WriteAt(_ context.Context, p []byte, off int64) error {
	a.update(func() {
		a.fitLocked()
		a.modTime = time.Now()
		a.wrote = append(a.wrote, string(bytes.TrimRight(p[:min(len(p), 32)], "\x00")))
		p = p[:max(min(int64(len(p)), int64(len(a.data))-off), 0)]
		if a.merge != nil {
			a.merge(p, off)
		} else if len(p) > 0 {
			copy(a.data[off:], p)
		}
	})
	return nil
}

// wait waits while the area's home is silent.
func (a *fakeArea) wait(ctx context.Context) error {
	a.mu.Lock()
	stall := a.stall
	a.mu.Unlock()
	if stall == nil {
		return nil
	}
	a.stalled <- ctx
	select {
	case <-stall:
		return nil
	case <-ctx.Done():
		return &errs.Error{Op: "publish", Area: a.id, Kind: errs.Timeout, Err: ctx.Err()}
	}
}

func (a *fakeArea) Sync(ctx context.Context, _ bool) error {
	if err := a.wait(ctx); err != nil {
		return err
	}
	a.mu.Lock()
	onSync := a.onSync
	a.mu.Unlock()
	if onSync != nil {
		onSync()
	}
	var err error
	a.update(func() {
		a.syncs++
		if err = a.syncErr; err == nil {
			a.published = bytes.Clone(a.data)
		}
	})
	return err
}

func (a *fakeArea) PublishNow(time.Duration, func(error)) bool { return false }

func (a *fakeArea) Publish(ctx context.Context) error {
	if err := a.wait(ctx); err != nil {
		return err
	}
	var err error
	a.update(func() {
		a.publishes++
		if err = a.syncErr; err == nil {
			a.published = bytes.Clone(a.data)
		}
	})
	return err
}

func (a *fakeArea) PublishLast(ctx context.Context) error {
	a.update(func() { a.lasts++ })
	return a.Publish(ctx)
}

func (a *fakeArea) Killed() { a.update(func() { a.abandoned++ }) }

func (a *fakeArea) PublishReleased(ctx context.Context) (bool, error) { return true, a.Publish(ctx) }

func (a *fakeArea) Acquire(ctx context.Context, _ bool) error {
	if err := a.wait(ctx); err != nil {
		return err
	}
	a.update(func() { a.acquires++ })
	return nil
}

func (a *fakeArea) Contribute(ctx context.Context, _ dsm.RoundID) error { return a.Publish(ctx) }
func (a *fakeArea) MayAccumulate(context.Context, int64, int64) error   { return nil }
func (a *fakeArea) Accumulate(context.Context, dsm.RoundID, int64, int64, func(at, size int64) (*wire.Shared, error)) error {
	return nil
}
func (a *fakeArea) AbandonRound(dsm.RoundID) {}
func (a *fakeArea) FinishRound(ctx context.Context, _ dsm.RoundID, _ []dsm.NodeID, _ int, storing bool) error {
	return a.Acquire(ctx, storing)
}

func (t fakeAttachment) FinishRound(ctx context.Context, _ dsm.RoundID, _ []dsm.NodeID, _ int) error {
	return t.fakeArea.Acquire(ctx, true)
}

// tell queues a notice and says so.
func (a *fakeArea) tell(n Notice) {
	a.update(func() { a.notices = append(a.notices, n) })
	a.plane.cache.Changed(a.id)
}

func (a *fakeArea) NextNotice() (Notice, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.notices) == 0 {
		return Notice{}, false
	}
	n := a.notices[0]
	a.notices = a.notices[1:]
	return n, true
}

func (a *fakeArea) NoticeDone(Notice) { a.update(func() { a.done++ }) }

func (a *fakeArea) Version() dsm.Version { return 1 }

func (a *fakeArea) Recounts() bool { return !a.plane.quiet.Load() }

func (a *fakeArea) Counted() (int64, bool) { return a.plane.pages.Load(), a.plane.told.Load() }

func (a *fakeArea) Seek(_ context.Context, off int64, hole bool) (int64, bool, error) {
	size := int64(len(a.data))
	if hole {
		return size, off < size, nil
	}
	return off, off < size, nil
}

func (a *fakeArea) ResidentBytes() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return (int64(len(a.data)) + dsm.PageSize - 1) / dsm.PageSize * dsm.PageSize
}

func (a *fakeArea) ModTime() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.modTime
}

// The memory plane is tested with the real data plane.

func (a *fakeArea) Attach(context.Context, int, bool) (Attachment, *os.File, error) {
	if a.attach == nil {
		return nil, nil, errs.E(errs.Unsupported, "attach", "")
	}
	f, err := a.attach()
	return fakeAttachment{a}, f, err
}

func (a *fakeArea) Reattach(int, bool, uint64) (Attachment, *os.File, error) {
	return a.Attach(context.Background(), 0, false)
}

type fakeAttachment struct{ *fakeArea }

func (t fakeAttachment) Sync(ctx context.Context) error          { return t.fakeArea.Sync(ctx, true) }
func (t fakeAttachment) Acquire(ctx context.Context) error       { return t.fakeArea.Acquire(ctx, true) }
func (fakeAttachment) Wait(context.Context, dsm.Version) error   { return nil }
func (fakeAttachment) Expect(context.Context, dsm.Version) error { return nil }
func (fakeAttachment) Watch(*head.Line)                          {}
func (fakeAttachment) Unwatch(*head.Line)                        {}
func (fakeAttachment) Memory() (*os.File, error)                 { return nil, errs.E(errs.NotExist, "memory", "") }
func (fakeAttachment) Ready(context.Context) error               { return nil }
func (fakeAttachment) Own() bool                                 { return false }
func (fakeAttachment) Killed()                                   {}
func (fakeAttachment) Released()                                 {}
func (fakeAttachment) Detach()                                   {}
func (fakeAttachment) Track(Source, int64, int64) func()         { return func() {} }
func (a *fakeArea) Released()                                    {}
func (a *fakeArea) Demand() bool                                 { return false }
func (a *fakeArea) BeginFault(int64, func()) bool                { return false }
func (a *fakeArea) Fault(context.Context, int64, func()) error   { return nil }
func (a *fakeArea) CompareTime() time.Duration                   { return 0 }
func (a *fakeArea) Extended() int64                              { return 0 }
func (a *fakeArea) Trim()                                        {}
func (a *fakeArea) Figures() []control.Stat                      { return nil }
