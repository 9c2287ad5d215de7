package coherence

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
	"github.com/dsmfs/dsmfs/pages"
)

// PastFreer is a page cache that also frees memory of a memfd from an offset on: see pages.FreePast. It may wait for ever, and should do
// so in a process that can be left behind: errs.Busy if too many wait, errs.Closed when the node ends.
type PastFreer interface {
	FreePast(fd int, from int64) error
}

// PageCache is the kernel's page cache as the data plane needs it. Its methods are called with no
// lock held and never block.
type PageCache interface {
	// Changed says that Area.NextNotice may have something. It is called again while it may.
	Changed(id dsm.AreaID)
	// AttrChanged says that the size or the rules of the area changed.
	AttrChanged(id dsm.AreaID)
	// Miscounted says that Area.Recounts has become true by a publish of another node.
	Miscounted(id dsm.AreaID)
	// Removed says that the area is gone.
	Removed(id dsm.AreaID)
}

// Config is what a Node needs.
type Config struct {
	Self   dsm.NodeID
	View   View
	Sender Sender
	Log    *slog.Logger
	// Linger is how long an area that no program has open stays subscribed; 0
	// means DefaultLinger.
	Linger time.Duration
	// Memory is how many bytes areas may take on this node; pages on demand get what other areas
	// leave. 0: no limit.
	Memory int64
	// UnderWay is how many bytes of pages may be sent to other nodes and not answered, to all of them together, and how many more to
	// backups; 0: no limit but that of each link.
	UnderWay int64
	// Taken, if not nil, is told how many bytes there may be outside Go's heap, now and then when that has changed. It is called with no
	// lock held, and must not block.
	Taken func(bytes int64)
	// Store, if not nil, keeps the areas for the daemon that follows this one: see held.go.
	Store *pages.Keep
	// RoundPatience is how long parts of a round stay that an earlier daemon has left, if nobody ends the round; 0 means DefaultRoundPatience.
	RoundPatience time.Duration
	// Unheld, if not nil, is told why no other daemon can follow this one.
	Unheld func(why string)
	// MayEnd says that a program may have of an area what no other daemon could go on with: Unheld is called then. Otherwise it is refused.
	MayEnd bool
	// LocksLost, if not nil, reports whether programs of this node believe to have locks of the file that the cluster has dropped. It is called with the
	// area's lock held.
	LocksLost func(dsm.AreaID) bool
	// First is the number after which messages and publishes are numbered: above those of any daemon before.
	First uint64
	// Now is the clock from which versions are made; nil means time.Now.
	Now func() time.Time
}

// DefaultLinger keeps an area subscribed between a program that closes it and the next one that
// opens it.
const DefaultLinger = 10 * time.Second

// Node is the data plane of one node.
type Node struct {
	cfg   Config
	cache atomic.Pointer[PageCache]
	stats stats
	ages  ages

	// received[s] is the epoch at which this node, as the new primary of slot
	// s, has got all its state; until then requests to it are parked.
	received [dsm.Slots + dsm.MaxOwnSlots]atomic.Uint64

	newest *atomic.Uint64 // newest version of any area; if the node has a holder, the next daemon goes on with it
	floor  atomic.Uint64  // homes on this node draw later versions: see HandoverDone

	mu struct {
		lockrank.Mutex
		areas    map[dsm.AreaID]*Area
		closed   bool
		left     *time.Timer                 // see endLeftLater
		versions map[dsm.AreaID]leftVersions // what the daemon before has said of them
	}
	handovers handovers
	links     links
	copyLinks links // for what backups are told: pushes that have taken credit wait for their acks
	fillLinks links // likewise, while they are being filled
	fills     fills
	scrub     scrub
	room      room
	keeps     atomic.Bool // KeepPages was called
	resuming  atomic.Bool // between Resume and Resumed
	ledger    ledger

	newMemory     func(id dsm.AreaID, size int64, demand bool) (*pages.Area, error) // tests make it fail
	resize        func(mem interface{ Resize(size int64) error }, size int64) error // likewise
	free          func(f func())                                                    // runs what frees memory past the end; tests do that later
	closePatience time.Duration                                                     // see giveWhenClosed

	warned atomic.Int64 // when a failure of these was last logged

	moving atomic.Int64 // how many areas the catalog is being asked to move

	shortAreas atomic.Int64 // how many areas are short

	conflictBytes atomic.Int64  // that conflicts of all areas take
	lastConflict  atomic.Uint64 // the largest number that one of an earlier daemon had
}

// New returns a data plane with no areas. It starts no goroutine.
func New(cfg Config) *Node {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Linger == 0 {
		cfg.Linger = DefaultLinger
	}
	n := &Node{cfg: cfg, newest: new(atomic.Uint64), newMemory: newMemory, resize: resize, free: func(f func()) { go f() }, closePatience: closePatience}
	if cfg.Store != nil {
		n.newMemory = n.heldMemory
		n.newest = cfg.Store.Newest()
		n.floor.Store(n.newest.Load())
	}
	n.mu.Init("coherence.Node")
	n.ledger.Init("coherence.ledger")
	n.mu.areas = make(map[dsm.AreaID]*Area)
	n.handovers.init(n)
	n.links.init(cfg.UnderWay)
	n.copyLinks.init(cfg.UnderWay)
	n.fillLinks.init(cfg.UnderWay / 4)
	n.fillLinks.window = fillWindow
	n.fills.init(n)
	n.scrub.init()
	n.room.init(n)
	return n
}

// SetPageCache says who is told about changes of working copies. Before the call nobody is.
func (n *Node) SetPageCache(c PageCache) {
	n.cache.Store(&c)
	for _, a := range n.all() { // opened before, by a daemon that follows another, so nobody was told
		c.AttrChanged(a.id)
		c.Changed(a.id)
		a.step(a.dropAllPastLocked)
	}
}

// area returns the area, making it if the catalog knows it.
func (n *Node) area(id dsm.AreaID) (*Area, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if a := n.mu.areas[id]; a != nil {
		return a, nil
	}
	if n.mu.closed {
		return nil, errs.E(errs.Closed, "open area", "")
	}
	ino, ok := n.cfg.View.Area(id)
	if !ok || ino.Kind != dsm.KindFile {
		return nil, &errs.Error{Op: "open area", Area: id, Kind: errs.NotExist}
	}
	a := newArea(n, ino)
	n.mu.areas[id] = a
	n.room.keep(1)
	return a, nil
}

// all returns the areas of this node.
func (n *Node) all() []*Area {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make([]*Area, 0, len(n.mu.areas))
	for _, a := range n.mu.areas {
		out = append(out, a)
	}
	return out
}

// known returns the area if this node has it, otherwise nil.
func (n *Node) known(id dsm.AreaID) *Area {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.areas[id]
}

// AreaChanged says that an area has a new size, spec or layout. The catalog calls it in the order
// of its log, before anyone can read the new state.
func (n *Node) AreaChanged(_, now dsm.Inode) {
	if a := n.known(now.Area()); a != nil {
		a.step(func() { a.inodeChangedLocked(now) })
		if c := n.cache.Load(); c != nil {
			(*c).AttrChanged(now.Area())
		}
	}
}

// AreaRemoved says that the area is gone: it has no name, and no node claims it.
func (n *Node) AreaRemoved(ino dsm.Ino) {
	n.mu.Lock()
	a := n.mu.areas[dsm.AreaID(ino)]
	delete(n.mu.areas, dsm.AreaID(ino))
	n.mu.Unlock()
	if a != nil {
		n.room.keep(-1)
		a.step(a.removeLocked)
	}
	if c := n.cache.Load(); c != nil {
		(*c).Removed(dsm.AreaID(ino))
	}
}

// ViewChanged says that there are new members or homes. Every area would see the new view at its
// next step; this makes it happen now.
func (n *Node) ViewChanged(v *dsm.View) {
	go func() {
		for _, a := range n.all() {
			a.step(func() {})
		}
		n.keepServed()
		n.handovers.viewChanged(v)
		n.fills.viewChanged(v)
	}()
}

// Reset says that the whole catalog was replaced by a snapshot.
func (n *Node) Reset() {
	for _, a := range n.all() {
		now, least, gen, ok := n.cfg.View.AreaSince(a.id, a.newestRev())
		if !ok {
			n.AreaRemoved(dsm.Ino(a.id))
			continue
		}
		if gen != 0 {
			a.step(func() { a.shrinkMeanwhileLocked(now, least, gen) })
		}
		n.AreaChanged(now, now)
	}
	n.ViewChanged(n.cfg.View.Current())
}

// SessionReset says that messages to or from peer may have been dropped.
func (n *Node) SessionReset(peer dsm.NodeID) {
	for _, a := range n.all() {
		a.step(func() { a.sessionResetLocked(peer) })
	}
	n.handovers.sessionReset(peer)
	n.fills.sessionReset(peer)
}

// KeepPages stops the freeing of pages, for good: after it has returned, no page leaves the working
// copies, neither by eviction nor because nobody has an area open. It is called before the faults
// of programs are served for the last time: programs keep what they have mapped, and would read
// zeroes in place of a page that left later. Leaving the cluster may take much longer than Linger.
func (n *Node) KeepPages() {
	n.keeps.Store(true)
	for _, a := range n.all() {
		a.step(func() {}) // after the steps that have not seen it
	}
}

// Close releases the memory of every area. Programs must be gone.
func (n *Node) Close() {
	n.mu.Lock()
	n.mu.closed = true
	if n.mu.left != nil {
		n.mu.left.Stop()
	}
	n.mu.Unlock()
	n.handovers.close()
	n.room.ending.Store(true)
	freed := pages.FreeMany()
	for _, a := range n.all() {
		n.AreaRemoved(dsm.Ino(a.id))
	}
	if err := freed(); err != nil {
		n.cfg.Log.Error("memory is not given back", "err", err)
	}
	n.room.close()
}

// waitApplied waits until this node has applied the catalog up to the state for which a message was
// made. If that takes time, messages that wait to be sent to the node from are sent first.
func (n *Node) waitApplied(from dsm.NodeID, rev dsm.Generation, e dsm.Epoch) error {
	if n.cfg.View.WaitApplied(ended, rev, e) == nil {
		return nil
	}
	n.cfg.Sender.Flush(from)
	return n.cfg.View.WaitApplied(context.Background(), rev, e)
}

// ended is a context that has ended.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()
