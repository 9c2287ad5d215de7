package fs

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/procs"
)

// opener is the process that has opened a versioned file to write. If it is killed it may have been in the midst of a version, so nothing of that is published: see Area.Killed. The zero opener is not
// known, and is not killed.
type opener struct {
	process *procs.Process
	gone    bool
}

// is says which process it is. It has gone if a daemon that was killed had the handle, and the process has ended since: an exit would wait for the close.
func (o *opener) is(pid int) {
	p, err := procs.Open(pid)
	o.process, o.gone = p, errors.Is(err, unix.ESRCH)
}

func (o *opener) killed() bool { return o.gone || o.process.Killed() }

func (o *opener) forget() { o.process.Close() }
