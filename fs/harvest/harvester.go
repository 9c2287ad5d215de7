// Package harvest collects the stores that programs make into their mappings.
//
// The kernel tells nobody of a store to a page that is already mapped, but sync_file_range makes it
// send the dirty pages as WRITE requests. That takes an open file of the mount, which the daemon
// itself must not have (see package fs). So a child process has it: Main. This package starts that
// process, starts it again when it dies, and tells it what to do. A Freer has other such processes, for what may wait for ever.
package harvest

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// Area is what the harvester needs of an area that programs of this node have open. It must be
// comparable.
type Area interface {
	ID() dsm.AreaID
	// Live reports whether a program may have a mapping that it stores into: only then is there
	// anything to harvest, and only then may the child have the file open.
	Live() bool
	// Interval is how often the area is harvested; 0 means only on request.
	Interval() time.Duration
}

// Config is what a harvester needs of the mount.
type Config struct {
	// Argv is the command of the child: a process that calls Main. If it is empty there is none, as after Stop.
	Argv []string
	// Dir is the directory in which the child finds each area's file by its number. No other
	// process can look into it.
	Dir string
	Log *slog.Logger
	// Timeout is how long the child may take for an answer.
	Timeout time.Duration
	// Life ends when the mount is going away.
	Life context.Context
	// Live returns the areas that are live.
	Live func() []Area
	// Background runs a function in a goroutine that the mount waits for.
	Background func(func())
}

// Harvester runs the child process.
//
// The daemon tells the child which areas to harvest at which interval, and the child does so
// without being asked each time: asking would wake the daemon ten times a second for nothing, and
// cost several times as much as harvesting a hundred clean areas. In addition the daemon requests a
// harvest when somebody waits for one.
//
// The child is started when the first area is watched or harvested, and again after it died. It has
// a file open only while a program of this node has that file open for writing. To keep this true,
// the turn is kept from the moment an area is found live until the child has been told; so Forget
// always comes after whatever may make the child open the file.
type Harvester struct {
	cfg   Config
	pid   atomic.Int64 // of the child, 0 if there is none
	asked atomic.Uint64
	// others caches threads that do not belong to the child, at their number modulo its length: see
	// SeemsChild.
	others [256]atomic.Uint32

	// turn belongs to the goroutine that talks to the child, one at a time. It is a channel and not
	// a lock because who has it waits for answers of the child. The fields below belong to who has the turn. Methods whose names end in Locked expect the turn.
	turn    chan struct{}
	child   *process                     // nil if there is none
	told    map[dsm.AreaID]time.Duration // areas that the child may have open, and at which interval it watches each
	stopped bool

	changes watchChanges
}

// watchChanges collects the areas for which the child must be told a new interval. It is told a
// little later, of many areas at once; areas that are closed by then are left out.
type watchChanges struct {
	mu struct {
		lockrank.Mutex
		areas map[Area]struct{}
		timer *time.Timer // nil before the first
		at    time.Time   // when it fires, if areas is not empty
	}
}

// Target is a range to harvest; N = 0 means up to the end.
type Target struct {
	Area   Area
	Off, N int64
}

// New returns a harvester. The child is not started yet.
func New(cfg Config) *Harvester {
	h := &Harvester{cfg: cfg, turn: make(chan struct{}, 1), stopped: len(cfg.Argv) == 0}
	h.changes.mu.Init("harvest.watchChanges")
	h.changes.mu.areas = make(map[Area]struct{})
	return h
}

// Watch makes the child harvest the area at its interval, or stop if that is 0. The first harvest
// is at most one interval from now.
func (h *Harvester) Watch(a Area) {
	c := &h.changes
	now := time.Now()
	at := now.Add(Togetherness(a.Interval())) // the child allows for this delay: see schedule.set
	c.mu.Lock()
	defer c.mu.Unlock()
	none := len(c.mu.areas) == 0
	c.mu.areas[a] = struct{}{}
	if !none && !at.Before(c.mu.at) {
		return
	}
	c.mu.at = at
	if c.mu.timer == nil {
		c.mu.timer = time.AfterFunc(at.Sub(now), func() { h.cfg.Background(h.tell) })
		return
	}
	c.mu.timer.Reset(at.Sub(now))
}

func (c *watchChanges) take() map[Area]struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	areas := c.mu.areas
	c.mu.areas = make(map[Area]struct{})
	return areas
}

// tell tells the child of the changes.
func (h *Harvester) tell() {
	h.takeTurn()
	defer h.endTurn()
	if h.stopped {
		return
	}
	var items []item
	for a := range h.changes.take() {
		every := a.Interval()
		if a.Live() && h.told[a.ID()] != every { // an area that the child does not know counts as 0
			items = append(items, item{ino: uint64(a.ID()), every: uint64(every)})
		}
	}
	if len(items) == 0 {
		return
	}
	if h.child == nil {
		if err := h.startLocked(); err != nil { // startLocked tells the child everything; if it fails, ended tries again
			h.cfg.Log.Warn("harvest", "err", err)
		}
		return
	}
	for _, it := range items {
		h.told[dsm.AreaID(it.ino)] = time.Duration(it.every)
	}
	if err := h.child.send(request{op: opWatch, items: items}, h.cfg.Timeout); err != nil {
		h.killLocked(err)
	}
}

// watchAllLocked returns the request that tells a new child everything.
func (h *Harvester) watchAllLocked() request {
	q := request{op: opWatch}
	for _, a := range h.cfg.Live() {
		every := a.Interval()
		if every == 0 {
			continue
		}
		h.told[a.ID()] = every
		q.items = append(q.items, item{ino: uint64(a.ID()), every: uint64(every)})
	}
	return q
}

// takeTurn waits for the turn, at most about as long as the child may take for an answer.
func (h *Harvester) takeTurn() { h.turn <- struct{}{} }

func (h *Harvester) endTurn() { <-h.turn }

// take is takeTurn with a context.
func (h *Harvester) take(ctx context.Context) error {
	select {
	case h.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("harvest: %w", ctx.Err())
	}
}

// Sync harvests the targets in one round trip and returns an error for each. It skips areas that no
// program can store into any more: the kernel has nothing left to send for these.
func (h *Harvester) Sync(ctx context.Context, targets []Target) []error {
	out := make([]error, len(targets))
	if err := h.take(ctx); err != nil {
		for i := range out {
			out[i] = err
		}
		return out
	}
	defer h.endTurn()
	q := request{op: opSync}
	var at []int
	for i, t := range targets {
		if t.Area.Live() {
			q.items = append(q.items, item{ino: uint64(t.Area.ID()), off: uint64(t.Off), n: uint64(t.N)})
			at = append(at, i)
		}
	}
	if len(q.items) == 0 {
		return out
	}
	results, err := h.askLocked(q)
	for j, i := range at {
		if err != nil {
			out[i] = err
			continue
		}
		id := targets[i].Area.ID()
		if _, ok := h.told[id]; !ok {
			h.told[id] = 0 // the child has the file open now
		}
		if e := syscall.Errno(results[j]); e != 0 {
			out[i] = &errs.Error{Op: "harvest", Area: id, Err: e}
		}
	}
	h.asked.Add(uint64(len(q.items)))
	return out
}

// Forget makes the child close its file of the area, so that it does not keep the mount busy. It
// does nothing if a program has opened the area for writing again.
func (h *Harvester) Forget(a Area) {
	h.takeTurn()
	defer h.endTurn()
	if _, ok := h.told[a.ID()]; !ok || a.Live() {
		return
	}
	delete(h.told, a.ID())
	if _, err := h.askLocked(request{op: opClose, items: []item{{ino: uint64(a.ID())}}}); err != nil {
		h.cfg.Log.Debug("harvest child", "err", err)
	}
}

// Stat makes the kernel ask the daemon for the area's attributes, and returns when it has them.
func (h *Harvester) Stat(ctx context.Context, a Area) error {
	if err := h.take(ctx); err != nil {
		return err
	}
	defer h.endTurn()
	results, err := h.askLocked(request{op: opStat, items: []item{{ino: uint64(a.ID())}}})
	if err != nil {
		return err
	}
	if e := syscall.Errno(results[0]); e != 0 {
		return &errs.Error{Op: "stat", Area: a.ID(), Err: e}
	}
	return nil
}

// Look makes the kernel look a name up, and returns when it has.
func (h *Harvester) Look(ctx context.Context, name string) error {
	if err := h.take(ctx); err != nil {
		return err
	}
	defer h.endTurn()
	results, err := h.askLocked(request{op: opLook, path: name})
	if err != nil {
		return err
	}
	if e := syscall.Errno(results[0]); e != 0 {
		return &errs.Error{Op: "look up", Err: e}
	}
	return nil
}

// Asked returns how many harvests were made because somebody waited for one.
func (h *Harvester) Asked() uint64 { return h.asked.Load() }

// Watched returns how many areas the child may have open.
func (h *Harvester) Watched() int {
	h.takeTurn()
	defer h.endTurn()
	return len(h.told)
}
