package fs

import (
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// harvester gets at the stores that programs make into their mappings. The
// kernel tells nobody of a store to a page that is mapped already, but
// sync_file_range makes it send the dirty pages as WRITE requests. That
// takes an open file of the mount, which the daemon must not have (see the
// package documentation); so a child process has it.
//
// The child is told which areas to watch at which interval, and then does so by
// itself: to ask it each time would wake the daemon ten times a second for nothing,
// and cost several times as much as the harvest of a hundred clean areas.
// Beyond that the daemon asks for a harvest when somebody waits for it.
//
// The child is started for the first area to watch or harvest, and again when it
// died. It has a file open only while a program of this node has it open for writing:
// mu is held over a round trip, and from looking at an area's live handles to telling
// the child, so that forget comes after whatever might make it open the file.
type harvester struct {
	b   *bridge
	pid atomic.Int64 // of the child, 0 if there is none

	mu struct {
		lockrank.Mutex
		child *child // nil if there is none
		// told are the areas the child may have open, and the interval it watches each at.
		told    map[dsm.AreaID]time.Duration
		stopped bool
	}
	changes watchChanges
}

// watchChanges are the areas whose watch the child is to be told of. It
// is told a little late, of many at once, and never of a file that is closed by then.
type watchChanges struct {
	mu struct {
		lockrank.Mutex
		areas map[*openArea]struct{}
		timer *time.Timer // nil before the first
		at    time.Time   // when it fires, if areas is not empty
	}
}

// target is what to harvest; n = 0 is up to the end.
type target struct {
	area   *openArea
	off, n int64
}

func newHarvester(b *bridge) *harvester {
	h := &harvester{b: b}
	h.mu.Init("fs.harvester")
	h.changes.mu.Init("fs.watchChanges")
	h.changes.mu.areas = make(map[*openArea]struct{})
	return h
}

// watch makes the child harvest the area at its interval, or no more if that is 0.
// The first time is at most an interval from now.
func (h *harvester) watch(a *openArea) {
	c := &h.changes
	now := time.Now()
	at := now.Add(togetherness(a.interval())) // the child takes account of that
	c.mu.Lock()
	defer c.mu.Unlock()
	none := len(c.mu.areas) == 0
	c.mu.areas[a] = struct{}{}
	if !none && !at.Before(c.mu.at) {
		return
	}
	c.mu.at = at
	if c.mu.timer == nil {
		c.mu.timer = time.AfterFunc(at.Sub(now), func() { h.b.background.run(h.tell) })
		return
	}
	c.mu.timer.Reset(at.Sub(now))
}

func (c *watchChanges) take() map[*openArea]struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	areas := c.mu.areas
	c.mu.areas = make(map[*openArea]struct{})
	return areas
}

// tell tells the child of the changes.
func (h *harvester) tell() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.stopped {
		return
	}
	var items []harvestItem
	for a := range h.changes.take() {
		every := a.interval()
		if a.live.Load() > 0 && h.mu.told[a.id] != every { // not told of: 0
			items = append(items, harvestItem{ino: uint64(a.id), every: uint64(every)})
		}
	}
	if len(items) == 0 {
		return
	}
	if h.mu.child == nil {
		if err := h.startLocked(); err != nil { // tells all; exited tries again
			h.b.log.Warn("harvest", "err", err)
		}
		return
	}
	for _, it := range items {
		h.mu.told[dsm.AreaID(it.ino)] = time.Duration(it.every)
	}
	if err := h.mu.child.send(harvestRequest{op: harvestWatch, items: items}, h.b.cfg.FaultTimeout); err != nil {
		h.killLocked(err)
	}
}

// watchAllLocked returns the request that tells a new child of everything.
func (h *harvester) watchAllLocked() harvestRequest {
	q := harvestRequest{op: harvestWatch}
	for _, a := range h.b.opens.all(func(a *openArea) bool { return a.live.Load() > 0 && a.interval() > 0 }) {
		every := a.interval()
		h.mu.told[a.id] = every
		q.items = append(q.items, harvestItem{ino: uint64(a.id), every: uint64(every)})
	}
	return q
}

// sync harvests the targets in one round trip, and returns an error for each. Areas
// that no program can store into any more are skipped: nothing of theirs is left with the kernel.
func (h *harvester) sync(targets []target) []error {
	out := make([]error, len(targets))
	h.mu.Lock()
	defer h.mu.Unlock()
	q := harvestRequest{op: harvestSync}
	var at []int
	for i, t := range targets {
		if t.area.live.Load() > 0 {
			q.items = append(q.items, harvestItem{ino: uint64(t.area.id), off: uint64(t.off), n: uint64(t.n)})
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
		id := targets[i].area.id
		if _, ok := h.mu.told[id]; !ok {
			h.mu.told[id] = 0 // it has the file open now
		}
		if e := syscall.Errno(results[j]); e != 0 {
			out[i] = &errs.Error{Op: "harvest", Area: id, Err: e}
		}
	}
	h.b.count.harvests.Add(uint64(len(q.items)))
	return out
}

// forget makes the child close its file of the area, so that it does not keep the
// mount busy, unless a program has opened the area for writing again.
func (h *harvester) forget(a *openArea) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.mu.told[a.id]; !ok || a.live.Load() > 0 {
		return
	}
	delete(h.mu.told, a.id)
	if _, err := h.askLocked(harvestRequest{op: harvestClose, items: []harvestItem{{ino: uint64(a.id)}}}); err != nil {
		h.b.log.Debug("harvest child", "err", err)
	}
}

// stat makes the kernel ask for the attributes of the area, and returns when it
// has them.
func (h *harvester) stat(a *openArea) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	results, err := h.askLocked(harvestRequest{op: harvestStat, items: []harvestItem{{ino: uint64(a.id)}}})
	if err != nil {
		return err
	}
	if e := syscall.Errno(results[0]); e != 0 {
		return &errs.Error{Op: "stat", Area: a.id, Err: e}
	}
	return nil
}
