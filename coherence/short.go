package coherence

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/pages"
)

// An area is short when its memory could not be made as long as the catalog says. It then goes on with its old inode, like a node that
// has not applied the newest entries of the catalog. The protocol allows for such nodes, so nothing else must be changed for it. Messages
// made under a newer inode wait, in order. They are few: the windows of their senders bound them, and when a session breaks, its messages wait no more.
//
// Programs of this node get errs.NoSpace if they need the missing part, or an answer of a home. The area tries again after a while, when
// a program needs the memory, and when another area has given memory back.
//
// It is also short, and busy, while what programs had past its end has to be freed before it gets longer. Nearly always that is done at once. But the kernel has it wait for
// a program that is in write(2) to the memory, which may take as long as the program likes. So programs that need the missing part, or an answer of a home, wait.

// short is what is known of a short area.
type short struct {
	ino     *dsm.Inode // the newest inode of the catalog; nil: the area is not short
	err     error      // of the last try
	waiting []message  // messages made under a newer inode than the area's, and later messages of their senders
	timer   *time.Timer
	pause   time.Duration
}

// The pause between two tries doubles from shortRetry to shortRetryMost.
const (
	shortRetry     = time.Second
	shortRetryMost = 30 * time.Second
)

// fallShortLocked records that the memory cannot be made as long as the inode says, and sets the timer for the next try.
func (a *Area) fallShortLocked(ino dsm.Inode, err error) {
	s := &a.mu.short
	if errs.Is(err, errs.Busy) {
		a.dropAllPastLocked() // when it is over, the area tries again
	}
	if !errs.Is(err, errs.Busy) { // what is busy nearly always takes a moment: the timer warns of what does not
		a.node.warnOfMemory(a.id, err)
	}
	if s.ino == nil {
		a.node.shortAreas.Add(1)
		s.pause = shortRetry
	}
	s.ino, s.err = &ino, err
	if s.timer == nil {
		var timer *time.Timer
		timer = time.AfterFunc(s.pause, func() {
			a.step(func() {
				if s.timer != timer {
					return // it ended, and another has begun
				}
				s.timer = nil
				if !a.growingLocked() { // else nobody may tell when that is over: see takeBothLocked
					s.pause = min(2*s.pause, shortRetryMost)
				}
				a.growLocked()
				if a.growingLocked() {
					a.node.warnOfMemory(a.id, s.err)
				}
			})
		})
		s.timer = timer
	}
	a.mu.wake = true
}

// growLocked tries again to make the memory as long as the catalog says.
func (a *Area) growLocked() error {
	s := &a.mu.short
	if s.ino == nil {
		return nil
	}
	a.inodeChangedLocked(*s.ino)
	return a.shortLocked()
}

// endShortLocked records that the area is not short any more, and handles the messages that waited.
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
	if !a.mu.removed {
		a.receiveAgainLocked(waiting)
	}
}

// errGrowing is in the errors for what an area is too short for as long as it is busy.
var errGrowing = errors.New("the memory is about to be made longer")

func (a *Area) growingLocked() bool {
	return a.mu.short.ino != nil && errs.Is(a.mu.short.err, errs.Busy)
}

// shortLocked returns the error for a program that needs more of the area than there is memory for; nil if the area is not short.
func (a *Area) shortLocked() error {
	s := &a.mu.short
	switch {
	case s.ino == nil:
		return nil
	case a.growingLocked():
		return &errs.Error{Op: "reserve memory", Area: a.id, Kind: errs.Busy, Err: errGrowing}
	}
	return &errs.Error{Op: "reserve memory", Area: a.id, Kind: errs.NoSpace, Err: s.err}
}

// onceGrown calls try again when the area is not busy any more, if it failed because of that.
func (a *Area) onceGrown(ctx context.Context, try func() error) error {
	for {
		err := try()
		if !errors.Is(err, errGrowing) {
			return err
		}
		if err := a.awaitGrown(ctx); err != nil {
			return err
		}
	}
}

func (a *Area) awaitGrown(ctx context.Context) error {
	return a.await(ctx, "wait for a program that writes to the memory", func() bool { return !a.growingLocked() })
}

// Grown returns when there is memory for [off, off+n), as far as that is in the area.
func (a *Area) Grown(ctx context.Context, off, n int64) error {
	if a.node.shortAreas.Load() == 0 {
		return nil
	}
	return a.onceGrown(ctx, func() (err error) {
		a.step(func() { err = a.missesLocked(off, n) })
		return err
	})
}

// dropPastLocked has the memory freed that programs have past the end: what they have stored there, in memory that they have mapped since the area was
// longer.
func (a *Area) dropPastLocked(mem interface{ DropPast() pages.Drop }) {
	if !a.node.freesPast() {
		return
	}
	drop := mem.DropPast()
	if drop == nil {
		return
	}
	size := a.mu.ino.Size
	a.node.free(func() {
		if err := drop(a.node.freePast); err != nil {
			if !errs.Is(err, errs.Closed) { // else the node ends
				a.node.cfg.Log.Warn("free memory past the end", "area", a.id, "err", err)
			}
			return // the area may be short: the timer tries again
		}
		a.step(func() {
			if a.mu.ino.Size < size { // there is more by now
				a.dropPastLocked(mem)
			}
			if a.growingLocked() {
				_ = a.growLocked() // if it fails, the timer tries again
			}
		})
	})
}

// freesPast reports whether memory past the end can be freed: a daemon that another one may follow has to have a process for it, and that comes with SetPageCache.
func (n *Node) freesPast() bool { return n.cfg.Store == nil || n.cache.Load() != nil }

// freePast frees memory of a memfd from an offset on.
func (n *Node) freePast(fd int, from int64) error {
	if c := n.cache.Load(); c != nil {
		if f, ok := (*c).(PastFreer); ok {
			err := f.FreePast(fd, from)
			if err == nil || errs.Is(err, errs.Busy) || errs.Is(err, errs.Closed) {
				return err
			}
			n.cfg.Log.Debug("memory is not freed by another process", "err", err)
		}
	}
	return pages.FreePast(fd, from)
}

// dropAllPastLocked is dropPastLocked for the working copy and all drafts.
func (a *Area) dropAllPastLocked() {
	if a.mu.mem == nil {
		return
	}
	a.dropPastLocked(a.mu.mem)
	for _, d := range a.mu.drafts {
		a.dropPastLocked(d.mem)
	}
}

// Growing reports whether there is memory missing that there will be in a moment, nearly always. Each stat calls it.
func (a *Area) Growing() bool {
	if a.node.shortAreas.Load() == 0 {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.growingLocked()
}

func (a *Area) isShort() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.short.ino != nil
}

// missesLocked returns the error of shortLocked if [off, off+n) reaches into the missing part. It tries to make memory for it first.
func (a *Area) missesLocked(off, n int64) error {
	if a.mu.short.ino == nil || off+n <= a.mu.ino.Size || off >= a.mu.short.ino.Size {
		return nil
	}
	return a.growLocked()
}

// waitsForMemoryLocked keeps a message if it must wait until the area is not short any more, and reports whether it does.
func (a *Area) waitsForMemoryLocked(from dsm.NodeID, st *wire.Stamp, msg any, payload []byte) bool {
	s := &a.mu.short
	if s.ino == nil {
		return false
	}
	waits := slices.ContainsFunc(s.waiting, func(m message) bool { return m.peer == from })
	if !waits && st.Rev <= a.mu.ino.Rev {
		return false
	}
	m := message{peer: from, msg: msg, payload: [][]byte{append([]byte(nil), payload...)}}
	s.waiting = append(s.waiting, m)
	return true
}

// memoryFreed makes areas that are short try again, in the background: the caller may hold the lock of an area.
func (n *Node) memoryFreed() {
	if n.shortAreas.Load() == 0 {
		return
	}
	go func() {
		for _, a := range n.all() {
			a.step(func() { _ = a.growLocked() }) // if it fails, the timer tries again
		}
	}()
}
