package fs

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync/atomic"

	"github.com/dsmfs/dsmfs/fs/control"
	"github.com/dsmfs/dsmfs/fs/harvest"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/lockrank"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// bridge answers the requests of the kernel. Its methods with the kernel's
// names are called by go-fuse, each in its own goroutine; what is not there is
// ENOSYS, at which the kernel does without: SEEK_DATA and SEEK_HOLE then see
// no holes, copy_file_range reads and writes.
type bridge struct {
	fuse.RawFileSystem // ENOSYS

	cfg       Config
	resuming  atomic.Bool // what programs had open is being opened again
	log       *slog.Logger
	opens     *opens
	handles   handleTable
	dirs      openDirs
	retries   retries
	punched   atomic.Pointer[punch] // the last hole, until the thread goes on that has punched it
	lookups   lookups
	talks     talks
	root      atomic.Pointer[dsm.Inode] // as the kernel was last told, nil before that
	failed    recently[uint32, failedRead]
	unfound   recently[uint32, place]
	notify    *notifier
	control   *control.Tree
	harvest   *harvest.Harvester
	freer     *harvest.Freer
	intervals intervals
	claims    claims
	pages     pageCounts
	aliases   aliases
	walks     walks
	// walksTwice is the function of that name; tests replace it.
	walksTwice func(*request) bool
	count      counts

	walIndexes walIndexes
	versions   versions

	passthrough passthrough
	held        heldFiles
	device      string // major:minor of the mount

	life       context.Context // ends when the filesystem is going away
	end        context.CancelFunc
	background tasks
	// releases close handles in the background which the kernel has closed. A removed file gives its
	// memory back only then. So whoever is told that memory is short waits for them and tries once more.
	// What follows a close, and an unmount waits for, is one too.
	releases tasks
}

// counts are the figures of fs in /.dsm/stats.
type counts struct {
	reads, writes, stored, invalidated atomic.Uint64
}

func newBridge(cfg Config) *bridge {
	b := &bridge{RawFileSystem: fuse.NewDefaultRawFileSystem(), cfg: cfg, log: cfg.Log}
	b.life, b.end = context.WithCancel(context.Background())
	b.retries.init()
	b.lookups.init()
	b.talks.init()
	b.aliases.init()
	b.walks.init()
	b.walksTwice = walksTwice
	b.walIndexes.init(b)
	b.versions.init(b)
	b.failed.init(failedWindow)
	b.unfound.init(cfg.unfoundWindow)
	b.background.init()
	b.releases.init()
	b.claims.init(b)
	b.pages.init(b)
	b.opens = newOpens(b)
	b.handles.init()
	b.held.init(b)
	b.dirs.init()
	b.notify = &notifier{b: b, server: noKernel{}}
	b.harvest = harvest.New(harvest.Config{
		Argv: cfg.HarvestArgv, Dir: filepath.Join(cfg.Mountpoint, control.Name, control.InoDirName), Log: b.log, Timeout: cfg.FaultTimeout,
		Life: b.life, Live: b.liveAreas, Background: b.background.run,
	})
	b.freer = harvest.NewFreer(cfg.HarvestArgv, b.log)
	b.control = b.newControl()
	b.intervals = intervals{b}
	return b
}

// lasting returns a context for what is done when no program waits for it.
func (b *bridge) lasting() (context.Context, context.CancelFunc) {
	return context.WithTimeout(b.life, b.cfg.FaultTimeout)
}

func (b *bridge) String() string { return "dsmfs" }

// liveAreas returns what the harvester is for.
func (b *bridge) liveAreas() (live []harvest.Area) {
	for _, a := range b.opens.all((*openArea).Live) {
		live = append(live, a)
	}
	return live
}

// stats returns the figures of fs.
func (b *bridge) stats() []control.Stat {
	open := b.opens.all(func(a *openArea) bool { return a.handles() > 0 })
	writable := 0
	for _, a := range open {
		if a.live.Load() > 0 || a.direct.writers.Load() > 0 {
			writable++
		}
	}
	return []control.Stat{
		control.Figure("open_areas", len(open)),
		control.Figure("writable_areas", writable),
		control.Figure("reads", b.count.reads.Load()),
		control.Figure("writes", b.count.writes.Load()),
		control.Figure("requested_harvests", b.harvest.Asked()),
		control.Figure("kernel_stores", b.count.stored.Load()),
		control.Figure("kernel_invalidations", b.count.invalidated.Load()),
	}
}

// handle is what an open file or directory of the mount is to the daemon.
type handle interface{ isHandle() }

// handleTable maps the numbers the kernel is given to handles.
type handleTable struct {
	mu struct {
		lockrank.RWMutex
		next    uint64
		open    map[uint64]handle
		late    int           // how many are lateHandles
		removed chan struct{} // closed when one is removed; nil if nobody waits
	}
}

func (t *handleTable) init() {
	t.mu.Init("fs.handleTable")
	t.mu.open = make(map[uint64]handle)
}

func (t *handleTable) add(h handle) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.next++
	t.setLocked(t.mu.next, h)
	return t.mu.next
}

func (t *handleTable) setLocked(fh uint64, h handle) {
	if _, was := t.mu.open[fh].(*lateHandle); was {
		t.mu.late--
	}
	if _, is := h.(*lateHandle); is {
		t.mu.late++
	}
	t.mu.open[fh] = h
}

// put adds a handle under a number that the kernel knows already.
func (t *handleTable) put(fh uint64, h handle) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.setLocked(fh, h)
}

// begin has numbers begin after one.
func (t *handleTable) begin(after uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.next = after
}

func (t *handleTable) remove(fh uint64) handle {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.mu.open[fh]
	t.setLocked(fh, nil)
	delete(t.mu.open, fh)
	if t.mu.removed != nil {
		close(t.mu.removed)
		t.mu.removed = nil
	}
	return h
}

// get returns the handle of a request.
func (t *handleTable) get(fh uint64) handle {
	t.mu.RLock()
	defer t.mu.RUnlock()
	h := t.mu.open[fh]
	if f, ok := h.(*fileHandle); ok && !f.area.used.Load() {
		f.area.used.Store(true)
	}
	return h
}

// fileHandle is an open area.
type fileHandle struct {
	area    *openArea
	write   bool
	past    bool     // the kernel reads and writes by it past its page cache
	streams *streams // if what is read by it is of one version; or nil
	owners  lockOwners
	program int          // that opened it to write; a thread where that is enough
	leave   func()       // lets go of the index of a write-ahead log; or nil
	opener  opener       // likewise, of a versioned area
	given   atomic.Bool  // that process has closed a descriptor of it: see closedByChild
	flushed atomic.Int64 // when a descriptor of it was closed last, in nanoseconds; 0: never
}

func newFileHandle(a *openArea, write bool) *fileHandle {
	h := &fileHandle{area: a, write: write}
	h.owners.mu.Init("fs.lockOwners")
	return h
}

// childHandle is the harvester's: it does not count as one.
type childHandle struct{}

// dirHandle is an open directory: its entries as they were when it was opened or
// rewound. The place of an entry is its offset.
type dirHandle struct {
	mu struct {
		lockrank.Mutex
		entries []dsm.DirEntry // not changed, only replaced
		listed  bool
	}
}

// listed returns the entries; ok is false if they have not been asked for.
func (h *dirHandle) listed() (entries []dsm.DirEntry, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.entries, h.mu.listed
}

func (h *dirHandle) list(entries []dsm.DirEntry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.entries, h.mu.listed = entries, true
}

func newDirHandle() *dirHandle {
	h := new(dirHandle)
	h.mu.Init("fs.dirHandle")
	return h
}

func (*fileHandle) isHandle()   {}
func (childHandle) isHandle()   {}
func (*dirHandle) isHandle()    {}
func (controlHandle) isHandle() {}
