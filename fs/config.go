package fs

import (
	"log/slog"
	"time"

	"github.com/dsmfs/dsmfs/fs/control"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/hold"
	"github.com/dsmfs/dsmfs/internal/uffd"
	"github.com/dsmfs/dsmfs/locks"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// DefaultFaultTimeout is how long a request may wait for other nodes.
const DefaultFaultTimeout = 30 * time.Second

// Config is what a mount needs.
type Config struct {
	// Mountpoint is an existing directory; Mount makes it absolute. If it is empty nothing is
	// mounted, and only programs that attach use the filesystem.
	Mountpoint string
	// Source is what df and mount(8) show as the source of the mount; empty means dsmfs.
	Source string
	Names  Names
	Areas  Areas
	Info   control.Info
	// Locks are the locks of this node's programs. If it is nil the kernel decides on locks by
	// itself, and other nodes do not see them.
	Locks *locks.Node
	// Groups are the groups that programs of this node join. If it is nil there are none.
	Groups Groups
	Log    *slog.Logger
	// HarvestArgv is the command of the harvester's child: a process that calls
	// harvest.Main with its standard input and output.
	HarvestArgv []string
	// GuardArgv is the command of the guard: a process that calls attach.GuardMain with its
	// standard input. It is started when a program attaches an area on demand.
	GuardArgv []string
	// AttachSocket is the socket through which programs attach; empty for none.
	AttachSocket string
	// Tracking is how stores of these programs are found.
	Tracking uffd.Mode
	// TrackingReason says why no better way is used; empty if there is none.
	TrackingReason string
	// PassthroughOff says why no file may be direct even if the kernel supports it; empty if files
	// may be.
	PassthroughOff string
	// Held, if not nil, has what outlives the daemon: see held.go. Device is then the descriptor of /dev/fuse, of which the holder
	// has another.
	// ClaimedFiles are the files that this node claims in the catalog.
	// Descriptors has what outlives it beside that.
	// Unheld is told why no other daemon can follow this one. MayEnd says that programs may have what no other could go on with.
	Held         *hold.Memory
	Unheld       func(why string)
	MayEnd       bool
	Device       int
	ClaimedFiles []dsm.Ino
	Descriptors  hold.Descriptors
	// FaultTimeout ends every request of the kernel; 0 means DefaultFaultTimeout.
	FaultTimeout time.Duration
	// UnmountTimeout is how long Unmount waits for a mount that is in use; 0 means
	// DefaultUnmountTimeout.
	UnmountTimeout time.Duration
	// Resumed, if not nil, is called when what programs had open is open again, before any request is served.
	Resumed func()
	// LocksLost says that the cluster has given up the locks that programs had: LoseLocks has told Locks.
	LocksLost bool

	// owner and started are shown as owner and times of the files of /.dsm.
	owner   fuse.Owner
	started time.Time
	// These are changed by tests only; 0 means the constant.
	keepLimit, unfoundWindow time.Duration
}

// DefaultUnmountTimeout leaves programs that were just told to end the time to do so.
const DefaultUnmountTimeout = 5 * time.Second

func (c *Config) check() error {
	switch {
	case c.Names == nil || c.Areas == nil || c.Info == nil || c.Log == nil:
		return errs.E(errs.Invalid, "mount", "incomplete configuration")
	case c.Held != nil && (c.Mountpoint == "" || c.Descriptors == nil || c.Unheld == nil):
		return errs.E(errs.Invalid, "mount", "incomplete configuration of what is held")
	case len(c.HarvestArgv) == 0:
		return errs.E(errs.Invalid, "mount", "no command for the harvest child")
	}
	if c.Source == "" {
		c.Source = "dsmfs"
	}
	if c.FaultTimeout == 0 {
		c.FaultTimeout = DefaultFaultTimeout
	}
	if c.UnmountTimeout == 0 {
		c.UnmountTimeout = DefaultUnmountTimeout
	}
	if c.keepLimit == 0 {
		c.keepLimit = keepLimit
	}
	if c.unfoundWindow == 0 {
		c.unfoundWindow = unfoundWindow
	}
	return nil
}
