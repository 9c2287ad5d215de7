package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/fs"
	"github.com/dsmfs/dsmfs/internal/errs"
)

const (
	// busyLimit is how long umount keeps trying if only the daemon's own child uses the mount. The
	// child closes its files a moment after the programs did.
	busyLimit = 5 * time.Second
	busyRetry = 50 * time.Millisecond
)

// umountVerb unmounts, which orders the daemon to leave the cluster, and waits until it has left.
// If programs use the mount it fails and changes nothing, unless force is given.
func umountVerb(p *program, args []string) error {
	f := p.flags("umount")
	force := f.Bool("force", false, "take the mount away from programs that use it, and end a daemon that does not answer")
	wait := f.Duration("timeout", leaveLimit+10*time.Second, "how long to wait until the node has left its cluster")
	if err := parse(f, args, 1, 1, "MNT [flags]"); err != nil {
		return err
	}
	m, err := findMount(f.Arg(0))
	if point, pid, dir := bareNode(f.Arg(0)); err != nil && pid != 0 {
		return endBareNode(point, pid, dir, *wait)
	}
	if err != nil {
		return err
	}
	pid, dir := daemonOf(m.Point)
	if *force {
		return umountForce(m.Point, pid, dir, *wait)
	}
	holder := holderOf(dir)
	last := pid
	if holder != 0 { // it ends after the last of the daemons
		last = holder
	}
	var watch *watch
	if last != 0 {
		if watch, err = watchProcess(last); err != nil {
			return err
		}
		defer watch.close()
	}
	if last == 0 && errors.Is(fs.CheckMountpoint(m.Point), fs.ErrDeadMount) {
		if err := fs.UnmountPath(m.Point, true); err != nil {
			return withCode(exitBusy, err)
		}
		return forgetMount(m.Point)
	}
	if err := umountIdle(m.Point); err != nil {
		return err
	}
	if watch == nil {
		return nil
	}
	if !watch.wait(*wait) {
		return fail(exitLeave, "%s is unmounted, but its daemon (pid %d) has not left the cluster after %v; see %s", m.Point, last, *wait, logOf(dir))
	}
	return hasLeft(m.Point, cmp.Or(pid, last), dir)
}

// hasLeft returns nil if a daemon that has ended had left its cluster before.
func hasLeft(point string, pid int, dir string) error {
	if text, err := os.ReadFile(filepath.Join(dir, failedFile)); err == nil {
		return fail(exitLeave, "%s is unmounted, but the node did not leave its cluster cleanly: %s", point, strings.TrimSpace(string(text)))
	}
	killed, log := hasState(dir, point), logOf(dir) // a daemon that has left has removed its state
	if err := forgetMount(point); err != nil || !killed {
		return err
	}
	return fail(exitLeave, "%s is unmounted, but its daemon (pid %d) was killed before it had left the cluster; see %s", point, pid, log)
}

// bareNode returns the process of a node that runs under the path without a mount, 0 if there is
// none. Such a node either never had a mount, or is leaving because its mount is gone.
func bareNode(path string) (point string, pid int, dir string) {
	point, err := filepath.Abs(path)
	if err != nil {
		return path, 0, ""
	}
	pid, dir = daemonOf(point)
	return point, pid, dir
}

// endBareNode tells a node without a mount to leave its cluster, unless it is already leaving, and
// waits until it has left.
func endBareNode(point string, pid int, dir string, limit time.Duration) error {
	w, err := watchProcess(pid)
	if err != nil {
		return err
	}
	defer w.close()
	if !isLeaving(dir) { // a second signal would make it leave in disorder
		if err := unix.Kill(pid, unix.SIGTERM); err != nil {
			return fmt.Errorf("end the daemon (pid %d): %w", pid, err)
		}
	}
	if !w.wait(limit) {
		return fail(exitLeave, "the node %s (pid %d) has not left the cluster after %v", point, pid, limit)
	}
	return hasLeft(point, pid, dir)
}

// umountIdle unmounts a mount that no program uses.
func umountIdle(point string) error {
	for deadline := time.Now().Add(busyLimit); ; time.Sleep(busyRetry) {
		err := fs.UnmountPath(point, false)
		if !errs.Is(err, errs.Busy) {
			return withCode(exitOther, err)
		}
		if users := usersOf(point); len(users) > 0 {
			return fail(exitBusy, "%s is in use by %s; end them, or take it away from them with --force", point, strings.Join(users, ", "))
		}
		if time.Now().After(deadline) {
			return withCode(exitBusy, err)
		}
	}
}

// umountForce unmounts and ends the daemon: in good order, unless the daemon is stopped or takes
// too long.
func umountForce(point string, pid int, dir string, limit time.Duration) error {
	var gone *watch
	if pid != 0 {
		var err error
		if gone, err = watchProcess(pid); err != nil {
			return err
		}
		defer gone.close()
	}
	if err := fs.UnmountPath(point, true); err != nil {
		return withCode(exitBusy, err)
	}
	if gone == nil {
		return forgetMount(point)
	}
	if !isStopped(pid) && gone.wait(limit) {
		return forgetMount(point)
	}
	if err := gone.kill(); err != nil {
		return fmt.Errorf("end the daemon (pid %d): %w", pid, err)
	}
	if !gone.wait(busyLimit) {
		return fail(exitLeave, "%s is unmounted, but its daemon (pid %d) cannot be killed; see %s", point, pid, logOf(dir))
	}
	return errors.Join(forgetMount(point),
		fail(exitLeave, "%s is unmounted; its daemon (pid %d) did not leave the cluster in time and was killed", point, pid))
}

// isStopped reports whether a signal has stopped the process, so that it answers nobody.
func isStopped(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(text), ") ") // what follows the name, which is in brackets
	return strings.HasPrefix(rest, "T")
}

// watch is a handle of a process that need not be a child.
type watch struct{ fd int }

// watchProcess begins to watch a process. One that is already gone can be watched too.
func watchProcess(pid int) (*watch, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return &watch{-1}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("watch the daemon (pid %d): %w", pid, err)
	}
	return &watch{fd}, nil
}

// wait reports whether the process ended within the limit.
func (w *watch) wait(limit time.Duration) bool {
	if w.fd < 0 {
		return true
	}
	deadline := time.Now().Add(limit)
	for {
		left := max(time.Until(deadline), 0)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
		if n > 0 || left == 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return n > 0
		}
	}
}

// kill ends the process.
func (w *watch) kill() error {
	if w.fd < 0 {
		return nil
	}
	if err := unix.PidfdSendSignal(w.fd, unix.SIGKILL, nil, 0); !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

func (w *watch) close() {
	if w.fd >= 0 {
		_ = unix.Close(w.fd) // only a handle
	}
}

// usersOf returns the processes that have something of the mount open or mapped, or their working
// directory in it, without touching the mount. Processes of dsmfs itself are left out.
func usersOf(point string) []string {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil
	}
	var users []string
	for _, dir := range dirs {
		name, err := os.ReadFile(dir + "/comm")
		if err != nil {
			continue
		}
		args, err := os.ReadFile(dir + "/cmdline")
		if err != nil || strings.Contains(string(args), "\x00"+harvestVerbName+"\x00") || dir == "/proc/"+strconv.Itoa(os.Getpid()) {
			continue
		}
		if usesMount(dir, point) {
			users = append(users, fmt.Sprintf("%s (pid %s)", strings.TrimSpace(string(name)), filepath.Base(dir)))
		}
	}
	return users
}

// usesMount checks the links and mappings of one process.
func usesMount(proc, point string) bool {
	below := func(path string) bool { return path == point || strings.HasPrefix(path, point+"/") }
	links := []string{proc + "/cwd", proc + "/root", proc + "/exe"}
	if fds, err := filepath.Glob(proc + "/fd/*"); err == nil {
		links = append(links, fds...)
	}
	uses := func(link string) bool {
		target, err := os.Readlink(link)
		return err == nil && below(target)
	}
	if slices.ContainsFunc(links, uses) {
		return true
	}
	text, err := os.ReadFile(proc + "/maps")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		if _, path, ok := strings.Cut(line, " /"); ok && below("/"+strings.TrimSpace(path)) {
			return true
		}
	}
	return false
}
