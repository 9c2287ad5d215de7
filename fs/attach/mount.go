package attach

import (
	"context"
	"os"
	"time"

	"github.com/dsmfs/dsmfs/groups"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/head"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// Mount is what the memory plane needs of the filesystem.
type Mount interface {
	Getattr(ctx context.Context, ino dsm.Ino) (dsm.Inode, error)
	Lookup(ctx context.Context, dir dsm.Ino, name string) (dsm.Inode, error)
	// Create makes a regular file, as creat(2) of a program with these credentials would. The
	// caller has checked that the program may write in dir.
	Create(ctx context.Context, who *dsm.Credentials, dir dsm.Inode, name string, n dsm.Inode, settings []dsm.Setting) (dsm.Inode, error)
	// CreateUnnamed makes a regular file without a name, as Create would make one in dir, and opens it
	// for writing. It is removed when it is closed, unless Link has given it a name.
	CreateUnnamed(ctx context.Context, who *dsm.Credentials, dir, n dsm.Inode, settings []dsm.Setting) (Area, dsm.Inode, error)
	// Link gives a file another name. The caller has checked that the program may write in dir.
	Link(ctx context.Context, ino, dir dsm.Ino, name string) (dsm.Inode, error)
	// CheckSetting refuses a key that is not a setting.
	CheckSetting(key string) error
	// IsOpen reports whether a program of this node has the file open.
	IsOpen(ino dsm.Ino) bool
	// Open opens a file for a program that will map its working copy, as an open file of the mount
	// would.
	Open(ctx context.Context, ino dsm.Ino, write bool) (Area, error)
	// Release runs the end of an attachment in the background. A node that is short of memory waits
	// for it. Background runs work for which such a node must not wait: it may take as long as a
	// program keeps a mapping.
	Release(func())
	Background(func())
	// Rounds returns an area as a round needs it, for a program that has it open in the mount and does not attach it.
	Rounds(ino dsm.Ino) groups.Area
	// Lasting returns a context for work that no program waits for any more.
	Lasting() (context.Context, context.CancelFunc)
}

// Area is an open area. Its methods may be called from any goroutine.
type Area interface {
	// Close undoes an Open with the same write.
	Close(write bool)
	// Size is the newest size known on this node.
	Size() int64
	// Grown returns when there is memory for [off, off+n), as far as that is in the area.
	Grown(ctx context.Context, off, n int64) error
	// Resize changes the size, and the kernel is told of it. There is memory for it then.
	Resize(ctx context.Context, size int64) (dsm.Inode, error)
	// Contribute hands all stores made so far over to a round, and AbandonRound takes them back: see groups.Area.
	Contribute(ctx context.Context, id dsm.RoundID) error
	AbandonRound(id dsm.RoundID)
	Accumulate(ctx context.Context, id dsm.RoundID, off, n int64, piece func(at, size int64) (*wire.Shared, error)) error
	MayAccumulate(ctx context.Context, off, n int64) error
	// Publish makes all stores made so far visible to other nodes, including stores to mappings.
	Publish(ctx context.Context) error
	// PublishNow is Publish for a goroutine that must not wait: false if it might have to. Otherwise done is called once, perhaps
	// before PublishNow returns.
	PublishNow(limit time.Duration, done func(error)) bool
	// Stats returns figures, one on each line.
	Stats() string

	// The methods below are those of fs.Area.

	// Attach prepares the area for the program, and returns a descriptor of the memory that the
	// program maps.
	Attach(ctx context.Context, program int, write bool) (Attachment, *os.File, error)
	// Reattach is Attach for a program that had attached the area when the daemon before was killed.
	Reattach(program int, write bool, memory uint64) (Attachment, *os.File, error)
	Demand() bool
	// Direct reports whether programs of the node have the memory by the mount: see exclusive attachments in attach.md.
	Direct() bool
	BeginFault(off int64, there func()) bool
	Fault(ctx context.Context, off int64, there func()) error
	Version() dsm.Version
}

// Attachment is fs.Attachment.
type Attachment interface {
	Ready(ctx context.Context) error
	Track(source Source, off, n int64) (stop func())
	// Sync does what msync(2) does.
	Sync(ctx context.Context) error
	Acquire(ctx context.Context) error
	FinishRound(ctx context.Context, id dsm.RoundID, nodes []dsm.NodeID, writers int) error
	Wait(ctx context.Context, v dsm.Version) error
	// Expect is Wait for a call that may go on when the program does something else: updates come in only if they may at any time.
	Expect(ctx context.Context, v dsm.Version) error
	// Own reports whether the program has memory of its own.
	Own() bool
	Watch(l *head.Line)
	Unwatch(l *head.Line)
	// Memory opens the attached memory again, for reading.
	Memory() (*os.File, error)
	// Released says that the program cannot store any more. Detach follows, when its last stores are published.
	Released()
	// Killed is Released for a program that was killed.
	Killed()
	// PublishReleased is Area.Publish of what the program has stored by this attachment. What other programs have in memory of their own is not published, nor anything of a versioned area while programs may
	// store to it otherwise.
	PublishReleased(ctx context.Context) error
	Detach()
}

// Source finds what a program stores into a mapping: see pages.Source.
type Source interface {
	Scan(stored, suspect func(off, n int64)) error
	Disarm() error
	Arm() error
}
