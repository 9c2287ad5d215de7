package coherence

import (
	"context"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// Each home of an area assigns versions from its own clock. They can be compared because of
// Lamport's rule: every message says which version its sender has heard of, and a home assigns
// later ones. So a publish that begins when its publisher, or its home, knows a version gets a
// larger one.

// heardLocked records that a version exists.
func (a *Area) heardLocked(v dsm.Version) {
	if v <= a.mu.newest {
		return
	}
	a.mu.newest = v
	raise(a.node.newest, v)
	a.mu.wake = a.mu.wake || len(a.mu.replica.waits) > 0
	for _, id := range slices.Sorted(maps.Keys(a.mu.home.untils)) {
		if m := a.mu.home.untils[id]; m.Until <= v {
			delete(a.mu.home.untils, id)
			a.inquiredLocked(id, m)
		}
	}
}

// drawLocked returns the version for a publish. It is later than those of any home before this one: nodes that have asked that home
// know that they have everything up to its answer.
func (a *Area) drawLocked() dsm.Version {
	a.heardLocked(max(a.mu.newest, dsm.Version(a.node.floor.Load())).Next(a.now()))
	return a.mu.newest
}

// raise sets a version that grows.
func raise(at *atomic.Uint64, v dsm.Version) {
	for was := at.Load(); was < uint64(v) && !at.CompareAndSwap(was, uint64(v)); was = at.Load() {
	}
}

// arrivedLocked records that what was published as version v is here. The version of what is here
// grows in any case: a program that has read it and waits for a later one must see what came since,
// even if the home assigned v before it heard of that version.
func (a *Area) arrivedLocked(v dsm.Version) {
	r := &a.mu.replica
	r.version = max(r.version+1, v)
	a.heardLocked(r.version)
}

// uptoLocked returns the version up to which a subscriber has everything that this home has merged, once it has the message that is
// being made; 0 if more is to be pushed.
func (a *Area) uptoLocked(s *subscriber) dsm.Version {
	if s.lacking > 0 || a.mu.backed && a.copiesLocked().told < a.mu.newest {
		return 0
	}
	return a.mu.newest
}

// cameUptoLocked records that a home has sent everything up to version v. What other homes have merged is not known without asking
// them. Nor is it enough if pages were declined, or not taken: the home may not have known of it. Nor does a home speak for slots whose source has died: it has refused
// to subscribe this node to them.
func (a *Area) cameUptoLocked(v dsm.Version) {
	if r := &a.mu.replica; v > r.whole && a.oneHomeLocked() && r.outdated == 0 && len(r.subs) == 0 && a.deadInAreaLocked() == 0 && !a.awaitsAnswerOfLocked(a.rowLocked(0).Primary) {
		a.wholeLocked(v)
	}
}

// wholeLocked records that everything up to version v is here.
func (a *Area) wholeLocked(v dsm.Version) {
	r := &a.mu.replica
	r.whole = max(r.whole, v)
	r.version = max(r.version, v)
	a.heardLocked(v)
}

// oneHomeLocked reports whether all extents of the area have the same home.
func (a *Area) oneHomeLocked() bool {
	first := a.rowLocked(0).Primary
	for e := range dsm.ExtentIndex(a.coveringLocked()) {
		if a.rowLocked(e).Primary != first {
			return false
		}
	}
	return true
}

// followsLocked reports whether this node gets every publish without asking for it.
func (a *Area) followsLocked() bool {
	r := &a.mu.replica
	return r.subscribed && !r.onRequest && !a.defersLocked() && len(a.mu.dead) == 0 && len(r.subs) == 0 && a.oneHomeLocked()
}

// setOutdated sets which pages of an extent are known to be newer at the home.
func (r *replica) setOutdated(x *replicaExtent, s dsm.PageSet) {
	switch was, is := x.outdated.Empty(), s.Empty(); {
	case was && !is:
		r.outdated++
	case !was && is:
		r.outdated--
	}
	x.outdated = s
}

// Version returns the newest version that is here.
func (a *Area) Version() dsm.Version {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.versionedLocked() {
		return a.mu.whole.told
	}
	return a.mu.replica.version
}

// waits are the versions for which calls of Wait wait, with the number of these calls.
type waits map[dsm.Version]int

// Wait returns when version v of the area, or a later one, exists, and has acquired. storing says
// that a program which stores to the area makes the call: see Acquire. Where updates do not enter
// memory by this call, a Sync brings them. Version 0 always exists.
func (a *Area) Wait(ctx context.Context, v dsm.Version, storing bool) error {
	if err := a.waitFor(ctx, v); err != nil || v == 0 {
		return err
	}
	if err := a.Acquire(ctx, storing); err != nil {
		return err
	}
	return a.wholeHere(ctx, v)
}

// wholeHere returns when version v of a versioned area, or a later one, is complete here. An Acquire brings it, but the home may have moved.
func (a *Area) wholeHere(ctx context.Context, v dsm.Version) error {
	return a.awaitHomes(ctx, "wait", func() bool { return !a.versionedLocked() || a.mu.whole.told >= v }, a.deadInAreaLocked)
}

// Wait is Area.Wait by the program; afterwards the updates are in its memory.
func (t *Attachment) Wait(ctx context.Context, v dsm.Version) error {
	if err := t.area.waitFor(ctx, v); err != nil || v == 0 {
		return err
	}
	if err := t.Acquire(ctx); err != nil {
		return err
	}
	return t.area.wholeHere(ctx, v)
}

// Expect is Wait for a call that goes on while the program does something else: it brings updates only where they may come at any time.
func (t *Attachment) Expect(ctx context.Context, v dsm.Version) error {
	return t.area.Wait(ctx, v, false)
}

// waitFor returns when version v exists. Then the homes have everything that was published with it.
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

// askUntilLocked asks the homes to report the first version that a call waits for.
func (a *Area) askUntilLocked() {
	r := &a.mu.replica
	if len(r.waits) == 0 {
		return
	}
	r.round++
	until := slices.Min(slices.Collect(maps.Keys(r.waits)))
	for _, home := range a.homesLocked() {
		a.sendLocked(home, &wire.Inquire{Stamp: a.stampLocked(), Round: r.round, Until: until})
	}
}

// homeInquireLocked answers what this home knows about the area, once it has heard of the version Until.
func (a *Area) homeInquireLocked(from dsm.NodeID, m *wire.Inquire) {
	if m.Until <= a.mu.newest {
		a.inquiredLocked(from, m)
		return
	}
	a.mu.home.untils[from] = m
	if s := a.mu.home.subs[from]; s != nil && m.Until == a.mu.newest+1 && s.lacking > 0 {
		a.heardLocked(m.Until) // versions that it assigns will be later
	}
}

func (a *Area) inquiredLocked(to dsm.NodeID, m *wire.Inquire) {
	r := &wire.Inquired{Stamp: a.stampLocked(), Round: m.Round, Subscribers: a.subscribersLocked()}
	slices.Sort(r.Subscribers)
	a.sendLocked(to, r)
}
