package attach

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/child"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/uffd"
)

// GuardMain runs the guard of a daemon: a child process that outlives the daemon, so that programs
// waiting for missing pages get SIGBUS and not zeroes when the daemon is killed. cmd calls it for
// the hidden verb in Config.GuardArgv, with the socket as standard input. Signals that end a whole
// service or terminal do not end the guard; its daemon does.
func GuardMain(socket *os.File) error {
	// SIGPIPE: the guard's output goes to the daemon, which is dead when the guard has work to do.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	return uffd.GuardMain(socket)
}

// guardProcess starts the guard's process at the first Add, and ends it.
type guardProcess struct {
	*uffd.Guard
	argv []string
	log  *slog.Logger
	// last is the last process, nil if there was none, and exited is closed when it has ended. Only
	// the goroutine of the Guard sets them, so they may be read after Close.
	last   *exec.Cmd
	exited chan struct{}
}

func newGuard(argv []string, log *slog.Logger) *guardProcess {
	g := &guardProcess{argv: argv, log: log}
	g.Guard = uffd.NewGuard(g.start)
	return g
}

// start is the uffd.GuardStart.
func (g *guardProcess) start() (_ *os.File, kill func(), err error) {
	defer func() {
		if err != nil {
			g.log.Warn("start guard", "err", err)
		}
	}()
	if len(g.argv) == 0 {
		return nil, nil, errs.E(errs.Invalid, "start guard", "no command for it")
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "guard"), os.NewFile(uintptr(pair[1]), "guard")
	defer theirs.Close()
	cmd := child.Command(g.log, "guard", g.argv)
	cmd.Stdin = theirs
	if err := cmd.Start(); err != nil {
		_ = ours.Close() // nothing was sent
		return nil, nil, fmt.Errorf("start %s: %w", g.argv[0], err)
	}
	exited := make(chan struct{})
	g.last, g.exited = cmd, exited
	go func() {
		err := cmd.Wait()
		g.log.Debug("guard ended", "pid", cmd.Process.Pid, "err", err)
		close(exited)
	}()
	return ours, func() {
		g.log.Warn("the guard has ended, or does not read; it is killed if it still runs", "pid", cmd.Process.Pid)
		_ = cmd.Process.Kill() // it may have ended
	}, nil
}

// stop ends the process and waits for it. All that it guarded must be closed.
func (g *guardProcess) stop() {
	g.Close()
	if g.last == nil {
		return
	}
	select {
	case <-g.exited:
		return
	case <-time.After(child.StopTimeout):
	}
	g.log.Warn("guard does not end; killing it", "pid", g.last.Process.Pid)
	_ = g.last.Process.Kill() // it may have ended
	<-g.exited
}
