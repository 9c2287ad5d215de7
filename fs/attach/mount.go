package attach

import (
	"context"
	"os"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// Mount is what the memory plane needs of the filesystem.
type Mount interface {
	Getattr(ctx context.Context, ino dsm.Ino) (dsm.Inode, error)
	Lookup(ctx context.Context, dir dsm.Ino, name string) (dsm.Inode, error)
	// Create makes a regular file as creat(2) of a program with these credentials does, which may write in dir.
	Create(ctx context.Context, who *dsm.Credentials, dir dsm.Inode, name string, n dsm.Inode, settings []dsm.Setting) (dsm.Inode, error)
	// CheckSetting refuses what is no setting.
	CheckSetting(key string) error
	// IsOpen reports whether a program of this node has the file open.
	IsOpen(ino dsm.Ino) bool
	// Open opens a file for a program that maps its working copy, as a handle of the mount would be.
	Open(ctx context.Context, ino dsm.Ino, write bool) (Area, error)
	// Release runs the end of an attachment in the background: whoever is told that memory is short
	// waits for it. Background runs what may take as long as a program keeps a mapping.
	Release(func())
	Background(func())
	// Lasting returns a context for what is done when no program waits for it any more.
	Lasting() (context.Context, context.CancelFunc)
}

// Area is an open area. Its methods are safe for concurrent use.
type Area interface {
	// Close ends what Open, with the same write, began.
	Close(write bool)
	// Size is the newest known here.
	Size() int64
	// Resize changes the size; the kernel's idea of it follows.
	Resize(ctx context.Context, size int64) (dsm.Inode, error)
	// Publish makes all stores so far visible to other nodes, those to mappings too.
	Publish(ctx context.Context) error
	// Stats returns figures, a line for each.
	Stats() string

	// What follows is of the data plane: see fs.Area.

	// Attach readies the area for the program, and returns a descriptor of the memory for it to map.
	Attach(ctx context.Context, program int, write bool) (Attachment, *os.File, error)
	Demand() bool
	BeginFault(off int64, there func()) bool
	Fault(ctx context.Context, off int64, there func()) error
	Wait(ctx context.Context, v dsm.Version) error
	Version() dsm.Version
}

// Attachment is what a program has attached: see fs.Attachment.
type Attachment interface {
	Track(source Source, off, n int64) (stop func())
	// Sync is msync(2).
	Sync(ctx context.Context) error
	Acquire(ctx context.Context) error
	// Memory opens what was attached once more, for reading.
	Memory() (*os.File, error)
	Detach()
}

// Source finds what a program stores into a mapping: see pages.Source.
type Source interface {
	Scan(stored, suspect func(off, n int64)) error
	Disarm() error
	Arm() error
}
