package coherence

import (
	"context"
	"maps"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// Versions are drawn by the homes of an area, each by its own clock. That they can be compared is Lamport's doing: every message
// says which version its sender has heard of, and a home draws a later one. So a publish that begins when a version
// is known to its home, or to the publisher, gets a larger one.

// heardLocked takes note that a version exists.
func (a *Area) heardLocked(v dsm.Version) {
	if v <= a.mu.newest {
		return
	}
	a.mu.newest = v
	a.mu.wake = a.mu.wake || len(a.mu.replica.waits) > 0
	for _, id := range slices.Sorted(maps.Keys(a.mu.home.untils)) {
		if m := a.mu.home.untils[id]; m.Until <= v {
			delete(a.mu.home.untils, id)
			a.inquiredLocked(id, m)
		}
	}
}

// drawLocked draws the version of a publish.
func (a *Area) drawLocked() dsm.Version {
	a.heardLocked(a.mu.newest.Next(a.now()))
	return a.mu.newest
}

// arrivedLocked takes note that what was published as version v is here. The version of what is here grows in any case: a program that
// has read it, and waits for a later one, is to see what came since, though the home drew v before it heard of that.
func (a *Area) arrivedLocked(v dsm.Version) {
	r := &a.mu.replica
	r.version = max(r.version+1, v)
	a.heardLocked(r.version)
}

// Version returns the newest version that is here.
func (a *Area) Version() dsm.Version {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.replica.version
}

// waits are the versions that calls of Wait wait for, with how many of them do.
type waits map[dsm.Version]int

// Wait returns when version v of the area, or a later one, exists, and has acquired. storing says that it is a call of a
// program that stores: see Acquire. Where the memory stays as it is a Sync brings it. Version 0 is always here.
func (a *Area) Wait(ctx context.Context, v dsm.Version, storing bool) error {
	if err := a.waitFor(ctx, v); err != nil || v == 0 {
		return err
	}
	return a.Acquire(ctx, storing)
}

// Wait is Area.Wait by the program; what came is in its memory.
func (t *Attachment) Wait(ctx context.Context, v dsm.Version) error {
	if err := t.area.waitFor(ctx, v); err != nil || v == 0 {
		return err
	}
	return t.Acquire(ctx)
}

// waitFor returns when version v exists. What was published with it the homes have then.
func (a *Area) waitFor(ctx context.Context, v dsm.Version) error {
	known := false
	a.step(func() {
		r := &a.mu.replica
		if known = a.mu.newest >= v; known {
			return
		}
		if r.waits == nil {
			r.waits = make(waits)
		}
		r.waits[v]++
		a.askUntilLocked()
	})
	if known {
		return nil
	}
	err := a.await(ctx, "wait", func() bool { return a.mu.newest >= v })
	a.step(func() {
		w := a.mu.replica.waits
		if w[v]--; w[v] == 0 {
			delete(w, v)
		}
		a.askUntilLocked()
	})
	return err
}

// askUntilLocked has the homes tell of the first version that somebody waits for.
func (a *Area) askUntilLocked() {
	r := &a.mu.replica
	if len(r.waits) == 0 {
		return
	}
	r.round++
	until := slices.Min(slices.Collect(maps.Keys(r.waits)))
	for _, home := range a.homes() {
		a.send(home, &wire.Inquire{Stamp: a.stamp(), Round: r.round, Until: until})
	}
}

// homeInquire answers what this home knows of the area, when it has heard of the version that is asked for.
func (a *Area) homeInquire(from dsm.NodeID, m *wire.Inquire) {
	if m.Until <= a.mu.newest {
		a.inquiredLocked(from, m)
		return
	}
	a.mu.home.untils[from] = m
	if s := a.mu.home.subs[from]; s != nil && m.Until == a.mu.newest+1 && s.lacking > 0 {
		a.heardLocked(m.Until) // what it lacks is newer than all that it has heard of
	}
}

func (a *Area) inquiredLocked(to dsm.NodeID, m *wire.Inquire) {
	r := &wire.Inquired{Stamp: a.stamp(), Round: m.Round, Subscribers: a.subscribers()}
	slices.Sort(r.Subscribers)
	a.send(to, r)
}
