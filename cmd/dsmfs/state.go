package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The files of a state directory.
const (
	lockFile   = "lock"   // locked by the daemon while it lives
	pidFile    = "pid"    // of the daemon
	pointFile  = "mount"  // the mount point
	addrFile   = "addr"   // host:port at which others reach the node
	logFile    = "log"    // the log, or a link to it
	attachFile = "attach" // the attach socket
	failedFile = "failed" // why leaving the cluster failed, if it did
	madeFile   = "made"   // exists if the daemon made the mount point, which is then removed with the mount
	bareFile   = "bare"   // exists if the node has no mount
)

// state is the state directory of a mount. The daemon holds the lock on lockFile while it lives,
// whatever the other files say. A directory whose lock is free belonged to a dead daemon and is
// taken over silently.
//
// A mount that has its state elsewhere leaves a symbolic link at the default place, so that other
// commands find the daemon by the mount point alone.
type state struct {
	dir   string // absolute
	link  string // at the default place, or empty
	made  bool   // dir did not exist before
	point string // the mount point
	own   bool   // point was made for the mount
	lock  *os.File
	files []string // to remove in the end
}

// stateBase is where the states are by default.
func stateBase() string {
	if os.Geteuid() == 0 {
		return "/run/dsmfs"
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "dsmfs")
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("dsmfs-%d", os.Getuid()))
}

// defaultState returns the default state directory of an absolute mount point: its path with "-"
// for "/", as systemd names mount units.
func defaultState(point string) string {
	name := strings.NewReplacer(`\`, `\x5c`, "-", `\x2d`, "/", "-").Replace(strings.Trim(point, "/"))
	if name == "" {
		name = "-"
	}
	if len(name) > 240 { // with an ending it would be longer than a file name may be
		name = fmt.Sprintf("%s-%016x", name[:200], hash(point))
	}
	return filepath.Join(stateBase(), name)
}

// hash is FNV-1a.
func hash(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// openState takes the state directory of a mount; empty means the default one. heir says that the daemon takes over from one that was killed
// and may not have ended: a thread of it may wait for an answer that only this one will give.
func openState(dir, point string, heir bool) (*state, error) {
	place := defaultState(point)
	s := &state{point: point}
	if dir != "" {
		var err error
		if s.dir, err = filepath.Abs(dir); err != nil {
			return nil, fail(exitState, "state directory: %w", err)
		}
	} else {
		s.dir = place
		if target, err := os.Readlink(place); err == nil && lockedBy(target) == 0 {
			_ = os.Remove(place) // left by a daemon that died; if it stays, so does the error below
		}
	}
	if err := s.take(heir); err != nil {
		return nil, err
	}
	s.own = madePoint(s.dir, point)
	if !heir { // else they are this one's, too
		for _, name := range []string{failedFile, madeFile, bareFile} { // left by an earlier daemon; usually there are none
			_ = os.Remove(filepath.Join(s.dir, name))
		}
	}
	for _, f := range []struct{ name, text string }{{pidFile, strconv.Itoa(os.Getpid())}, {pointFile, point}} {
		if err := s.write(f.name, f.text); err != nil {
			s.close()
			return nil, err
		}
	}
	sweepLinks()
	if s.dir != place {
		s.leaveLink(place)
	}
	return s, nil
}

const (
	// lockTries is how often a daemon tries to get a lock that no other seems to have: holder takes it for a moment, and a daemon that ends still has it when the other
	// files are gone.
	lockTries = 200
	lockPause = 5 * time.Millisecond
)

// errReplaced says that the lock file, or its directory, was removed before it was locked: the daemon that had it has ended.
var errReplaced = errors.New("the lock file was removed at this moment")

// take makes the directory, and locks it. ErrExist: the directory was there at first, and not when MkdirAll looked at what it is.
func (s *state) take(heir bool) error {
	for left := lockTries; ; left-- {
		err := s.tryTake(heir)
		switch {
		case err == nil:
			return nil
		case left > 0 && (errors.Is(err, errReplaced) || errors.Is(err, fs.ErrExist) || errors.Is(err, unix.EWOULDBLOCK) && lockedBy(s.dir) == 0):
			sleep(context.Background(), lockPause)
		case errors.Is(err, unix.EWOULDBLOCK):
			pid, _ := os.ReadFile(s.path(pidFile))
			at, _ := os.ReadFile(s.path(pointFile))
			return fail(exitState, "state %s is in use by pid %s (mounted on %s): unmount it or give another --state",
				s.dir, strings.TrimSpace(string(pid)), strings.TrimSpace(string(at)))
		default:
			return fail(exitState, "state directory: %w; give another --state", err)
		}
	}
}

// tryTake is take without patience: EWOULDBLOCK if another has the lock. A lock counts only if its file is still the one in the directory, since close removes that.
func (s *state) tryTake(heir bool) error {
	if _, err := os.Stat(s.dir); errors.Is(err, fs.ErrNotExist) {
		s.made = true
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return err
	}
	lock, err := os.OpenFile(s.path(lockFile), os.O_RDWR|os.O_CREATE, 0o644)
	if errors.Is(err, fs.ErrNotExist) {
		return errReplaced
	}
	if err != nil {
		return err
	}
	switch err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case heir && errors.Is(err, unix.EWOULDBLOCK):
		go func() { _ = unix.Flock(int(lock.Fd()), unix.LOCK_EX) }() // until then the lock says the same
		err = nil
	case err == nil && !isAt(lock, s.path(lockFile)):
		err = errReplaced
	}
	if err != nil {
		_ = lock.Close() // nothing was written
		return &fs.PathError{Op: "lock", Path: lock.Name(), Err: err}
	}
	s.lock = lock
	return nil
}

// isAt reports whether an open file is the one at a path.
func isAt(f *os.File, path string) bool {
	has, err := f.Stat()
	if err != nil {
		return false
	}
	at, err := os.Stat(path)
	return err == nil && os.SameFile(has, at)
}

// note records what is special about the mount: that there is none, or that its mount point was
// made for it, now or by a daemon that died.
func (s *state) note(bare, made bool) error {
	s.own = !bare && (s.own || made)
	var failed error
	if bare {
		failed = s.write(bareFile, "")
	}
	if s.own {
		failed = s.write(madeFile, s.point)
	}
	return failed
}

// madePoint reports whether the daemon of a state directory made its mount point.
func madePoint(dir, point string) bool {
	text, err := os.ReadFile(filepath.Join(dir, madeFile))
	return err == nil && strings.TrimSuffix(string(text), "\n") == point
}

// isLeaving reports whether the daemon of a state directory, whose mount is not there, once had it.
func isLeaving(dir string) bool {
	_, ready := os.Stat(filepath.Join(dir, addrFile))
	_, bare := os.Stat(filepath.Join(dir, bareFile))
	return ready == nil && bare != nil
}

// forgetMount removes what a dead daemon has left of a mount that was taken away: its state, and
// the mount point if the daemon made it. The log stays.
func forgetMount(point string) error {
	place := defaultState(point)
	dir := place
	if target, err := os.Readlink(place); err == nil {
		dir = target
	}
	if !hasState(dir, point) || lockedBy(dir) != 0 {
		return nil
	}
	s, err := openState(dir, point, false)
	if err != nil {
		return err
	}
	s.made = dir == place
	s.files = append(s.files, addrFile, attachFile)
	if _, err := os.Readlink(s.path(logFile)); err == nil {
		s.files = append(s.files, logFile)
	}
	s.close()
	return nil
}

// leaveLink makes the default place point to the directory. It is a convenience: without it, umount
// --force has no pid to kill.
func (s *state) leaveLink(place string) {
	if os.MkdirAll(filepath.Dir(place), 0o755) != nil {
		return
	}
	target, err := os.Readlink(place)
	if err == nil && target == s.dir { // left by an earlier daemon
		s.link = place
		return
	}
	if err == nil && lockedBy(target) == 0 {
		_ = os.Remove(place) // if it stays, Symlink reports it
	}
	if os.Symlink(s.dir, place) == nil {
		s.link = place
	}
}

// sweepLinks removes links whose directories are gone: those of daemons that were killed and whose
// state somebody has removed.
func sweepLinks() {
	entries, err := os.ReadDir(stateBase())
	if err != nil {
		return
	}
	for _, e := range entries {
		path := filepath.Join(stateBase(), e.Name())
		if _, err := os.Stat(path); e.Type() == fs.ModeSymlink && errors.Is(err, fs.ErrNotExist) {
			_ = os.Remove(path) // the next mount tries again
		}
	}
}

// write writes one file of the state.
func (s *state) write(name, text string) error {
	if err := replaceFile(s.path(name), text+"\n"); err != nil {
		return fail(exitState, "state directory: %w", err)
	}
	if !slices.Contains(s.files, name) {
		s.files = append(s.files, name)
	}
	return nil
}

// unfinished ends the name of a file that is being written.
const unfinished = ".new"

// replaceFile makes a file of the state, or replaces it in one step: who reads it finds all of the former text, or all of this one. If there is no
// room for another file, it is overwritten: a daemon that takes over must not end for that.
func replaceFile(path, text string) error {
	err := os.WriteFile(path+unfinished, []byte(text), 0o644)
	if err == nil {
		err = os.Rename(path+unfinished, path)
	}
	if err != nil {
		_ = os.Remove(path + unfinished) // it may not be there
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		if overwrite(path, text) == nil {
			return nil
		}
	}
	return err
}

// overwrite writes to a file that is there, whose memory it has already. Who reads it just then may find the end of the former text behind this one.
func overwrite(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte(text), 0)
	if err == nil {
		err = f.Truncate(int64(len(text)))
	}
	return errors.Join(err, f.Close())
}

// path returns the path of a file of the state.
func (s *state) path(name string) string { return filepath.Join(s.dir, name) }

// keep exempts a file from being removed by close.
func (s *state) keep(name string) {
	for i, f := range s.files {
		if f == name {
			s.files = append(s.files[:i], s.files[i+1:]...)
			return
		}
	}
}

// close removes the files of the state, the lock file last: from then on the directory may be another
// daemon's. It removes the directory, and the mount point, if this daemon made it and it is empty.
func (s *state) close() {
	if s.own {
		_ = unix.Rmdir(s.point) // fails if something is in it, or mounted on it
	}
	if s.link != "" {
		if target, err := os.Readlink(s.link); err == nil && target == s.dir {
			_ = os.Remove(s.link) // if it stays, the next mount takes it over
		}
	}
	for _, f := range s.files {
		_ = os.Remove(s.path(f)) // likewise
		_ = os.Remove(s.path(f + unfinished))
	}
	_ = os.Remove(s.path(lockFile)) // likewise
	if s.made {
		_ = os.Remove(s.dir) // fails if something else is in it
	}
	_ = s.lock.Close() // nothing to flush
}

// lockedBy returns the process that has locked a state directory, 0 if there is none.
func lockedBy(dir string) int {
	f, err := os.Open(filepath.Join(dir, lockFile))
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }() // only read
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		return 0
	}
	text, err := os.ReadFile(filepath.Join(dir, pidFile))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 0 || !hasOpen(pid, f) {
		return 0
	}
	return pid
}

// hasOpen reports whether a process has a file open; also true if that may not be known. Anybody may lock a file that he may read, so a lock says nothing of
// the process that a dead daemon has left the number of.
func hasOpen(pid int, f *os.File) bool {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	list, err := os.ReadDir(dir)
	if err != nil {
		return errors.Is(err, fs.ErrPermission)
	}
	want, err := f.Stat()
	if err != nil {
		return false
	}
	return slices.ContainsFunc(list, func(e os.DirEntry) bool {
		path := filepath.Join(dir, e.Name())
		if name, err := os.Readlink(path); err != nil || filepath.Base(name) != filepath.Base(f.Name()) { // another may be of a mount that does not answer
			return false
		}
		has, err := os.Stat(path)
		return err == nil && os.SameFile(has, want)
	})
}

// logOf returns where the daemon of a state directory logs.
func logOf(dir string) string {
	path := filepath.Join(dir, logFile)
	if target, err := os.Readlink(path); err == nil {
		return target
	}
	return path
}

// daemonOf returns the daemon of a mount point and its state directory; pid is 0 if no daemon is
// found.
func daemonOf(point string) (pid int, dir string) {
	dir = defaultState(point)
	if pid = lockedBy(dir); pid == 0 {
		return 0, dir
	}
	if !hasState(dir, point) {
		return 0, dir
	}
	return pid, dir
}

// hasState reports whether a directory has the state of a mount point.
func hasState(dir, point string) bool {
	at, err := os.ReadFile(filepath.Join(dir, pointFile))
	return err == nil && strings.TrimSpace(string(at)) == point
}
