package fs

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/mountinfo"
	"golang.org/x/sys/unix"
)

// ErrDeadMount is in the chain of an error about a mount whose daemon is gone.
var ErrDeadMount = errors.New("a dead dsmfs mount is there: its daemon is gone")

var errBusy = errors.New("in use by a program (see fuser -m); --force takes it away from it")

// statTimeout is how long a mount is waited for to tell whether it is dead.
const statTimeout = 2 * time.Second

// CheckMountpoint says whether a filesystem can be mounted on path: nil, or why
// not: errs.NotExist, errs.NotDir, errs.Busy if something is mounted there, and
// ErrDeadMount (of kind errs.Busy) if that is a mount whose daemon is gone.
func CheckMountpoint(path string) error {
	fail := func(k errs.Kind, format string, args ...any) error {
		e := errs.E(k, "mount", format, args...)
		e.Path = path
		return e
	}
	real, err := resolve(path)
	if err != nil {
		if os.IsNotExist(err) {
			return fail(errs.NotExist, "no such directory: make it first")
		}
		return fail(errs.Other, "%w", err)
	}
	m, mounted, err := mountAt(real)
	if err != nil {
		return fail(errs.Other, "%w", err)
	}
	if mounted && strings.HasPrefix(m.Type, "fuse") && isDead(real) {
		return fail(errs.Busy, "%w; --force replaces it", ErrDeadMount)
	}
	if mounted {
		return fail(errs.Busy, "already a mount point (%s); unmount it first", m.Type)
	}
	info, err := os.Stat(real)
	switch {
	case os.IsNotExist(err):
		return fail(errs.NotExist, "no such directory: make it first")
	case err != nil:
		return fail(errs.Other, "%w", err)
	case !info.IsDir():
		return fail(errs.NotDir, "not a directory")
	}
	return nil
}

// Dead reports whether an error of touching a mount means that its daemon is gone: ENOTCONN, or ECONNABORTED if it went
// while it was asked. That may be a moment after its process has ended, when a child that it was just
// starting lets go of /dev/fuse.
func Dead(err error) bool {
	return errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.ECONNABORTED)
}

// isDead reports whether nobody answers for the mount any more. One that does not
// answer in time is not dead: its daemon may be waiting for other nodes.
func isDead(path string) bool {
	dead := make(chan bool, 1)
	go func() {
		var st unix.Statfs_t
		dead <- Dead(unix.Statfs(path, &st))
	}()
	select {
	case d := <-dead:
		return d
	case <-time.After(statTimeout):
		return false
	}
}

// UnmountPath unmounts what is mounted on path, by any process. errs.Busy if it is in use.
// With force it is taken away from the programs that use it, whose requests
// fail; a dead mount needs no force, unless programs are still in it.
func UnmountPath(path string, force bool) error {
	real, err := resolve(path)
	if err != nil {
		return &errs.Error{Op: "umount", Path: path, Err: err}
	}
	if _, mounted, err := mountAt(real); err != nil || !mounted {
		if err == nil {
			err = errors.New("nothing is mounted there")
		}
		return &errs.Error{Op: "umount", Path: path, Kind: errs.Invalid, Err: err}
	}
	err = unmount(real, force)
	if errors.Is(err, unix.EBUSY) {
		return &errs.Error{Op: "umount", Path: path, Kind: errs.Busy, Err: errBusy}
	}
	if err != nil {
		return &errs.Error{Op: "umount", Path: path, Err: err}
	}
	return nil
}

// unmount unmounts path, which has no symlinks: EBUSY if it is in use. With force,
// as root, the connection to the daemon is aborted first, so that no
// request stays unanswered; without root the mount is only detached.
func unmount(path string, force bool) error {
	flags := unix.UMOUNT_NOFOLLOW
	if force {
		flags |= unix.MNT_FORCE | unix.MNT_DETACH
	}
	err := unix.Unmount(path, flags)
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	args := []string{"-u"}
	if force {
		args = append(args, "-z")
	}
	out, err := exec.Command("fusermount3", append(args, "--", path)...).CombinedOutput()
	if err == nil {
		return nil
	}
	if text := strings.TrimSpace(string(out)); strings.Contains(text, unix.EBUSY.Error()) {
		return unix.EBUSY
	} else if text != "" {
		return errors.New(text)
	}
	return err
}

// abort breaks the connection of a FUSE filesystem to its daemon; device is its
// major:minor. It also reaches one that is detached and still in use.
func abort(device string) error {
	const dir = "/sys/fs/fuse/connections"
	_, minor, _ := strings.Cut(device, ":")
	if _, ok, err := mountAt(dir); err != nil {
		return err
	} else if !ok {
		if err := unix.Mount("fusectl", dir, "fusectl", 0, ""); err != nil {
			return err
		}
		defer unix.Unmount(dir, 0)
	}
	return os.WriteFile(filepath.Join(dir, minor, "abort"), []byte("1"), 0)
}

// Abort ends the connection of the mount at path to its daemon: all requests end with ENOTCONN, and the mount stays, dead. It does nothing if the minor number of
// the mount's device is another.
func Abort(path string, minor uint64) error {
	m, ok, err := mountAt(path)
	if err != nil || !ok || minorOf(m.Device) != minor {
		return err
	}
	return abort(m.Device)
}

// minorOf returns the minor number of major:minor, 0 if it is none.
func minorOf(device string) uint64 {
	_, minor, _ := strings.Cut(device, ":")
	n, err := strconv.ParseUint(minor, 10, 32)
	if err != nil {
		return 0
	}
	return n
}

// mountAt returns the topmost mount on path, which has no symlinks.
func mountAt(path string) (m mountinfo.Mount, ok bool, err error) {
	all, err := mountinfo.Read()
	if err != nil {
		return m, false, err
	}
	m, ok = mountinfo.Top(all, path)
	return m, ok, nil
}

// resolve makes a mount point absolute and free of symlinks without asking what is
// mounted on it.
func resolve(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if abs == "/" {
		return abs, nil
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return "", err
	}
	abs = filepath.Join(dir, filepath.Base(abs))
	if _, ok, err := mountAt(abs); ok || err != nil {
		return abs, err
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		return real, nil
	}
	return abs, nil // whoever uses it says what is wrong with it
}
