package coherence

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// The owner of a versioned area is the node whose programs may store to it, and the home of it: the view gives the area a slot of its own
// when a program first opens it for writing. The owner alone can give it away, and does so only while no program has it open for writing and
// all is published. So a version has one writer, and no node ever has stores that it may not publish.
//
//	taker                          owner                           catalog
//	   | Take ---------------------->|  no writers: giving             |
//	   |                             |  publish what is left           |
//	   |                             | OwnArea(taker) ---------------->|  a view in which the slot is on its way
//	   |<--------------------- Taken |                                 |
//	   |<=============== handover ===|                                 |

// owning is what a node knows of the owner of a versioned area, beside the view.
type owning struct {
	giving *giving
	takes  map[uint64]*taking
	told   dsm.NodeID // the log says that programs of this node may not store, because this node owns the area

	lost     bool // what programs of this node had stored was taken back, and some have it open for writing still: see fenceLocked
	ousted   bool // another node owned the area, and this one has not had its newest version since
	owned    bool // this node has owned the area
	storing  bool // while another node owned it, programs of this one had it open for writing, or the next daemon does not know yet whether they have
	late     bool // another node has published since, and nothing was known here of stores from before: what is found now may be some
	reclaims bool // this node owned it when the daemon before was killed, and takes it back
	// fences counts the calls of fenceLocked that have given up a version that was being published, forfeits those that have taken back what was stored.
	fences, forfeits uint8
}

// giving is the way of an area to another owner, at the one that gives it: nobody may open it for writing.
type giving struct {
	to    dsm.NodeID
	asked []asked
}

// asked is a Take to be answered.
type asked struct {
	from  dsm.NodeID
	round uint64
}

// taking is a Take under way.
type taking struct {
	to    dsm.NodeID
	owner dsm.NodeID
	over  bool
	err   error
}

// Owner returns the owner of a versioned area; 0 if it has none yet.
func (n *Node) Owner(id dsm.AreaID) dsm.NodeID {
	v := n.cfg.View.Current()
	if s := v.Placed(id); s != 0 {
		return v.Row(s).Primary
	}
	return 0
}

// ownerlessLocked reports whether a node can become the owner by itself: there is none, or it has died, and what it had was truncated. The catalog decides.
func (a *Area) ownerlessLocked() bool {
	return a.versionedLocked() && (a.mu.own == 0 || a.mu.ino.Size == 0 && a.mu.view.IsGone(a.rowLocked(0).Primary))
}

// own makes this node the owner of a versioned area if it has none. When it returns nil, this node has all of the area. errs.Access if programs
// of this node may not store to the area, since another node owns it, errs.Busy while it is being given away. Of an area that is not versioned
// it returns nil.
func (a *Area) own(ctx context.Context) error {
	if !a.versioned() {
		return nil
	}
	for {
		var refused error
		var epoch dsm.Epoch
		unowned := false
		a.step(func() {
			if unowned = a.ownerlessLocked(); !unowned {
				refused = a.refusalLocked()
			}
			epoch = a.mu.view.Epoch
		})
		switch {
		case unowned:
			err := a.node.cfg.View.OwnArea(ctx, a.id, a.node.cfg.Self)
			if errs.Is(err, errs.Busy) { // it is on its way to another home
				err = a.awaitHomes(ctx, "own", func() bool { return a.mu.view.Epoch > epoch }, a.deadInAreaLocked)
			}
			if err != nil {
				return err
			}
			continue
		case refused != nil:
			return refused
		}
		if err := a.awaitHomes(ctx, "own", func() bool { return a.foreignLocked() != nil || a.hereToOwnLocked() }, a.deadInAreaLocked); err != nil {
			return err
		}
		var ready bool
		a.note(func() { ready = a.foreignLocked() == nil })
		if ready {
			return nil
		}
	}
}

// hereToOwnLocked reports whether the owner, this node, has all of the area.
func (a *Area) hereToOwnLocked() bool {
	return !a.versionedLocked() || a.node.slotReady(a.slotLocked(0), a.rowLocked(0))
}

// foreignLocked returns why programs of this node may not store to the area, or nil.
func (a *Area) foreignLocked() error {
	switch {
	case !a.versionedLocked():
	case a.mu.own == 0:
		return errs.E(errs.Access, "open", "area %d is versioned and has no owner", a.id)
	case !a.isSelf(a.rowLocked(0).Primary):
		return errs.E(errs.Access, "open", "area %d is versioned, and node %v owns it: only programs of its owner store to it. Have it moved here first: dsmfs area transfer, or take() in Python",
			a.id, a.rowLocked(0).Primary)
	case a.mu.owning.giving != nil:
		return errs.E(errs.Busy, "open", "area %d is being given to node %v", a.id, a.mu.owning.giving.to)
	}
	return nil
}

// refusalLocked is foreignLocked for a program that is refused because of it. The log has the reason once for each owner.
func (a *Area) refusalLocked() error {
	err := a.foreignLocked()
	if owner := a.rowLocked(0).Primary; err != nil && a.mu.own != 0 && !a.isSelf(owner) && a.mu.owning.told != owner {
		a.mu.owning.told = owner
		a.node.cfg.Log.Warn("programs of this node may not store to a versioned area: another node owns it", "area", a.id, "owner", owner,
			"todo", "dsmfs area transfer, or take() in Python, moves it here")
	}
	return err
}

// giveAwayLocked begins to give the area away; nil if it is there already.
func (a *Area) giveAwayLocked(to dsm.NodeID) (*giving, error) {
	o := &a.mu.owning
	if g := o.giving; g != nil && g.to == to {
		return g, nil
	}
	if err := a.foreignLocked(); err != nil {
		return nil, err
	}
	if !a.versionedLocked() {
		return nil, errs.E(errs.Invalid, "transfer", "area %d is not versioned, and has no owner", a.id)
	}
	if w := a.storersLocked(); w > 0 {
		return nil, errs.E(errs.Busy, "transfer", "node %v owns area %d, and %d of its programs have it open for writing", a.node.cfg.Self, a.id, w)
	}
	if a.isSelf(to) {
		return nil, nil
	}
	g := &giving{to: to}
	o.giving = g
	a.mu.arrived = append(a.mu.arrived, func() { a.node.handovers.give(a, g) })
	return g, nil
}

const (
	// giveTimeout is how long one try to give an area away takes at most.
	giveTimeout = 10 * time.Second
	// giveAgain is the pause before the next one.
	giveAgain = 20 * time.Millisecond
)

// give publishes what is left of an area, and has the catalog make the other node its owner. Whether a change of the catalog happened is not
// known after every error; it is asked for again until that is.
func (h *handovers) give(a *Area, g *giving) {
	h.later(func() {
		ctx, cancel := context.WithTimeout(h.ctx, giveTimeout)
		err := a.Publish(ctx)
		cancel()
		if errs.Is(err, errs.Access) { // nothing is left: see ownerRefusedLocked
			err = nil
		}
		for err == nil {
			ctx, cancel := context.WithTimeout(h.ctx, giveTimeout)
			err = h.node.cfg.View.OwnArea(ctx, a.id, g.to)
			cancel()
			m, ok := h.node.cfg.View.Current().Member(g.to)
			if err == nil || h.ctx.Err() != nil || !ok || m.Leaving || m.Gone || !unknown(err) {
				break
			}
			err = nil
			select {
			case <-time.After(giveAgain):
			case <-h.ctx.Done():
			}
		}
		a.step(func() { a.gaveLocked(g, err) })
	})
}

// unknown reports whether a change may happen or have happened despite the error.
func unknown(err error) bool {
	switch errs.KindOf(err) {
	case errs.Timeout, errs.Unavailable, errs.NotLeader, errs.Interrupted, errs.Busy, errs.Other:
		return true
	}
	return false
}

// gaveLocked ends giving, and answers those that have asked for it.
func (a *Area) gaveLocked(g *giving, err error) {
	a.mu.owning.giving = nil
	a.mu.wake = true
	for _, q := range g.asked {
		a.takeAnswerLocked(q, err)
	}
}

// homeTakeLocked handles the request to give the area to a node.
func (a *Area) homeTakeLocked(from dsm.NodeID, m *wire.Take) {
	q := asked{from, m.Round}
	if a.foreignLocked() == nil && a.storersLocked() > 0 {
		a.mu.arrived = append(a.mu.arrived, func() { a.node.handovers.giveWhenClosed(a, q, m.To) })
		return
	}
	a.answerTakeLocked(q, m.To)
}

// giveWhenClosed waits a while for the programs that have the area open for writing: a close reaches this node after it has returned.
func (h *handovers) giveWhenClosed(a *Area, q asked, to dsm.NodeID) {
	h.later(func() {
		ctx, cancel := context.WithTimeout(h.ctx, h.node.closePatience)
		defer cancel()
		_ = a.await(ctx, "transfer", func() bool { return a.foreignLocked() != nil || a.storersLocked() == 0 }) // if not, the answer says so
		a.step(func() { a.answerTakeLocked(q, to) })
	})
}

// closePatience is how long giveWhenClosed waits. Tests wait less.
const closePatience = time.Second

// storersLocked returns how many programs have the area open for writing.
func (a *Area) storersLocked() int { return a.mu.replica.writers - a.mu.replica.released }

func (a *Area) answerTakeLocked(q asked, to dsm.NodeID) {
	g, err := a.giveAwayLocked(to)
	if g == nil {
		a.takeAnswerLocked(q, err)
		return
	}
	g.asked = append(g.asked, q)
}

func (a *Area) takeAnswerLocked(q asked, err error) {
	r := &wire.Taken{Stamp: a.stampLocked(), Round: q.round}
	if err != nil {
		r.Kind, r.Why = uint8(errs.KindOf(err)), err.Error()
	}
	a.sendLocked(q.from, r)
}

// Transfer makes a node the owner of a versioned area, from whatever node it is called. It returns when the view says so: an open for writing
// there waits for the rest. errs.Busy if programs of the owner have the area open for writing, errs.Unavailable if the owner has died, or the
// node takes nothing over. An area without an owner can only be taken by the node itself. A call that makes this node the owner returns when
// all of the area is here.
func (n *Node) Transfer(ctx context.Context, id dsm.AreaID, to dsm.NodeID) error {
	a, err := n.area(id)
	if err != nil {
		return err
	}
	return a.transfer(ctx, to)
}

func (a *Area) transfer(ctx context.Context, to dsm.NodeID) error {
	open, versioned := false, false
	a.step(func() {
		versioned = a.versionedLocked()
		if open = versioned && a.isSelf(to) && a.mu.replica.opens > 0; open {
			a.mu.replica.opens++ // until it has acquired
		}
	})
	if !versioned {
		return errs.E(errs.Invalid, "transfer", "area %d is not versioned, and has no owner", a.id)
	}
	if open { // then what is handed over changes nothing here, and no reader waits for that
		err := a.Acquire(ctx, false)
		a.Close(false)
		if err != nil {
			return err
		}
	}
	for {
		if a.isSelf(to) {
			if err := a.own(ctx); !errs.Is(err, errs.Access) {
				return err
			}
		}
		t := &taking{to: to}
		var round uint64
		a.step(func() { round = a.askToTakeLocked(t) })
		err := a.awaitHomes(ctx, "transfer", func() bool { return t.over || a.rowLocked(0).Primary != t.owner }, a.deadInAreaLocked)
		var now dsm.NodeID
		a.step(func() {
			delete(a.mu.owning.takes, round)
			now = a.rowLocked(0).Primary
		})
		switch {
		case err != nil:
			return err
		case t.over && !errs.Is(t.err, errs.Access): // else the owner has changed, and the next one is asked
			return t.err
		case now == to && !a.isSelf(to):
			return nil
		}
	}
}

// askToTakeLocked asks the owner; if there is none, the catalog is asked by own.
func (a *Area) askToTakeLocked(t *taking) (round uint64) {
	o, r := &a.mu.owning, &a.mu.replica
	if a.ownerlessLocked() {
		t.over, t.err = true, errs.E(errs.Unavailable, "transfer", "area %d has no owner: a node becomes it when one of its programs opens the area for writing, or when the node itself asks for it", a.id)
		return 0
	}
	if o.takes == nil {
		o.takes = make(map[uint64]*taking)
	}
	r.round++
	t.owner, o.takes[r.round] = a.rowLocked(0).Primary, t
	a.sendLocked(t.owner, &wire.Take{Stamp: a.stampLocked(), Round: r.round, To: t.to})
	return r.round
}

// takenLocked handles the answer to a Take.
func (a *Area) takenLocked(from dsm.NodeID, m *wire.Taken) {
	t := a.mu.owning.takes[m.Round]
	if t == nil || t.owner != from {
		return
	}
	t.over = true
	if m.Kind != 0 {
		t.err = errs.E(errs.Kind(m.Kind), "take", "%s", m.Why)
	}
	a.mu.wake = true
}

// takesResetLocked follows a broken session: a Take, or its answer, may not arrive.
func (a *Area) takesResetLocked(peer dsm.NodeID) {
	for _, round := range slices.Sorted(maps.Keys(a.mu.owning.takes)) {
		if t := a.mu.owning.takes[round]; t.owner == peer && !t.over {
			a.sendLocked(peer, &wire.Take{Stamp: a.stampLocked(), Round: round, To: t.to})
		}
	}
}
