// Package child starts the daemon's own child processes, the harvester's child and the guard, in
// the same way.
package child

import (
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// StopTimeout is how long a child may take to end after its input has ended.
const StopTimeout = 5 * time.Second

// Command returns the command of a child; name is what the log calls it. One processor is
// enough for it. It has a process group of its own, so that a Ctrl-C in the terminal does not end it
// before the daemon.
func Command(log *slog.Logger, name string, argv []string) *exec.Cmd {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Stderr = &lineLogger{log, name}
	return cmd
}

// lineLogger writes the output of a child to the log.
type lineLogger struct {
	log   *slog.Logger
	child string
}

func (l *lineLogger) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		l.log.Warn(l.child, "stderr", strings.TrimSuffix(line, "\n"))
	}
	return len(p), nil
}
