package fs

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/dsmfs/dsmfs/fs/attach"
	"github.com/dsmfs/dsmfs/fs/harvest"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/hold"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// FS is a mounted filesystem, or one without a mount to which programs only attach.
type FS struct {
	b      *bridge
	attach *attach.Server // nil if programs cannot attach
	device string         // major:minor of the mount
	served chan struct{}
}

// Mount mounts the filesystem and returns when programs can use it.
func Mount(cfg Config) (*FS, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if cfg.Mountpoint == "" {
		return serveAttachOnly(cfg)
	}
	resuming := cfg.Held != nil && cfg.Held.Word(hold.Mounted).Load() != 0
	if !resuming {
		if err := CheckMountpoint(cfg.Mountpoint); err != nil {
			return nil, err
		}
		var err error
		if cfg.Mountpoint, err = resolve(cfg.Mountpoint); err != nil {
			return nil, err
		}
	}
	cfg.owner = fuse.Owner{Uid: uint32(os.Getuid()), Gid: uint32(os.Getgid())}
	cfg.started = time.Now()

	b := newBridge(cfg)
	start := serve
	if cfg.Held != nil {
		start = serveHeld
	}
	server, err := start(b, cfg.Mountpoint)
	if err != nil {
		return nil, err
	}
	m, ok, err := mountAt(cfg.Mountpoint)
	if err == nil && !ok {
		err = errors.New("mounted, but not in /proc/self/mountinfo")
	}
	if err != nil && resuming {
		return nil, err
	}
	if err != nil {
		return nil, errors.Join(errMount(cfg.Mountpoint, err), unmount(cfg.Mountpoint, true)) // nobody serves it yet
	}
	b.notify.server, b.notify.locksFirst = server, locksForUnknownNames(kernelRelease())
	b.passthrough.init(server, cfg.PassthroughOff)
	b.device = m.Device
	f := &FS{b: b, device: m.Device, served: make(chan struct{})}
	if cfg.AttachSocket != "" { // before anybody can read its name in the mount
		f.attach, err = b.newAttach()
	}
	if err != nil && resuming {
		return nil, err
	}
	if cfg.Held != nil {
		if err := b.held.resume(cfg.Held.Word(hold.Daemons).Load(), cfg.ClaimedFiles, f.attach); err != nil {
			return nil, err
		}
		if cfg.Resumed != nil {
			cfg.Resumed()
		}
		b.held.goOn()
		cfg.Held.Word(hold.Device).Store(minorOf(f.device))
		cfg.Held.Word(hold.Mounted).Store(1)
	}
	if f.attach != nil {
		f.attach.Serve()
	}
	go func() {
		server.Serve()
		close(f.served)
	}()
	if err != nil {
		return nil, errors.Join(err, f.Unmount(context.Background(), true))
	}
	if resuming {
		if err := askAgain(cfg.Device); err != nil {
			return nil, err
		}
		if cfg.Held.Word(hold.Others).Load() == 0 {
			b.held.dropPages()
		}
	}
	tuneWriteback(f.device, b.log)
	return f, nil
}

// maxTransfer is how much the kernel reads or writes at once.
const maxTransfer = 1 << 20

// serve mounts b. As root it does so without go-fuse, which would leave /dev/fuse open in every
// child process, and so keep the mount alive as long as the child.
func serve(b *bridge, mountpoint string) (*fuse.Server, error) {
	opts := b.mountOptions()
	if os.Geteuid() != 0 {
		// fusermount3 would print the reason on standard error and return only a number.
		if err := unix.Access("/dev/fuse", unix.R_OK|unix.W_OK); err != nil {
			return nil, errMount(mountpoint, fmt.Errorf("open /dev/fuse: %w", err))
		}
		server, err := fuse.NewServer(b, mountpoint, opts)
		if err != nil {
			return nil, errMount(mountpoint, err)
		}
		return server, nil
	}
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, errMount(mountpoint, fmt.Errorf("open /dev/fuse: %w", err))
	}
	if err := b.mountDevice(fd, mountpoint); err != nil {
		unix.Close(fd)
		return nil, err
	}
	server, err := fuse.NewServer(b, fmt.Sprintf("/dev/fd/%d", fd), opts) // it owns fd from now on
	if err != nil {
		if uerr := unmount(mountpoint, true); uerr != nil {
			b.log.Warn("unmount after a failed start", "err", uerr)
		}
		return nil, errMount(mountpoint, err)
	}
	return server, nil
}

// mountDevice mounts what the descriptor of /dev/fuse serves.
func (b *bridge) mountDevice(fd int, mountpoint string) error {
	data := strings.Join([]string{
		fmt.Sprintf("fd=%d", fd), "rootmode=40000", "user_id=0", "group_id=0",
		"default_permissions", "allow_other", fmt.Sprintf("max_read=%d", maxTransfer),
	}, ",")
	if err := unix.Mount(b.cfg.Source, mountpoint, "fuse.dsmfs", unix.MS_NOSUID|unix.MS_NODEV, data); err != nil {
		return errMount(mountpoint, err)
	}
	return nil
}

// mountOptions are what a server is made with.
func (b *bridge) mountOptions() *fuse.MountOptions {
	return &fuse.MountOptions{
		FsName: b.cfg.Source, Name: "dsmfs",
		Options: []string{"default_permissions"},
		Logger:  log.New(&debugWriter{b.log}, "", 0),
		// One READ or WRITE of 1 MiB costs less than eight of 128 KiB.
		MaxWrite: maxTransfer,
		// With the default of 12, twelve faults that wait for a slow node block the faults of every
		// area.
		MaxBackground: 4096,
		// Otherwise a changed mtime drops every page of the file.
		ExplicitDataCacheControl: true,
		// The answers are in memory; splicing would only cost pipes.
		DisableSplice: true,
		PanicHandler:  crash,
		EnableLocks:   b.cfg.Locks != nil,
		// So that files opened with O_APPEND can be mapped (Linux 6.6; ENODEV without).
		ExtraCapabilities: fuse.CAP_DIRECT_IO_ALLOW_MMAP,
	}
}

// errMount says what is missing where the kernel only returns a number.
func errMount(path string, err error) error {
	e := &errs.Error{Op: "mount", Path: path, Err: err}
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		e.Kind, e.Err = errs.Unsupported, fmt.Errorf("%w: the kernel has no FUSE here: try modprobe fuse; in a container, --device /dev/fuse", err)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		e.Kind, e.Err = errs.Permission, fmt.Errorf("%w: mounting needs root, or CAP_SYS_ADMIN in a container, or the package fuse3 for fusermount3", err)
	case errors.Is(err, unix.EBUSY):
		e.Kind = errs.Busy
	}
	return e
}

// crash ends the process at a panic in the handler of a request: a broken invariant must not become
// an EIO that a program retries.
func crash(v any) fuse.Status {
	stack := debug.Stack() // of the panic: its frames are still there
	go func() { panic(fmt.Sprintf("in the handler of a request: %v\n\n%s", v, stack)) }()
	select {}
}

// debugWriter writes what go-fuse logs to the log.
type debugWriter struct{ log *slog.Logger }

func (w *debugWriter) Write(p []byte) (int, error) {
	w.log.Debug("fuse", "msg", strings.TrimSpace(string(p)))
	return len(p), nil
}

// Changed implements PageCache.
func (f *FS) Changed(id dsm.AreaID) {
	if a := f.b.opens.find(id); a != nil {
		f.b.notify.kick(a)
	}
}

// AttrChanged implements PageCache.
func (f *FS) AttrChanged(id dsm.AreaID) {
	if a := f.b.opens.find(id); a != nil {
		f.b.notify.attrChanged(a)
	}
}

// FreePast frees memory of a memfd, in another process: see harvest.Freer. If another daemon is to follow, nobody else may do it: it would not know.
func (f *FS) FreePast(fd int, from int64) error {
	m := f.b.cfg.Held
	if m == nil {
		return f.b.freer.Free(fd, from, harvest.Mark{})
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	err := f.b.freer.Free(fd, from, harvest.Mark{FD: m.FD(), At: hold.FreeMark(st.Ino, from)})
	if err != nil && !errs.Is(err, errs.Closed) {
		return &errs.Error{Op: "free memory", Kind: errs.Busy, Err: err}
	}
	return err
}

// Miscounted implements PageCache.
func (f *FS) Miscounted(id dsm.AreaID) {
	if a := f.b.opens.find(id); a != nil && a.current() != nil {
		f.b.countSoon(a)
	}
}

// Orphaned says that this node claims a new file of which its programs have not heard.
func (f *FS) Orphaned(ino dsm.Ino) {
	f.b.background.run(func() { f.b.claims.made(ino) })
}

// Rejoined says that this node has joined the cluster again, which knows nothing of it any more.
func (f *FS) Rejoined(ctx context.Context) error { return f.b.claims.renew(ctx) }

// Removed implements PageCache.
func (f *FS) Removed(id dsm.AreaID) { f.b.opens.removed(id) }

// Done is closed when the mount is gone, because of Unmount or an umount(8). Without a mount it
// never is. Unmount must be called in either case.
func (f *FS) Done() <-chan struct{} { return f.served }

// Mountpoint returns where the filesystem is mounted, or an empty string.
func (f *FS) Mountpoint() string { return f.b.cfg.Mountpoint }

// Harvest has the kernel deliver what programs of this node have stored to mappings.
func (f *FS) Harvest(ctx context.Context) error {
	_, failed := f.harvestAll(ctx)
	return errors.Join(failed...)
}

// harvestAll is Harvest, and returns the areas that are open, with the error of each.
func (f *FS) harvestAll(ctx context.Context) (open []*openArea, failed []error) {
	open = f.b.opens.all(func(a *openArea) bool { return a.current() != nil })
	targets := make([]harvest.Target, len(open))
	for i, a := range open {
		targets[i].Area = a
	}
	failed = f.b.harvest.Sync(ctx, targets)
	if errors.Join(failed...) != nil && f.gone(unmountRetry) {
		return open, nil // an umount(8) has had the kernel deliver all
	}
	return open, failed
}

// PublishAll publishes everything that the programs of this node have stored, but of versioned files nothing while a program may store to them.
func (f *FS) PublishAll(ctx context.Context) error {
	open, failed := f.harvestAll(ctx)
	results := make(chan error)
	for _, a := range open {
		go func() { results <- f.b.publishReleased(ctx, a) }()
	}
	for range open {
		failed = append(failed, <-results)
	}
	return errors.Join(failed...)
}

// unmountRetry is how often a busy mount is tried again.
const unmountRetry = 20 * time.Millisecond

// Unmount publishes what is stored, as far as ctx allows, and unmounts. If programs use the mount
// until the timeout, or the end of ctx, it fails with errs.Busy, and the filesystem goes on
// working. With force it is taken away from them, and their requests fail. When it has returned nil
// nothing of the filesystem works any more, and Names and Areas can be closed.
func (f *FS) Unmount(ctx context.Context, force bool) error {
	if err := f.PublishAll(ctx); err != nil {
		f.b.log.Warn("unmount: not everything is published", "err", err)
	}
	if err := f.detach(ctx, force); err != nil {
		return err
	}
	if at, ok := ctx.Deadline(); ok { // the rest must not take all the time that is left
		defer time.AfterFunc(time.Until(at)/2, f.b.end).Stop()
	}
	if f.attach != nil {
		f.b.cfg.Areas.KeepPages()
		f.attach.Close()
		f.b.forgetListener()
	}
	f.b.opens.endDirect()
	f.b.countRest()
	f.b.releases.close() // publishes what programs have just closed
	f.b.end()
	f.b.harvest.Stop()
	f.b.freer.Stop()
	f.b.background.close()
	if f.attach != nil {
		f.attach.EndGuard()
	}
	return nil
}

// detach removes the mount, unless somebody else has, and returns when the kernel has no more
// requests.
func (f *FS) detach(ctx context.Context, force bool) error {
	path := f.b.cfg.Mountpoint
	if path == "" {
		return nil
	}
	deadline := time.Now().Add(f.b.cfg.UnmountTimeout)
	for {
		err := f.unmountOwn(false)
		late := time.Now().After(deadline) || ctx.Err() != nil
		switch {
		case err == nil && f.gone(unmountRetry):
			return nil
		case err != nil && !errors.Is(err, unix.EBUSY):
			return &errs.Error{Op: "umount", Path: path, Err: err}
		case late && !force:
			return &errs.Error{Op: "umount", Path: path, Kind: errs.Busy, Err: errBusy}
		case late:
			f.b.log.Warn("unmount by force: programs that use the mount will fail", "path", path)
			f.b.end() // requests that wait end now
			if err := f.unmountOwn(true); err != nil {
				return &errs.Error{Op: "umount", Path: path, Err: err}
			}
			if f.gone(unmountRetry) {
				return nil
			}
			if err := abort(f.device); err != nil { // somebody has detached it
				return &errs.Error{Op: "umount", Path: path, Err: err}
			}
			<-f.served
			return nil
		}
		if err != nil {
			f.gone(unmountRetry)
		}
	}
}

// unmountOwn unmounts the path if this filesystem is mounted there: somebody may have detached it
// already, and then perhaps mounted something else.
func (f *FS) unmountOwn(force bool) error {
	m, ok, err := mountAt(f.b.cfg.Mountpoint)
	if err != nil || !ok || m.Device != f.device {
		return err
	}
	return unmount(f.b.cfg.Mountpoint, force)
}

// gone reports whether the kernel has closed the connection within d.
func (f *FS) gone(d time.Duration) bool {
	select {
	case <-f.served:
		return true
	case <-time.After(d):
		return false
	}
}
