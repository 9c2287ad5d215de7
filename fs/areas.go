package fs

import (
	"context"
	"os"
	"time"

	"github.com/dsmfs/dsmfs/fs/control"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/head"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// Areas is the data plane as fs needs it.
type Areas interface {
	// Open opens an area for one more file handle: it subscribes and acquires.
	// write says that the handle may store. fs opens and closes an area one call
	// at a time. It may wait for notices that are taken meanwhile.
	Open(ctx context.Context, id dsm.AreaID, write bool) (Area, error)
	// Reopen is Open for a handle that a program had when the daemon before was killed.
	Reopen(ctx context.Context, id dsm.AreaID, write bool) (Area, error)
	// Inspect asks the homes about an area, which need not be open here.
	Inspect(ctx context.Context, id dsm.AreaID) (AreaReport, error)
	// Homes returns the homes of an area as this node knows them. It asks nobody.
	Homes(id dsm.AreaID) ([]AreaHome, error)
	// Owner returns the node that owns a versioned area, as this node knows: 0 if none does yet.
	Owner(id dsm.AreaID) dsm.NodeID
	// Transfer makes a node the owner of a versioned area. errs.Busy while programs have it open for writing at its owner.
	Transfer(ctx context.Context, id dsm.AreaID, to dsm.NodeID) error
	// Reclaimed returns when a versioned area that this node owned when the daemon before was killed is its own again, or cannot be.
	Reclaimed(ctx context.Context, id dsm.AreaID) error
	// CountPages asks the homes of an area how many of its pages have bytes other than zero.
	CountPages(ctx context.Context, id dsm.AreaID) (int64, error)
	// Conflicts asks all nodes what was stored to an area on one side of a partition, and given up for what was stored on the other. ClearConflicts drops
	// what a node, or with 0 each, keeps of that, up to a number; 0: all.
	Conflicts(ctx context.Context, id dsm.AreaID) []control.KeptConflicts
	ClearConflicts(ctx context.Context, id dsm.AreaID, node dsm.NodeID, upTo uint64) error
	// KeepPages is called when the filesystem ends, before faults are served for the last time: when
	// it returns no page leaves the working copies any more, which programs keep.
	KeepPages()
	// Stats returns figures since the start, in a fixed order.
	Stats() []control.Stat
}

// Area is an open area: the same one for every handle on this node. It may be
// asked for notices, its version and its size in memory after its last Close too.
type Area interface {
	// Close ends one handle that Open was called for with the same write, CloseReleased one for writing that was Released or Killed.
	Close(write bool)
	CloseReleased()
	// Released says that no more stores come by a handle for writing; CloseReleased follows.
	Released()
	// Killed is Released for a program that was killed: of a versioned area PublishReleased publishes nothing of what it has not published.
	Killed()
	// ReadAt fills p for the kernel's page cache, which is told of later changes.
	// It may fetch, and ends with errs.Timeout when ctx does. n is short at the end
	// of the area: the kernel then takes what it read for the whole file.
	ReadAt(ctx context.Context, p []byte, off int64) (n int, err error)
	// CheckWrite is called before the file grows for a write(2). errs.Invalid if nothing of it could be published. through says that the page
	// cache has the bytes already.
	CheckWrite(p []byte, off int64, through bool) error
	// CheckGrowth is called before the file is made as long as size. errs.NoSpace if memory of its own that programs of this node have takes the room.
	CheckGrowth(size int64) error
	// WriteAt takes over stores. It does not wait for the network, but of an area on demand for
	// room: errs.NoSpace if there is none before ctx ends. Bytes past the
	// end are dropped: somebody has just truncated them.
	WriteAt(ctx context.Context, p []byte, off int64) error
	// ReadBy and WriteBy are ReadAt and WriteAt for direct I/O of a program, which goes past the page cache. program is its process, or 0. A program may have
	// memory of its own (a draft): ReadBy then returns what it has stored there, and what WriteBy wrote is there, too. WriteBy returns when the page cache does
	// not show the bytes of before any more: it may wait for notices, and for READs that those wait for.
	ReadBy(ctx context.Context, program int, p []byte, off int64) (n int, err error)
	WriteBy(ctx context.Context, program int, p []byte, off int64) error
	// Punch stores zeroes, for a program that punches a hole. The page cache has none of the old bytes when it returns.
	// Over says that the thread which has punched it has gone on: the hole is not being punched any more.
	Punch(ctx context.Context, off, n int64) (over func(), err error)
	// WriteBack is WriteAt for stores to mappings, and does not wait for room.
	WriteBack(ctx context.Context, p []byte, off int64) error
	// Grown returns when there is memory for [off, off+n), as far as that is in the file: a moment after it has grown, but when a program has that wait.
	Grown(ctx context.Context, off, n int64) error
	// Growing reports whether Grown may wait.
	Growing() bool
	// KernelShrinks says that the answer to a SETATTR is about to tell the kernel of the size: it writes back
	// nothing past it any more that is from before.
	KernelShrinks(size int64)
	// KernelTold says that an answer of any kind is about to tell the kernel of the size. A READ that is under way may be
	// answered before the kernel has truncated its page cache there.
	KernelTold(size int64)
	// KernelLocks says that a request has come for which the kernel has locked the file, as an FSYNC: no hole is being punched any more.
	KernelLocks()
	// Forfeit takes back what programs have stored under locks that the cluster had dropped.
	Forfeit()
	// KernelDrops says that the kernel is about to be told to drop pages, other than by a notice of NextNotice; ended is
	// called when it has.
	KernelDrops() (ended func())
	// Sync publishes and acquires. Where updates enter memory only in sync calls of programs that store it only publishes,
	// unless storing says that this is one.
	Sync(ctx context.Context, storing bool) error
	// Publish makes the stores taken over so far visible to other nodes. Those of attached
	// programs are looked for first, for which ctx is no bound: see docs/attach.md.
	Publish(ctx context.Context) error
	// PublishNow is Publish for a goroutine that must not wait: false if it might have to. Otherwise done is called once.
	PublishNow(limit time.Duration, done func(error)) bool
	// PublishLast is Publish at close: it does not wait again for homes that a sync or publish before has waited for in vain.
	PublishLast(ctx context.Context) error
	// PublishReleased is Publish after Released. What is left of a versioned area is not published while programs may store to it by other handles.
	PublishReleased(ctx context.Context) (published bool, err error)
	// Acquire brings this node up to every publish that completed before; but memory that lets updates in
	// only in sync calls of programs that store stays as it is unless storing.
	Acquire(ctx context.Context, storing bool) error
	// Contribute, FinishRound and AbandonRound are the steps of a round: see coherence.Area.
	Contribute(ctx context.Context, id dsm.RoundID) error
	FinishRound(ctx context.Context, id dsm.RoundID, nodes []dsm.NodeID, writers int, storing bool) error
	AbandonRound(id dsm.RoundID)
	// Accumulate adds elements to this node's part in a round, and MayAccumulate says beforehand what is wrong with them.
	Accumulate(ctx context.Context, id dsm.RoundID, off, n int64, piece func(at, size int64) (*wire.Shared, error)) error
	MayAccumulate(ctx context.Context, off, n int64) error
	// NextNotice returns what the kernel must be told next; NoticeDone ends it.
	NextNotice() (Notice, bool)
	NoticeDone(n Notice)
	// Demand reports whether pages are in memory only while programs need them: then a program that
	// maps the working copy finds pages missing, and BeginFault and Fault serve it.
	Demand() bool
	// BeginFault asks for the page at off, which a program waits for, and does not wait itself: there is called when the
	// page has come. False: it takes more than asking, and the caller is to call Fault; the caller
	// does that too if the page has not come after a while.
	BeginFault(off int64, there func()) bool
	// Fault returns when the page at off is in the working copy; errs.Timeout when ctx ends before. As soon
	// as the page is there it calls there, with no lock held.
	Fault(ctx context.Context, off int64, there func()) error
	// Attach readies the area, opened before for reading, for a program (a process; 0: unknown; dsm.ByMount) that maps its
	// memory, and returns a descriptor of that: writable if write, but for the mount, or if the area is on demand.
	Attach(ctx context.Context, program int, write bool) (Attachment, *os.File, error)
	// Reattach is Attach for a program that had attached the area when the daemon before was killed, and has mapped the memory with an inode number. It waits for
	// nothing. errs.StaleGen if that memory is gone.
	Reattach(program int, write bool, memory uint64) (Attachment, *os.File, error)
	// CompareTime is what comparing took since the start.
	CompareTime() time.Duration
	// Extended returns the end of what programs have written past the end of the area into
	// the file that Attach returned, 0 for nothing; Trim truncates it.
	Extended() int64
	Trim()
	// Figures says how stores of attached programs were found, and what is in memory.
	Figures() []control.Stat
	// Seek returns the first offset from off on that has data or, if hole, that has none, which the end of the area has not. ok is
	// false if there is none. The stores of the kernel have been delivered before.
	Seek(ctx context.Context, off int64, hole bool) (at int64, ok bool, err error)
	// Counted returns how many pages have data, if this node knows without asking a home.
	Counted() (pages int64, known bool)
	// Recounts reports whether the number of pages with data may have changed by publishes of this node since the last call, or
	// the number that Counted has returned by those of other nodes.
	Recounts() bool
	Version() dsm.Version
	// Versions returns the versions of a versioned area that can be read on this node, the oldest first.
	Versions() []VersionInfo
	// PinVersion keeps a version readable until UnpinVersion; 0 is the newest that is here. errs.Dropped if it is not kept any more,
	// errs.Unavailable if there is none, errs.NoSpace if there is no memory for what changes meanwhile.
	PinVersion(v dsm.Version) (VersionInfo, error)
	// PinToRead is PinVersion for a moment, for which there is always memory. It waits while no version is here yet; errs.Invalid if
	// there is none to wait for, since the area has no bytes.
	PinToRead(ctx context.Context, v dsm.Version) (VersionInfo, error)
	UnpinVersion(v dsm.Version)
	// PauseVersion is UnpinVersion for a program that may go on to read the version.
	PauseVersion(v dsm.Version)
	// GoesOnAt returns the version in which a program goes on that was reading one when the daemon before was killed; 0: that is not known.
	GoesOnAt() dsm.Version
	// ReadVersion fills p with bytes of a pinned version. It never waits. n is short at the end of the version.
	ReadVersion(v dsm.Version, p []byte, off int64) (n int, err error)
	ResidentBytes() int64
	// ModTime returns when the bytes here last changed, zero if they did not.
	ModTime() time.Time
}

// Attachment is a program that maps the memory of an area. Where updates enter memory in sync calls only, a
// program that stores has memory of its own.
type Attachment interface {
	// Ready returns when a program that was attached again (Reattach) may be told.
	Ready(ctx context.Context) error
	// Track takes up a mapping of a program that has attached for writing: source finds
	// what is stored; nil: comparing does. stop takes note of the last stores and ends it.
	Track(source Source, off, n int64) (stop func())
	// Sync and Acquire are those of the area, by this program.
	Sync(ctx context.Context) error
	Acquire(ctx context.Context) error
	FinishRound(ctx context.Context, id dsm.RoundID, nodes []dsm.NodeID, writers int) error
	// Wait returns when the version, or a later one, exists, and acquires then, unless it is 0;
	// errs.Timeout when ctx ends before.
	Wait(ctx context.Context, v dsm.Version) error
	// Expect is Wait for a call that may go on when the program does something else: updates come in only if they may at any time.
	Expect(ctx context.Context, v dsm.Version) error
	// Memory opens the memory once more, for reading.
	Memory() (*os.File, error)
	// Own reports whether the program has memory of its own.
	Own() bool
	// Watch tells a line from now on which version is in the program's memory, until Unwatch.
	Watch(l *head.Line)
	Unwatch(l *head.Line)
	// Released says that the program cannot store any more; Detach follows.
	Released()
	// Killed is Released for a program that was killed: of a versioned area PublishReleased publishes nothing of what it has not published.
	Killed()
	// PublishReleased is Area.PublishReleased of what the program has stored by this attachment, and not of what others have in memory of their own.
	PublishReleased(ctx context.Context) (published bool, err error)
	// Detach ends it, before Area.Close.
	Detach()
}

// Source finds what a program stores into a mapping: see pages.Source.
type Source interface {
	Scan(stored, suspect func(off, n int64)) error
	Disarm() error
	Arm() error
}

// AreaReport is what the homes of an area know of it.
type AreaReport struct {
	Version     dsm.Version
	Subscribers []dsm.NodeID // distinct, sorted
}

// VersionInfo is what is known of a version of a versioned area. Version.Time is when it was made.
type VersionInfo struct {
	Version dsm.Version
	Size    int64
	Writer  dsm.NodeID // who published it; 0: not known any more
}

// AreaHome is a home of an area.
type AreaHome struct {
	Node    dsm.NodeID
	Sources []dsm.NodeID // the nodes that are handing their parts of the area over to it
	Backups []dsm.NodeID // the nodes that have copies of parts of it, and can take over
	Filling []dsm.NodeID // the nodes that are getting copies
}

// PageCache is what fs gives the data plane. Its methods never block; they are
// called with no lock held. *FS implements it.
type PageCache interface {
	// Changed says that Area.NextNotice may have something. It is called again while it may.
	Changed(id dsm.AreaID)
	// AttrChanged says that the size or the spec of the area changed.
	AttrChanged(id dsm.AreaID)
	// Miscounted says that Area.Recounts has become true by a publish of another node.
	Miscounted(id dsm.AreaID)
	// Removed says that the area has no name, and no node claims it.
	Removed(id dsm.AreaID)
}

var _ PageCache = (*FS)(nil)
