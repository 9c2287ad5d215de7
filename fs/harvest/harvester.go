// Package harvest gets at the stores that programs make into their mappings.
//
// The kernel tells nobody of a store to a page that is mapped already, but
// sync_file_range makes it send the dirty pages as WRITE requests. That
// takes an open file of the mount, which the daemon must not have (see package fs);
// so a child process has it (Main). The package owns that process: what it is told, and that there is one.
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

// Area is an area that programs of this node have open, as the harvester needs it. It is comparable.
type Area interface {
	ID() dsm.AreaID
	// Live reports whether a program may have a mapping that it stores into: only then is there
	// anything to harvest, and only then may the child have the file open.
	Live() bool
	// Interval is how often the area is to be harvested; 0: only when it is asked for.
	Interval() time.Duration
}

// Config is what a harvester needs of the mount.
type Config struct {
	// Argv is the command of the child: a process that calls Main.
	Argv []string
	// Dir is where the child, and nobody else, finds each area's file under its number.
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

// Harvester has the child process do what it is for.
//
// The child is told which areas to watch at which interval, and then does so by
// itself: to ask it each time would wake the daemon ten times a second for nothing,
// and cost several times as much as the harvest of a hundred clean areas.
// Beyond that the daemon asks for a harvest when somebody waits for it.
//
// The child is started for the first area to watch or harvest, and again when it
// died. It has a file open only while a program of this node has it open for writing:
// the turn is had from looking at whether an area is live to telling
// the child, so that Forget comes after whatever might make it open the file.
type Harvester struct {
	cfg   Config
	pid   atomic.Int64 // of the child, 0 if there is none
	asked atomic.Uint64
	// others are threads that are none of the child's, each at its number's place: see SeemsChild.
	others [256]atomic.Uint32

	// turn is had by whoever talks to the child, one at a time: it waits for answers, so it is no
	// lock. What follows belongs to who has it.
	turn    chan struct{}
	child   *process                     // nil if there is none
	told    map[dsm.AreaID]time.Duration // the areas the child may have open, and the interval it watches each at
	stopped bool

	changes watchChanges
}

// watchChanges are the areas whose watch the child is to be told of. It
// is told a little late, of many at once, and never of a file that is closed by then.
type watchChanges struct {
	mu struct {
		lockrank.Mutex
		areas map[Area]struct{}
		timer *time.Timer // nil before the first
		at    time.Time   // when it fires, if areas is not empty
	}
}

// Target is what to harvest; N = 0 is up to the end.
type Target struct {
	Area   Area
	Off, N int64
}

// New returns a harvester whose child is not started yet.
func New(cfg Config) *Harvester {
	h := &Harvester{cfg: cfg, turn: make(chan struct{}, 1)}
	h.changes.mu.Init("harvest.watchChanges")
	h.changes.mu.areas = make(map[Area]struct{})
	return h
}

// Watch makes the child harvest the area at its interval, or no more if that is 0.
// The first time is at most an interval from now.
func (h *Harvester) Watch(a Area) {
	c := &h.changes
	now := time.Now()
	at := now.Add(Togetherness(a.Interval())) // the child takes account of that
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
		if a.Live() && h.told[a.ID()] != every { // not told of: 0
			items = append(items, item{ino: uint64(a.ID()), every: uint64(every)})
		}
	}
	if len(items) == 0 {
		return
	}
	if h.child == nil {
		if err := h.startLocked(); err != nil { // tells all; exited tries again
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

// watchAllLocked returns the request that tells a new child of everything.
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

// takeTurn waits for the turn, for at most about as long as the child may take for an answer.
func (h *Harvester) takeTurn() { h.turn <- struct{}{} }

func (h *Harvester) endTurn() { <-h.turn }

// take is takeTurn for who may lose patience.
func (h *Harvester) take(ctx context.Context) error {
	select {
	case h.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("harvest: %w", ctx.Err())
	}
}

// Sync harvests the targets in one round trip, and returns an error for each. Areas
// that no program can store into any more are skipped: nothing of theirs is left with the kernel.
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
			h.told[id] = 0 // it has the file open now
		}
		if e := syscall.Errno(results[j]); e != 0 {
			out[i] = &errs.Error{Op: "harvest", Area: id, Err: e}
		}
	}
	h.asked.Add(uint64(len(q.items)))
	return out
}

// Forget makes the child close its file of the area, so that it does not keep the
// mount busy, unless a program has opened the area for writing again.
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

// Stat makes the kernel ask for the attributes of the area, and returns when it
// has them.
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

// Asked returns how many areas were harvested because somebody waited for it.
func (h *Harvester) Asked() uint64 { return h.asked.Load() }

// Watched returns how many areas the child may have open.
func (h *Harvester) Watched() int {
	h.takeTurn()
	defer h.endTurn()
	return len(h.told)
}
