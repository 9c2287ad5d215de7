package coherence

import (
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// An area is short when its memory could not be made as long as the catalog says. It then acts on the inode of before, as a node does
// that has not applied the entry of the catalog yet: protocol and engine know such nodes. So what others send that know of the entry
// waits, in the order in which it came; it is bounded by their windows. Programs of this node that need what is missing, or an answer
// of a home, get errs.NoSpace. It tries again after a while, when a program needs it, and when another area has given back memory.

// short is what an area waits for.
type short struct {
	ino     *dsm.Inode // the newest one of the catalog; nil: the area is not short
	err     error      // of the last try
	waiting []message  // messages made under it, and what came behind them
	timer   *time.Timer
	pause   time.Duration
}

// The pause between two tries doubles from shortRetry to shortRetryMost.
const (
	shortRetry     = time.Second
	shortRetryMost = 30 * time.Second
)

// fallShortLocked takes note that the memory cannot be made as long as the inode says.
func (a *Area) fallShortLocked(ino dsm.Inode, err error) {
	s := &a.mu.short
	if s.ino == nil {
		a.node.shortAreas.Add(1)
		s.pause = shortRetry
	}
	s.ino, s.err = &ino, err
	a.node.warnOfMemory(a.id, err)
	if s.timer == nil {
		s.timer = time.AfterFunc(s.pause, func() {
			a.step(func() {
				s.timer = nil
				s.pause = min(2*s.pause, shortRetryMost)
				a.growLocked()
			})
		})
	}
	a.mu.wake = true
}

// growLocked tries again to make the memory as long as it is to be.
func (a *Area) growLocked() error {
	s := &a.mu.short
	if s.ino == nil {
		return nil
	}
	a.inodeChangedLocked(*s.ino)
	return a.shortLocked()
}

// endShortLocked ends that the area is short: it acts on the newest inode.
func (a *Area) endShortLocked() {
	s := &a.mu.short
	if s.ino == nil {
		return
	}
	waiting := s.waiting
	s.ino, s.err, s.waiting = nil, nil, nil
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	a.node.shortAreas.Add(-1)
	for _, m := range waiting {
		if err := a.receiveLocked(m.peer, m.msg, m.payload); err != nil {
			a.node.cfg.Log.Warn("bad message that waited for memory", "area", a.id, "from", m.peer, "err", err)
		}
	}
}

// shortLocked returns the error of a program that needs more of the area than there is memory for; nil if it is not short.
func (a *Area) shortLocked() error {
	s := &a.mu.short
	if s.ino == nil {
		return nil
	}
	return &errs.Error{Op: "reserve memory", Area: a.id, Kind: errs.NoSpace, Err: s.err}
}

// missesLocked returns that error if [off, off+n) goes past what there is memory for, after it has tried to make some.
func (a *Area) missesLocked(off, n int64) error {
	if a.mu.short.ino == nil || off+n <= a.mu.ino.Size || off >= a.mu.short.ino.Size {
		return nil
	}
	return a.growLocked()
}

// waitsForMemoryLocked keeps a message that is to be handled when the area is not short any more.
func (a *Area) waitsForMemoryLocked(from dsm.NodeID, st *wire.Stamp, msg any, payload []byte) bool {
	s := &a.mu.short
	if s.ino == nil {
		return false
	}
	behind := false
	for _, m := range s.waiting {
		behind = behind || m.peer == from
	}
	if !behind && st.Rev <= a.mu.ino.Rev {
		return false
	}
	m := message{peer: from, msg: msg, payload: [][]byte{append([]byte(nil), payload...)}}
	s.waiting = append(s.waiting, m)
	return true
}

// memoryFreed has areas that are short try again. The caller may hold the lock of an area.
func (n *Node) memoryFreed() {
	if n.shortAreas.Load() == 0 {
		return
	}
	go func() {
		for _, a := range n.all() {
			a.step(func() { _ = a.growLocked() }) // else the next try
		}
	}()
}
