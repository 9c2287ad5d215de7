package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/fs"
	"github.com/dsmfs/dsmfs/internal/hold"
)

// The holder is the process of a mount that is not killed with the daemon, unless it is told not to be there: --hold=off. It does next to nothing: it has
// /dev/fuse open, and the file of package hold, and starts the daemon, again when it was killed. While a descriptor of /dev/fuse is open
// the mount stays, and its programs wait.
//
//	dsmfs mount       the holder: opens, starts, waits
//	  dsmfs mount     the daemon, told by heldVariable that it is one
//
// The daemon mounts, and unmounts when it ends in order; then the holder ends. If no daemon can be started, or they are killed too often,
// the holder ends all the same: the kernel then ends all requests with ENOTCONN.

// heldVariable tells a daemon which descriptors it has from the holder: of the file, of /dev/fuse and of the socket through which it gives the holder more. A text follows
// that says what became of the daemon before, if there was one.
const heldVariable = "DSMFS_HELD"

// Descriptors of the daemon.
const (
	heldFD = 3 + iota
	deviceFD
	filesFD
	heldReadyFD
)

const (
	// After so many daemons in a row that ended by themselves no other is started, if each did within crashWindow of the one before or
	// did not serve at all.
	mostCrashes = 5
	crashWindow = 10 * time.Second
	// mostKills is the same for daemons that were killed from outside before they served.
	mostKills = 50
	// restartPause is how long the holder waits after the second crash; then twice as long each time.
	restartPause = 100 * time.Millisecond
)

// keeper is the holder, and has what is held.
type keeper struct {
	c      mountConfig
	args   []string
	mem    *hold.Memory
	device int
	// program is that of the daemon, open so that it can be started again whatever becomes of its path. nil: it is that of the holder.
	program *os.File
	shelf   *hold.Shelf   // what daemons have given it
	daemon  int           // its end of the socket to the daemon
	served  chan struct{} // closed when nothing comes from there any more; nil: there is no socket
	cmd     *exec.Cmd
	dead    chan struct{} // closed when the daemon does nothing any more
	ended   chan struct{} // closed when it has ended, with cmd.ProcessState set
}

// holdMount is the life of a holder, with what is held. args are those of mount.
func holdMount(c mountConfig, args []string, mem *hold.Memory, parent *reporter) error {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGUSR1)
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
	if err := checkMachine(); err != nil {
		return err
	}
	device, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail(exitMachine, "open /dev/fuse: %w", err)
	}
	if args, err = c.forHeirs(args); err != nil {
		return err
	}
	h := &keeper{c: c, args: args, mem: mem, device: device, shelf: hold.NewShelf()}
	if err := h.start("", parent); err != nil {
		return err
	}
	if c.detached {
		if err := os.Chdir("/"); err != nil { // so that no other filesystem stays busy
			return err
		}
	}
	return h.watch(signals)
}

// forHeirs returns the arguments for all daemons: with what may be another later, or in another directory.
func (c *mountConfig) forHeirs(args []string) ([]string, error) {
	args = append(slices.Clone(args), "--memory", strconv.FormatInt(int64(c.memory), 10))
	for _, f := range []struct{ flag, path string }{{"--state", c.state}, {"--log-file", c.logFile}} {
		if f.path == "" {
			continue
		}
		path, err := filepath.Abs(f.path)
		if err != nil {
			return nil, err
		}
		args = append(args, f.flag, path)
	}
	return args, nil
}

// binary returns a path of the daemon's program that does not change.
func (h *keeper) binary() string {
	if h.program == nil {
		return selfPath
	}
	return fmt.Sprintf("/proc/self/fd/%d", h.program.Fd())
}

// start starts a daemon. before says what became of the one before.
func (h *keeper) start(before string, parent *reporter) error {
	cmd := exec.Command(h.binary(), append([]string{"mount"}, h.args...)...)
	cmd.Args[0] = "dsmfs"
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	// Ctrl-C is for the holder, which passes it on. If the holder is killed the daemon goes on without it, also if it was just stopped.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGCONT}
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d %d %s", heldVariable, heldFD, deviceFD, filesFD, before))
	memory, err := duplicate(h.mem.FD(), "held")
	if err != nil {
		return err
	}
	device, err := duplicate(h.device, "/dev/fuse")
	if err != nil {
		return errors.Join(err, memory.Close())
	}
	files, err := h.talk()
	if err != nil {
		return errors.Join(err, memory.Close(), device.Close())
	}
	cmd.ExtraFiles = []*os.File{memory, device, files}
	if parent != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, parent.pipe)
		cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%d", readyVariable, heldReadyFD))
	}
	wait, release := h.mem.Expect()
	h.mem.Word(hold.Daemons).Add(1)
	err = errors.Join(cmd.Start(), memory.Close(), device.Close(), files.Close())
	if parent != nil {
		err = errors.Join(err, parent.pipe.Close()) // if the daemon ends now, the parent is to hear of it
	}
	if err != nil {
		return fmt.Errorf("start the daemon: %w", err)
	}
	dead, ended := make(chan struct{}), make(chan struct{})
	h.cmd, h.dead, h.ended = cmd, dead, ended
	go func() {
		_ = cmd.Wait() // ProcessState has the result
		close(ended)
		release()
	}()
	go func() {
		defer close(dead)
		h.awaitDeath(cmd.Process.Pid, func() thread { return mostOf(cmd.Process.Pid) }, wait, ended)
	}()
	return nil
}

// talk begins to answer a daemon, and returns that one's end of the socket. The daemon before is not heard any more.
func (h *keeper) talk() (*os.File, error) {
	h.hush()
	own, its, err := hold.Pair()
	if err != nil {
		return nil, err
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		h.shelf.Serve(own)
	}()
	h.daemon, h.served = own, served
	return os.NewFile(uintptr(its), "files"), nil
}

// hush ends what talk has begun.
func (h *keeper) hush() {
	if h.served == nil {
		return
	}
	_ = unix.Shutdown(h.daemon, unix.SHUT_RDWR) // ENOTCONN if the daemon has ended
	<-h.served
	_ = unix.Close(h.daemon)
	h.served = nil
}

// letGo closes what daemons have given the holder, of which none follows, and takes the socket away at which programs attach.
func (h *keeper) letGo() {
	h.hush()
	if h.mem.Word(hold.Listening).Swap(0) != 0 {
		_ = os.Remove(filepath.Join(h.mem.Text(hold.State), attachFile)) // if it stays, nobody listens there
	}
	_ = h.shelf.Close() // only memory and a socket
}

// sayAfter is how long a daemon that was killed may take to end before the log says so.
const sayAfter = 5 * time.Second

// stuckLooks is how many times in a row, a millisecond apart, a daemon that is being killed must be seen to be unable to end.
const stuckLooks = 20

// awaitDeath returns when a child has ended, and ended is closed then, or when it is dead and cannot end: see hold.Memory.Live.
// look returns what the thread of it does that does most.
func (h *keeper) awaitDeath(pid int, look func() thread, wait func(), ended <-chan struct{}) {
	wait()
	tick, late := time.NewTicker(time.Millisecond), time.After(sayAfter)
	defer tick.Stop()
	for stuck := 0; stuck < stuckLooks; { // the other threads end now, too
		if look() == waits {
			stuck++
		} else { // if all threads seem to have ended: the kernel's list of them can be short while they end, and the rest be stuck
			stuck = 0
		}
		select {
		case <-ended:
			return
		case <-late:
			h.say("the daemon that was killed does not end: the next one waits for it", "pid", pid)
		case <-tick.C:
		}
	}
}

// duplicate returns another descriptor of the same file, which the caller closes.
func duplicate(fd int, name string) (*os.File, error) {
	other, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(other), name), nil
}

// watch starts daemons one after the other, and returns when the last has ended.
func (h *keeper) watch(signals <-chan os.Signal) error {
	crashes, kills, last := 0, 0, time.Now()
	var asked, next *upgrade // the one that is to follow; that of the daemon now, if it began with it
	for {
		select {
		case s := <-signals:
			switch {
			case s != syscall.SIGUSR1:
				h.tell(s)
			case asked != nil || next != nil && !h.serves():
				h.refuse("another upgrade is under way: try again when it has ended")
			default:
				if asked = h.askedFor(); asked != nil {
					_ = h.cmd.Process.Kill() // likewise; it is stopped
				}
			}
			continue
		case <-h.dead:
		}
		if reason := h.final(); reason != "" {
			return h.giveUp(reason)
		}
		if h.unmounted() {
			return h.goodbye()
		}
		killed, how := h.post()
		h.silence()
		served := h.serves()
		if next != nil && served {
			next.done()
		}
		if told := h.mem.Word(hold.Told); told.Load() != 0 {
			if !served && !killed {
				return h.giveUp("told to end, and no daemon could begin")
			}
			told.Store(1) // it was killed before it could end in order
		}
		switch {
		case next != nil && !served:
			next.failed(h, "the new daemon ended before it served ("+how+")")
		case served && killed:
			crashes, kills = 0, 0
		case killed:
			kills++
		case served && time.Since(last) > crashWindow:
			crashes, kills = 1, 0
		default:
			crashes++
		}
		next, last = nil, time.Now()
		if asked != nil {
			next, asked = asked, nil
			next.follow(h)
		}
		if crashes >= mostCrashes || kills >= mostKills {
			return h.giveUp(fmt.Sprintf("%d daemons in a row have ended, or %d were killed before they served", crashes, kills))
		}
		if crashes > 1 {
			if s := h.rest(signals, restartPause<<(crashes-2)); s != nil {
				return h.giveUp("told to end (" + s.String() + ") while no daemon was there")
			}
		}
		for err := h.start(how, nil); err != nil; err = h.start(how, nil) {
			switch {
			case next != nil:
				next.failed(h, err.Error())
				next = nil
				continue
			case crashes >= mostCrashes:
				return h.giveUp(err.Error())
			}
			if s := h.rest(signals, restartPause<<crashes); s != nil { // the machine may be short of memory or processes for a moment
				return h.giveUp("told to end (" + s.String() + ") while no daemon was there")
			}
			crashes++
		}
	}
}

// tell tells the daemon to end. One that is about to take over hears of it when it serves: only then it can leave in order.
func (h *keeper) tell(s os.Signal) {
	told := h.mem.Word(hold.Told)
	told.Store(1)
	if first := h.mem.Word(hold.Serving).Load() == 0; (first || h.serves()) && told.CompareAndSwap(1, 2) {
		_ = h.cmd.Process.Signal(s) // if it has ended, that is heard next
	}
}

// rest waits while no daemon is there that could end in order, or be replaced. It returns the signal that tells the holder to end, nil if none came.
func (h *keeper) rest(signals <-chan os.Signal, d time.Duration) os.Signal {
	for end := time.After(d); ; {
		select {
		case s := <-signals:
			if s != syscall.SIGUSR1 {
				return s
			}
			h.refuse("no daemon serves at the moment: try again")
		case <-end:
			return nil
		}
	}
}

// serves reports whether the last daemon serves, or has served.
func (h *keeper) serves() bool {
	return h.mem.Word(hold.Serving).Load() == h.mem.Word(hold.Daemons).Load()
}

// final returns why no daemon follows the one that has ended, "" if one does. The daemon was not mounted yet, or not any more, or has said so.
func (h *keeper) final() string {
	is := func(w hold.Word) bool { return h.mem.Word(w).Load() != 0 }
	switch {
	case is(hold.Ended), !is(hold.Mounted):
		return "ended"
	case is(hold.Refused):
		return "the daemon said that no other can follow it"
	}
	return ""
}

// unmounted reports whether the mount is gone: the kernel has nothing to ask any more.
func (h *keeper) unmounted() bool {
	device := []unix.PollFd{{Fd: int32(h.device)}}
	n, err := unix.Poll(device, 0)
	return err == nil && n == 1 && device[0].Revents&unix.POLLERR != 0
}

// goodbye ends the holder of a mount that was unmounted while no daemon served, so that none could leave the cluster.
func (h *keeper) goodbye() error {
	h.letGo()
	<-h.ended
	if h.mem.Word(hold.Others).Load() == 0 {
		return nil
	}
	const what = "unmounted while no daemon was there: the node has not left its cluster in order, and the others go on without it when its lease has ended"
	h.say(what)
	return fail(exitLeave, what)
}

// giveUp ends the holder, as the daemon ended.
func (h *keeper) giveUp(reason string) error {
	if reason != "ended" {
		h.say("the daemon has ended, and no other follows it: the mount is lost", "reason", reason)
		// Nobody is to wait for an answer any more. The daemon may be unable to end while it waits for one, and has /dev/fuse open so long.
		if err := fs.Abort(h.mem.Text(hold.Point), h.mem.Word(hold.Device).Load()); err != nil {
			h.say("requests that are under way may hang (dsmfs umount --force)", "err", err)
		}
		_ = unix.Close(h.device) // it is closed at the end in any case
		h.letGo()
	}
	<-h.ended
	state := h.cmd.ProcessState
	if state.Success() {
		return nil
	}
	if code := state.ExitCode(); code > 0 {
		return &exitError{exitCode(code), errPrinted}
	}
	return fail(exitDied, "the daemon has ended (%v): %s", state, reason)
}

// post returns whether the daemon was killed from outside, and how it ended. If it cannot end, it was killed.
func (h *keeper) post() (killed bool, how string) {
	select {
	case <-h.ended:
	default:
		return true, "killed"
	}
	status, _ := h.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return status.Signaled() && status.Signal() == syscall.SIGKILL, h.cmd.ProcessState.String()
}

// silence takes the network from a daemon that is dead and cannot end.
func (h *keeper) silence() {
	select {
	case <-h.ended:
		return
	default:
	}
	shut, err := hangUp(h.cmd.Process.Pid)
	if err != nil {
		h.say("the daemon that was killed cannot end, and keeps connections: others may wait for it in vain until the next one serves", "shut", shut, "err", err)
	}
}

// say writes to the log of the daemons.
func (h *keeper) say(what string, args ...any) {
	w := os.Stderr
	if path := h.mem.Text(hold.Log); path != "" {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
		if err == nil {
			defer func() { _ = f.Close() }()
			w = f
		}
	}
	slog.New(slog.NewTextHandler(w, nil)).Error(what, args...)
}

// held is what a daemon has from the holder; nil: there is none.
type held struct {
	mem      *hold.Memory
	files    hold.Descriptors
	device   int
	holder   int    // its process
	resuming bool   // there was a daemon before
	before   string // what became of it
}

// follows reports whether this process is to follow a daemon that has ended.
func follows() bool {
	words := strings.SplitN(os.Getenv(heldVariable), " ", 4)
	return len(words) == 4 && words[3] != ""
}

// newHeld returns what this process has from a holder, nil if it has none. It removes the variable from the environment.
func newHeld() (*held, error) {
	text, ok := os.LookupEnv(heldVariable)
	if !ok {
		return nil, nil
	}
	if err := os.Unsetenv(heldVariable); err != nil {
		return nil, err
	}
	var fd, files int
	h := &held{holder: os.Getppid()}
	words := strings.SplitN(text, " ", 4)
	if _, err := fmt.Sscan(text, &fd, &h.device, &files); err != nil || len(words) != 4 {
		return nil, fail(exitUsage, "%s=%q: want three descriptors", heldVariable, text)
	}
	h.before = words[3]
	unix.CloseOnExec(h.device)
	var err error
	if h.mem, err = hold.Adopt(fd); err != nil {
		return nil, fail(exitMachine, "%w", err)
	}
	if h.files, err = hold.NewFiles(files); err != nil {
		return nil, fail(exitMachine, "%w", err)
	}
	h.resuming = h.mem.Word(hold.Mounted).Load() != 0
	return h, h.mem.Live()
}

// serves says that the daemon serves. It returns true if it is to end: the holder was told so before.
func (h *held) serves() (ends bool) {
	h.mem.Word(hold.Serving).Store(h.mem.Word(hold.Daemons).Load())
	return h.mem.Word(hold.Told).CompareAndSwap(1, 2)
}
