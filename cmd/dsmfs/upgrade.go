package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/hold"
)

// An upgrade is a daemon that is killed, and one of another program that takes over. The verb leaves the program's path in the state
// directory and tells the holder, by a signal. The holder starts what it finds there; if that does not serve, it goes on with the program
// before and says why.

// Files of the state directory of a held mount.
const (
	holderFile   = "holder"   // the holder's process id
	servingFile  = "serving"  // the process id and the version of the daemon that serves
	upgradeFile  = "upgrade"  // what is asked of the holder: hold.Format, and the path of the program
	upgradedFile = "upgraded" // why it did not do it
)

// upgradeLimit is how long an upgrade may take.
const upgradeLimit = 2 * joinLimit

const (
	// roundPatience is how long the holder waits for a moment without a round that has begun: no daemon could follow.
	roundPatience = 2 * time.Second
	// stopPatience is how long it waits until all threads of the daemon have stopped, each time.
	stopPatience = 100 * time.Millisecond
)

// upgradeVerb replaces the daemon of a mount by one of this program.
func upgradeVerb(p *program, args []string) error {
	f := p.flags("upgrade")
	if err := parse(f, args, 1, 1, "MNT"); err != nil {
		return err
	}
	m, err := findMount(f.Arg(0))
	if err != nil {
		return err
	}
	_, dir := daemonOf(m.Point)
	holder := holderOf(dir)
	if holder == 0 {
		return fail(exitOther, "%s has no holder (dsmfs status says why), or it has ended: unmount it, and mount it with the new program", m.Point)
	}
	free, err := lockUpgrade(dir, m.Point)
	if err != nil {
		return err
	}
	defer free()
	if err := followable(m.Point, dir); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	before, err := os.ReadFile(filepath.Join(dir, servingFile))
	if err != nil {
		return fail(exitSilent, "%s: no daemon serves at the moment: try again", m.Point)
	}
	if err := os.Remove(filepath.Join(dir, upgradedFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := replaceFile(filepath.Join(dir, upgradeFile), fmt.Sprintf("%d %s\n", hold.Format, self)); err != nil {
		return err
	}
	if err := unix.Kill(holder, unix.SIGUSR1); err != nil {
		return fail(exitOther, "tell the holder (pid %d): %w", holder, err)
	}
	end := time.After(upgradeLimit)
	for tick := time.NewTicker(busyRetry); ; {
		if text, err := os.ReadFile(filepath.Join(dir, upgradedFile)); err == nil {
			return fail(exitOther, "%s: %s", m.Point, text)
		}
		if now, err := os.ReadFile(filepath.Join(dir, servingFile)); err == nil && string(now) != string(before) && ofThisProgram(string(now)) {
			fmt.Fprintf(p.out, "%s is served by %s\n", m.Point, strings.TrimSpace(string(now)))
			return nil
		}
		select {
		case <-tick.C:
		case <-end:
			return fail(exitSilent, "%s: no other daemon serves after %v; see %s", m.Point, upgradeLimit, logOf(dir))
		}
	}
}

// holderOf returns the holder of a mount with a state directory, 0 if it has none.
func holderOf(dir string) int {
	text, err := os.ReadFile(filepath.Join(dir, holderFile))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 0 {
		return 0
	}
	// It is the parent of the daemons, and does nothing but that. If it has ended, its number may be that of another process.
	args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || !slices.Contains(strings.Split(string(args), "\x00"), "mount") {
		return 0
	}
	return pid
}

// askLimit is how long the verb waits for what a daemon says of the cluster.
const askLimit = 2 * time.Second

// followable returns an error while parts of the memory of a cluster would be lost with the daemon: none could follow. Nor must one that is there, and does not say.
func followable(point, dir string) error {
	var figures map[string]string
	var err error
	read := make(chan struct{})
	go func() {
		defer close(read)
		figures, err = readFlat(point, "cluster")
	}()
	select {
	case <-read:
	case <-time.After(askLimit):
		if serves(dir) {
			return fail(exitSilent, "%s: the daemon does not say within %v whether another one could follow it: try again", point, askLimit)
		}
		return nil // the holder says whether one is just beginning
	}
	if err != nil {
		return fail(exitOther, "%w", err)
	}
	if k := figures["ends_with_daemon"]; figures["members"] != "1" && k != "0" { // if there is only one the holder knows more
		return fail(exitOther, "%s: %s parts of the memory of the cluster are only at this node, and end with its daemon, so the mount would be lost: try again in some seconds (ends_with_daemon in /.dsm/cluster). A file of more than 64 GiB with user.dsm.replicas=1 always does", point, k)
	}
	return nil
}

// lockUpgrade keeps others from upgrading a mount at the same time: each would take the answer to the other for its own.
func lockUpgrade(dir, point string) (free func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil, errors.Join(fail(exitOther, "%s: another dsmfs upgrade of it is under way: wait until that has ended", point), f.Close())
	case err != nil:
		return nil, errors.Join(os.NewSyscallError("flock", err), f.Close())
	}
	return func() { _ = f.Close() }, nil // it frees the lock
}

// serves reports whether the daemon that served last lives.
func serves(dir string) bool {
	text, err := os.ReadFile(filepath.Join(dir, servingFile))
	var pid int
	if err == nil {
		_, err = fmt.Sscanf(string(text), "pid %d,", &pid)
	}
	return err == nil && unix.Kill(pid, 0) == nil
}

// ofThisProgram reports whether the daemon that serves, as it says itself, is of the program that asks. Another may have taken over because the one before was killed, or
// because the upgrade has failed.
func ofThisProgram(serving string) bool {
	var pid int
	if _, err := fmt.Sscanf(serving, "pid %d,", &pid); err != nil {
		return false
	}
	its, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return false
	}
	own, err := os.Stat(selfPath)
	return err == nil && os.SameFile(its, own)
}

// upgrade is another program for the daemon.
type upgrade struct {
	program *os.File
	from    *os.File // the program before; nil: that of the holder
	to      string   // where the answer goes
}

// askedFor returns the upgrade that is asked for in the state directory, and has stopped the daemon then: the caller kills it. If it is not possible it says so there, and
// returns nil.
func (h *keeper) askedFor() *upgrade {
	dir := h.mem.Text(hold.State)
	u := &upgrade{to: filepath.Join(dir, upgradedFile)}
	text, err := os.ReadFile(filepath.Join(dir, upgradeFile))
	format, path, ok := strings.Cut(strings.TrimSpace(string(text)), " ")
	switch reason := h.final(); {
	case err != nil || !ok:
		return nil
	case reason != "":
		u.answer("no daemon can follow this one: " + reason)
		return nil
	case h.mem.Word(hold.Left).Load() != 0:
		u.answer("the other nodes of its cluster have gone, so no daemon can follow this one: unmount it, and mount it with the new program")
		return nil
	case format != strconv.Itoa(hold.Format):
		u.answer(fmt.Sprintf("the program keeps what is held in format %s, and what is there has %d", format, hold.Format))
		return nil
	}
	if err := u.open(path); err != nil {
		u.answer(err.Error())
		return nil
	}
	if reason := h.halt(); reason != "" {
		_ = u.program.Close() // only read
		u.answer(reason)
		return nil
	}
	return u
}

// halt stops the daemon at a moment in which another one can follow it, and none of its programs is in a round, which would be out of it. If there is none it returns why, and the daemon goes on.
func (h *keeper) halt() (reason string) {
	round := uint64(0)
	for end, tick := time.After(roundPatience), time.NewTicker(time.Millisecond); ; {
		id := h.mem.InRound()
		if id == 0 && h.stop() {
			return ""
		}
		if id != 0 {
			round = id
		}
		if reason := h.final(); reason != "" {
			return "no daemon can follow this one: " + reason
		}
		select {
		case <-tick.C:
		case <-end:
			return h.unended(round)
		}
	}
}

// unended says why no daemon follows one that has begun rounds of a file again and again, or one that does not end; 0: it does not stop.
func (h *keeper) unended(file uint64) string {
	if file == 0 {
		return "the daemon does not stop: try again"
	}
	return fmt.Sprintf("a round of a group has begun at this node and does not end, of the file with inode number %d (find %s -inum %d): try again when it has. "+
		"If a node has died that alone had a part of the file, it never ends: remove the file, and try again", file, h.mem.Text(hold.Point), file)
}

// stop stops the daemon. If the holder is killed before it has killed it, the kernel has the daemon go on (start). If it has begun a round meanwhile, or does not stop, it goes on, and stop returns false.
func (h *keeper) stop() bool {
	p := h.cmd.Process
	if p.Signal(syscall.SIGSTOP) != nil {
		return true // it has ended
	}
	for end, tick := time.After(stopPatience), time.NewTicker(time.Millisecond); ; {
		if stopped(p.Pid) {
			if h.mem.InRound() == 0 && h.final() == "" {
				return true
			}
			break
		}
		select {
		case <-tick.C:
			continue
		case <-end:
		}
		break
	}
	_ = p.Signal(syscall.SIGCONT) // if it has ended, that is heard next
	return false
}

// refuse says why nothing is done about an upgrade that is asked for.
func (h *keeper) refuse(reason string) {
	u := &upgrade{to: filepath.Join(h.mem.Text(hold.State), upgradedFile)}
	u.answer(reason)
}

// leastFD is larger than the number of any descriptor that a child is given. The child opens its program by /proc/self/fd only after it has its descriptors,
// and these must not replace that of the program.
const leastFD = 64

// open opens the program.
func (u *upgrade) open(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, leastFD)
	if err = errors.Join(os.NewSyscallError("fcntl", err), f.Close()); err == nil {
		u.program = os.NewFile(uintptr(fd), path)
	}
	return err
}

// follow has the program be that of the daemons from now on. The keeper has it then: a file that nothing refers to any more is closed some time.
func (u *upgrade) follow(h *keeper) {
	u.from, h.program = h.program, u.program
}

// done says that the program has served: nobody goes back to the one before.
func (u *upgrade) done() {
	_ = u.from.Close() // only read; if it is that of the holder, nothing was open
}

// failed goes back to the program before.
func (u *upgrade) failed(h *keeper, how string) {
	h.program = u.from
	_ = u.program.Close() // only read
	u.answer(how + ": the program before goes on; see the log")
}

// answer says why it was not done.
func (u *upgrade) answer(text string) {
	_ = replaceFile(u.to, text) // then the one that asked waits in vain, and says so
}
