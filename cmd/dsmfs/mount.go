package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/dsmfs/dsmfs/fs"
	"github.com/dsmfs/dsmfs/fs/attach"
	"github.com/dsmfs/dsmfs/fs/harvest"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/hold"
	"github.com/dsmfs/dsmfs/internal/mountinfo"
)

const (
	// joinLimit bounds how long mount waits for the cluster.
	joinLimit = 20 * time.Second
	// joinAgain is how long it tries to join through nodes that refuse connections, every joinPause.
	joinAgain = 3 * time.Second
	joinPause = 200 * time.Millisecond
	// leaveLimit bounds how long a node that is told to end hands over what others need.
	leaveLimit = 20 * time.Second
)

// mountVerb mounts, in the background unless told otherwise. When it returns without an error the
// mount is usable; with -f, it was usable and has ended.
func mountVerb(p *program, args []string) error {
	c, err := parseMount(p, args)
	if err != nil {
		return err
	}
	if !c.foreground {
		return background(c, args)
	}
	parent, err := newReporter()
	if err != nil {
		return err
	}
	var mem *hold.Memory
	held, err := newHeld()
	if err == nil && held == nil {
		mem, err = c.beginHold()
	}
	switch {
	case err != nil:
	case mem != nil:
		err = holdMount(c, args, mem, parent)
	default:
		var service *service
		if service, err = newService(held != nil); err == nil {
			err = runMount(p, c, parent, service, held)
		}
	}
	if err != nil && parent.tell(news{Error: err.Error(), Code: codeOf(err)}) {
		return &exitError{codeOf(err), errPrinted} // the parent prints it
	}
	return err
}

// runMount is the life of a daemon. It acquires what the mount needs, beginning with what can be
// refused most cheaply, serves until it is told to end, and releases everything.
func runMount(p *program, c mountConfig, parent *reporter, service *service, held *held) error {
	stop := make(chan os.Signal, 2)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
	point, made, err := "", false, error(nil)
	if held != nil && held.resuming {
		point = held.mem.Text(hold.Point) // nobody serves it: it must not be touched
	} else {
		point, made, err = c.place(stop)
	}
	if err != nil {
		return err
	}
	c.point = point
	st, err := openState(c.state, point, held != nil && held.resuming)
	if err != nil {
		return errors.Join(err, removeMade(made, point))
	}
	c.state = st.dir
	if err = st.note(c.noMount, made); err == nil {
		err = serveMount(p, c, st, parent, service, held, stop)
	}
	st.close()
	return err
}

// serveMount does the part of runMount that has the state directory.
func serveMount(p *program, c mountConfig, st *state, parent *reporter, service *service, held *held, stop chan os.Signal) error {
	out, err := openLog(p, &c, st)
	if err != nil {
		return err
	}
	defer out.close()
	log, level, err := newLog(out, c.logLevel)
	if err != nil {
		return err
	}
	if held != nil {
		if err := held.begin(&c, log); err != nil {
			return err
		}
	}
	if c.cannotHold != "" {
		log.Warn("the mount is lost if the daemon is killed: there can be no holder", "why", c.cannotHold)
	}
	if c.force && !c.noMount && (held == nil || !held.resuming) {
		if err := replaceDead(c.point, log); err != nil {
			return err
		}
	}
	if c.detached {
		if err := out.divert(); err != nil {
			return err
		}
		if err := os.Chdir("/"); err != nil { // so that no other filesystem stays busy
			return err
		}
	}
	if most := usableMemory(); withMargin(int64(c.memory)) > most.bytes/4*3 && !most.group {
		log.Warn("when files take all of --memory, hardly any is left for programs", "memory", c.memory.String(), "there", formatSize(most.bytes))
	}
	profiled, err := startProfile()
	if err != nil {
		return err
	}
	defer func() {
		if err := profiled(); err != nil {
			log.Error("profile", "err", err)
		}
	}()
	n, err := startInTime(nodeConfig{mountConfig: c, log: log, level: level, held: held}, stop)
	if err != nil {
		log.Error("mount failed", "err", err)
		return err
	}
	err = st.write(addrFile, n.self.Addr)
	if err != nil && held != nil && held.resuming { // programs go on, and the address is the same
		log.Error("others may not find this node", "err", err)
		err = nil
	}
	if err == nil {
		what := "mounted"
		if c.noMount {
			what = "ready, without a mount"
		}
		log.Info(what, "mount", c.point, "addr", n.self.Addr, "node", n.self.ID, "version", programVersion())
		if held != nil {
			if held.serves() {
				select {
				case stop <- syscall.SIGTERM:
				default: // others have come
				}
			}
			err = errors.Join(st.write(holderFile, strconv.Itoa(os.Getppid())), st.write(servingFile, fmt.Sprintf("pid %d, version %s", os.Getpid(), programVersion())))
			st.files = append(st.files, upgradeFile, upgradedFile)
		}
		// Who is told finds that line in the log.
		parent.tell(news{Ready: true, Addr: n.self.Addr})
		if serr := service.tell("READY=1\nSTATUS=serving " + c.point + " at " + n.self.Addr); serr != nil {
			log.Warn("the service manager cannot be told", "err", serr)
		}
		select {
		case s := <-stop:
			log.Info("told to end", "signal", s.String())
		case <-n.fs.Done():
			log.Info("unmounted by somebody else")
		}
	}
	if held != nil {
		held.mem.Word(hold.Ended).Store(1)
	}
	_ = service.tell("STOPPING=1\nSTATUS=publishing and leaving the cluster") // the service manager may be gone
	ctx, cancel := context.WithTimeout(context.Background(), leaveLimit)
	defer cancel()
	if serr := n.stop(ctx, stop); serr != nil {
		log.Error("did not leave cleanly", "err", serr)
		if st.write(failedFile, serr.Error()) == nil {
			st.keep(failedFile)
		}
		err = errors.Join(err, withCode(exitLeave, serr))
	}
	if err == nil {
		log.Info("left")
	}
	return err
}

// startInTime starts the node. joinLimit or a signal ends the attempt, but that of a daemon that takes over only joinLimit; the signal stays in the
// channel.
func startInTime(cfg nodeConfig, stop chan os.Signal) (*node, error) {
	ctx, cancel := context.WithTimeout(context.Background(), joinLimit)
	defer cancel()
	if cfg.held != nil && cfg.held.resuming { // it can leave in order only when it serves
		return startNode(ctx, cfg)
	}
	started := make(chan struct{})
	defer close(started)
	go func() {
		select {
		case s := <-stop:
			stop <- s
			cancel()
		case <-started:
		}
	}()
	return startNode(ctx, cfg)
}

// place returns the absolute path that identifies the node: the mount point, or a name if the node
// has no mount. It checks that the machine can mount there. It waits for a daemon that is about to
// leave the path, and makes the directory if only that is missing.
func (c *mountConfig) place(stop chan os.Signal) (point string, made bool, err error) {
	if c.noMount {
		point, err = filepath.Abs(c.point)
		return point, false, withCode(exitPoint, err)
	}
	if err := checkMachine(); err != nil {
		return "", false, err
	}
	if err := awaitLeaving(c.point, stop); err != nil {
		return "", false, err
	}
	err = os.Mkdir(c.point, 0o755)
	made = err == nil
	if err != nil && !errors.Is(err, os.ErrExist) {
		return "", false, fail(exitPoint, "the mount point cannot be made: %w", err)
	}
	if point, err = checkPoint(c.point, c.force); err != nil {
		return "", false, errors.Join(err, removeMade(made, c.point))
	}
	return point, made, nil
}

// removeMade removes a mount point that was made for the mount, unless something is in it.
func removeMade(made bool, point string) error {
	if !made {
		return nil
	}
	return withCode(exitPoint, removeEmpty(point))
}

// awaitLeaving waits for a daemon whose mount is already gone. Until it has published and left its
// cluster, it still has the port and the state directory, and it then removes the mount point if it
// made it.
func awaitLeaving(path string, stop chan os.Signal) error {
	all, err := mountinfo.Read()
	if err != nil {
		return err
	}
	point, err := resolveMount(path, all)
	if err != nil {
		return nil // the directory above is missing; making the mount point will report that
	}
	pid, dir := daemonOf(point)
	if _, mounted := mountinfo.Top(all, point); mounted || pid == 0 || !isLeaving(dir) {
		return nil
	}
	w, err := watchProcess(pid)
	if err != nil {
		return err
	}
	gone := make(chan struct{})
	go func() {
		w.wait(leaveLimit + leaveLimit/2) // if it does not end, openState reports that it has the state
		w.close()
		close(gone)
	}()
	select {
	case <-gone:
		return nil
	case s := <-stop:
		return fail(exitOther, "told to end (%v) while a daemon (pid %d) was still leaving %s", s, pid, point)
	}
}

// checkPoint returns the absolute mount point if it is possible to mount there. With force, a dead
// mount may be there, which is going to be replaced.
func checkPoint(path string, force bool) (string, error) {
	err := fs.CheckMountpoint(path)
	switch {
	case errors.Is(err, fs.ErrDeadMount) && force:
	case errors.Is(err, fs.ErrDeadMount), errs.Is(err, errs.Busy):
		return "", withCode(exitBusy, err)
	case err != nil:
		return "", withCode(exitPoint, err)
	}
	all, err := mountinfo.Read()
	if err != nil {
		return "", err
	}
	point, err := resolveMount(path, all)
	return point, withCode(exitPoint, err)
}

// replaceDead unmounts a dead mount.
func replaceDead(point string, log *slog.Logger) error {
	for {
		err := fs.CheckMountpoint(point)
		if !errors.Is(err, fs.ErrDeadMount) {
			return withCode(exitBusy, err)
		}
		log.Info("taking a dead mount away", "mount", point)
		if err := fs.UnmountPath(point, true); err != nil {
			return withCode(exitBusy, err)
		}
	}
}

// guardVerbName is the hidden verb of the child process that outlives a killed daemon; see
// attach.GuardMain.
const guardVerbName = "guard"

func guardVerb(*program, []string) error { return attach.GuardMain(os.Stdin) }

// harvestVerbName is the hidden verb of the child process that makes the kernel hand over what
// programs stored; see harvest.Main.
const harvestVerbName = "harvest"

func harvestVerb(*program, []string) error {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP) // it ends when its input ends
	err := harvest.Main(os.Stdin, os.Stdout)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return nil // the daemon was killed in the middle of a request
	}
	return err
}
