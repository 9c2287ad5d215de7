package fs

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/dsmfs/dsmfs/fs/attach"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// passthrough records whether the mount's kernel lets a file of the mount be a memfd (K17). The
// kernel itself would go on after a failure. Here a kernel that refused a memfd is not asked again,
// so that all areas of the mount are served in one way.
type passthrough struct {
	server backings
	// why not; nil if it works, as far as is known.
	why  atomic.Pointer[string]
	said sync.Once
	// writing is the number of areas whose stores are found by comparing because they are direct.
	writing atomic.Int32
}

// backings is the part of fuse.Server that passthrough needs; tests replace it.
type backings interface {
	RegisterBackingFd(m *fuse.BackingMap) (int32, syscall.Errno)
	UnregisterBackingFd(id int32) syscall.Errno
}

// init tries passthrough with a memfd of its own. off is a reason not to try, or empty.
func (p *passthrough) init(server backings, off string) {
	p.server = server
	if off == "" {
		if err := tryPassthrough(server); err != nil {
			off = err.Error()
		}
	}
	if off != "" {
		p.why.Store(&off)
	}
}

// reason says why plain opens do not get memfds; empty if they do.
func (p *passthrough) reason() string {
	if why := p.why.Load(); why != nil {
		return *why
	}
	return ""
}

// refused logs once that an area with access=direct is not served directly.
func (p *passthrough) refused(log *slog.Logger) {
	p.said.Do(func() {
		log.Warn("files with user.dsm.access=direct are served through the page cache on this node, like all others", "why", p.reason())
	})
}

// register makes a memfd known to the kernel. After an error passthrough is not used any more.
func (p *passthrough) register(f *os.File) (id int32, err error) {
	id, e := p.server.RegisterBackingFd(&fuse.BackingMap{Fd: int32(f.Fd())})
	if e != 0 {
		why := fmt.Sprintf("the kernel refused a memory file: %v", e)
		p.why.Store(&why)
		return 0, errors.New(why)
	}
	return id, nil
}

// tryPassthrough registers a memfd of its own, and checks that its users can be determined.
func tryPassthrough(server backings) error {
	fd, err := unix.MemfdCreate("dsmfs:probe", unix.MFD_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("memfd_create", err)
	}
	defer unix.Close(fd)
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return err
	}
	defer f.Close()
	id, e := server.RegisterBackingFd(&fuse.BackingMap{Fd: int32(f.Fd())})
	switch {
	case e == syscall.EPERM:
		return errors.New("FUSE passthrough takes root (CAP_SYS_ADMIN) and Linux 6.9 or later")
	case e == syscall.ENOTTY, e == syscall.EINVAL, e == syscall.EOPNOTSUPP:
		return fmt.Errorf("the kernel has no FUSE passthrough (Linux 6.9, CONFIG_FUSE_PASSTHROUGH): %w", e)
	case e != 0:
		return fmt.Errorf("FUSE passthrough: %w", e)
	}
	defer server.UnregisterBackingFd(id)
	free, err := attach.Unused(f, unix.F_WRLCK)
	if err == nil && !free {
		err = errors.New("a lease of an unused one is refused")
	}
	if err != nil {
		return fmt.Errorf("the kernel does not tell whether a memory file is mapped (fs.leases-enable): %w", err)
	}
	return nil
}

// ProbePassthrough returns nil if mounts of this process can have direct areas, and otherwise the
// reason. It asks the kernel's FUSE client, for a filesystem that is mounted nowhere.
func ProbePassthrough() error {
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /dev/fuse: %w", err)
	}
	sb, err := unconnected(dev)
	if err != nil {
		unix.Close(dev)
		return fmt.Errorf("a FUSE filesystem to try it on: %w", err)
	}
	opts := &fuse.MountOptions{Name: "dsmfs", FsName: "dsmfs"}
	server, err := fuse.NewServer(fuse.NewDefaultRawFileSystem(), fmt.Sprintf("/dev/fd/%d", dev), opts) // it owns dev from now on
	if err != nil {
		unix.Close(sb)
		return err
	}
	defer server.Serve() // until the filesystem is gone, which is at once
	defer unix.Close(sb)
	return tryPassthrough(server)
}

// unconnected makes a FUSE filesystem that dev serves; it ends when sb is closed.
func unconnected(dev int) (sb int, err error) {
	sb, err = unix.Fsopen("fuse", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, os.NewSyscallError("fsopen", err)
	}
	for _, o := range [][2]string{{"fd", fmt.Sprint(dev)}, {"rootmode", "40000"}, {"user_id", "0"}, {"group_id", "0"}} {
		if err == nil {
			err = unix.FsconfigSetString(sb, o[0], o[1])
		}
	}
	if err == nil {
		err = unix.FsconfigCreate(sb)
	}
	if err != nil {
		unix.Close(sb)
		return -1, os.NewSyscallError("fsconfig", err)
	}
	return sb, nil
}
