package coherence

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/invariants"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// A round is a publish of several writers that becomes visible whole. The programs of a group take these steps:
//
//	Contribute    what the node has stored goes to the homes, as parts of the round, and they keep it apart
//	              (then the group waits until all of its members have contributed)
//	FinishRound   each home merges the parts of all in one step, and this node gets the result
//
// A part that the home keeps stays under way as a publication: the node sends it again to a home that the slot has moved to, or
// that has refused it because the rules have changed. Behind its parts a node sends Contributed. A home that may lack a part of some
// node has forgotten that node's Contributed, and merges nothing until it comes again. So no part is left out, and none counts twice.

// contribution is what this node contributes to a round of one area.
type contribution struct {
	id      dsm.RoundID
	whole   bool                    // Contribute was called: what is to be sent is known
	left    bool                    // the daemon before made it: see round_left.go
	gone    bool                    // it is taken back: what homes keep of it is published apart from the round
	parts   int                     // publications of it that are not over
	open    []dsm.ExtentIndex       // extents that may have parts which were not sent
	due     bool                    // some home has to be sent Contributed when all parts are
	asked   map[dsm.NodeID]uint64   // the Nonce of what each home was sent last; 0: it is to be sent
	counted map[dsm.NodeID]struct{} // homes that have answered it
}

// Contribute sends what this node has stored to the homes, as its part in a round. They keep it apart until FinishRound. It returns when
// all of them have it; errs.Timeout if one does not answer before ctx ends, errs.Busy if the node takes part in a round of another group.
// If it fails, the caller calls AbandonRound. Other programs of the node contribute what they have stored with it. errs.Invalid for a
// versioned area: its versions have one writer.
func (a *Area) Contribute(ctx context.Context, id dsm.RoundID) error {
	if a.versioned() {
		return errs.E(errs.Invalid, "contribute", "area %d is versioned: its versions have one writer, and are no rounds", a.id)
	}
	return a.contribute(ctx, id)
}

// contribute is Contribute for an area of any mode.
func (a *Area) contribute(ctx context.Context, id dsm.RoundID) error {
	a.collect()
	return a.contributeFound(ctx, id)
}

// contributeFound is contribute for what is known to be stored.
func (a *Area) contributeFound(ctx context.Context, id dsm.RoundID) error {
	a.refreshAll()
	if err := a.detectLayout(ctx); err != nil {
		return err
	}
	c, err := a.inRound(ctx, id, a.contributeLocked)
	if err != nil {
		return err
	}
	if err := a.awaitHomes(ctx, "contribute", func() bool {
		err = a.publishableLocked()
		return err != nil || a.mu.replica.contribution != c || c.gone || c.countedLocked()
	}, a.deadInAreaLocked); err != nil {
		return err
	}
	a.note(func() {
		if r := &a.mu.replica; err == nil && (r.contribution != c || c.gone) {
			err = &errs.Error{Op: "contribute", Area: a.id, Kind: errs.Unavailable, Err: errs.E(errs.Unavailable, "", "round %v was given up meanwhile", id)}
		}
	})
	return err
}

// inRound calls event in a step in which the node takes part in the round. It first ends an earlier round of the group that the node has
// not finished.
func (a *Area) inRound(ctx context.Context, id dsm.RoundID, event func(c *contribution)) (c *contribution, err error) {
	for {
		wait := false
		a.step(func() {
			r := &a.mu.replica
			c = r.contribution
			switch {
			case !r.subscribed:
				err = &errs.Error{Op: "contribute", Area: a.id, Kind: errs.Closed}
			case a.publishableLocked() != nil:
				err = a.publishableLocked()
			case c == nil:
				c = a.contributionLocked(id)
				event(c)
			case c.id == id && !c.gone && !c.left:
				event(c)
			case c.mayEndWithout(id):
				wait = true
			case c.gone || c.left || c.id.Before(id):
				a.abandonLocked()
				wait = true
			default:
				err = &errs.Error{Op: "contribute", Area: a.id, Kind: errs.Busy,
					Err: errs.E(errs.Busy, "", "this node takes part in round %v, which has not ended", c.id)}
			}
		})
		if err != nil || !wait {
			return c, err
		}
		if err = a.awaitHomes(ctx, "contribute", func() bool { return a.mu.replica.contribution == nil }, a.deadInAreaLocked); err != nil {
			return nil, err
		}
	}
}

// contributionLocked has the node take part in a round. It takes part in none.
func (a *Area) contributionLocked(id dsm.RoundID) *contribution {
	c := &contribution{id: id, asked: make(map[dsm.NodeID]uint64), counted: make(map[dsm.NodeID]struct{})}
	a.mu.replica.contribution = c
	return c
}

// countedLocked reports whether all homes have all of it.
func (c *contribution) countedLocked() bool { return !c.due && len(c.counted) == len(c.asked) }

// contributeLocked queues all that is stored to be published as parts.
func (a *Area) contributeLocked(c *contribution) {
	some := !c.whole
	for _, e := range a.busyExtentsLocked() {
		x := a.extentLocked(e)
		if x.dirty.Empty() && len(x.stash) == 0 {
			continue
		}
		some, x.joins = true, true
		a.wantLocked(e, x)
		var stored dsm.PageSet
		for i := range x.stash {
			stored.Add(i)
		}
		a.askLocked(e, x, stored)
	}
	c.whole = true
	if some {
		a.markAgainLocked()
	}
	a.startPublicationsLocked()
}

// FinishRound ends a round. nodes are those whose parts belong to it, writers how many programs these are of. It returns when the homes
// have merged the parts of all, and the result is in memory: like Acquire, and storing is that of Acquire. errs.Timeout if a home
// has not done so before ctx ends, errs.Unavailable if something that was accumulated on this node has been dropped, errs.NotFinite if it has been left out. What this node has contributed is published apart from the round if it is not among nodes.
// A caller that does not store waits while programs that do keep the result out of memory (apply=sync): errs.Timeout if they still do when ctx ends.
func (a *Area) FinishRound(ctx context.Context, id dsm.RoundID, nodes []dsm.NodeID, writers int, storing bool) error {
	var op *acquiring
	a.step(func() { op = a.startFinishLocked(id, nodes, writers, storing) })
	return a.finishRound(ctx, op)
}

func (a *Area) startFinishLocked(id dsm.RoundID, nodes []dsm.NodeID, writers int, storing bool) *acquiring {
	return a.startAcquiringLocked(&acquiring{storing: storing, finish: &wire.Finish{Round: id, Nodes: nodes, Writers: writers}})
}

// finishRound is what is left of FinishRound after startFinishLocked.
func (a *Area) finishRound(ctx context.Context, op *acquiring) error {
	err := a.finishAcquire(ctx, op, nil)
	a.step(func() { a.leaveRoundLocked(op) })
	if err == nil && op.late {
		err = a.awaitGivenBack(ctx, op)
	}
	var kept error
	if err == nil {
		kept = a.awaitKept(ctx, op)
	}
	a.step(func() { err = a.roundErrorLocked(op, err) })
	return cmp.Or(kept, err) // who is told of kept calls again, and hears of the other then
}

// leaveRoundLocked takes back what is left of the contribution once the homes have ended the round: it came too late.
func (a *Area) leaveRoundLocked(op *acquiring) {
	if c := a.mu.replica.contribution; len(op.pending) == 0 && c != nil && c.id == op.finish.Round {
		a.abandonLocked()
	}
}

// comesLateLocked reports whether something that was accumulated on this node is not merged, as the homes have answered that the round is over.
func (a *Area) comesLateLocked(op *acquiring) (late bool) {
	if op.finish != nil {
		late, _ = a.givenLeftLocked(op.finish.Round)
	}
	return late
}

// awaitGivenBack waits until the homes have refused what was accumulated on this node and came too late, or have merged it: the home has moved since it answered, and another
// program of this node has ended the round at the new one. Then the result is brought into memory.
func (a *Area) awaitGivenBack(ctx context.Context, op *acquiring) error {
	id := op.finish.Round
	back := func() bool { some, _ := a.givenLeftLocked(id); return !some }
	if err := a.awaitHomes(ctx, "finish", back, a.deadInAreaLocked); err != nil {
		return err
	}
	var again *acquiring
	a.step(func() {
		if a.mu.replica.dropped[id.Group] != id {
			again = a.startAcquireLocked(op.storing)
		}
	})
	if err := a.finishAcquire(ctx, again, nil); err != nil {
		return err
	}
	a.step(func() {
		if again != nil {
			op.version, op.partly, op.kept, op.changes = again.version, again.partly, again.kept, again.changes
		}
		if op.storing {
			a.broughtLocked(op)
		}
	})
	return nil
}

// roundErrorLocked returns what FinishRound returns, at its end; err is that of the acquire.
func (a *Area) roundErrorLocked(op *acquiring, err error) error {
	id := op.finish.Round
	if err == nil && a.mu.replica.dropped[id.Group] == id {
		err = &errs.Error{Op: "finish", Area: a.id, Kind: errs.Unavailable, Err: errs.E(errs.Unavailable, "", "what was accumulated into round %v is not in it: the part of this node was given up", id)}
	}
	if err == nil && a.notFiniteLocked().given == id {
		err = a.notFiniteErrorLocked()
	}
	if err == nil {
		err = a.errNotFiniteLocked()
	}
	return err
}

// givenIsOpenLocked reports whether op ends a round, and something that was accumulated into it on this node is neither merged nor refused. A home that has
// ended the round answers at once, and perhaps before it has that part again: this node was put out meanwhile, or the session was broken, and
// the part waits for credit. Only the answer says whether it is in the round. What is staged after all homes have ended the round is not: a new home, which
// has not heard of the end, keeps it for a round that nobody ends there.
func (a *Area) givenIsOpenLocked(op *acquiring) bool {
	if op.finish == nil {
		return false
	}
	_, open := a.givenLeftLocked(op.finish.Round)
	return open
}

// givenLeftLocked reports whether something that was accumulated into a round on this node is not merged, and whether a home is still to say something of it.
func (a *Area) givenLeftLocked(id dsm.RoundID) (some, open bool) {
	r := &a.mu.replica
	c := r.contribution
	if !r.subscribed || c == nil || c.id != id || c.parts == 0 {
		return false, false
	}
	for e := range r.busy.extents {
		x := r.extents[e]
		if x == nil {
			continue
		}
		for _, pub := range x.parts {
			if pub.given && pub.round == id {
				some, open = true, open || !pub.staged
			}
		}
	}
	return some, open
}

// FinishRound is Area.FinishRound by the program; afterwards the result is in its memory.
func (t *Attachment) FinishRound(ctx context.Context, id dsm.RoundID, nodes []dsm.NodeID, writers int) error {
	var op *acquiring
	t.area.step(func() { op = t.area.startFinishLocked(id, nodes, writers, t.write) })
	err := t.area.finishRound(ctx, op)
	if err != nil && !errs.Is(err, errs.NotFinite) {
		return err
	}
	if kept := t.awaitDraft(ctx, id, op.changes); kept != nil {
		return kept
	}
	t.acquired()
	return err
}

// AbandonRound takes back what this node has contributed to a round that nobody will finish. It is published.
func (a *Area) AbandonRound(id dsm.RoundID) {
	a.step(func() {
		if c := a.mu.replica.contribution; c != nil && c.id == id {
			a.abandonLocked()
		}
	})
}

// abandonLocked takes back the contribution, if there is one.
func (a *Area) abandonLocked() {
	c := a.mu.replica.contribution
	if c == nil || c.gone {
		return
	}
	for _, e := range a.busyExtentsLocked() {
		x := a.extentLocked(e)
		if x.joins && a.versionedLocked() {
			x.wanted = false // nothing of a version is published alone
		}
		x.joins = false
		for pub := range x.publications() {
			if pub.round == c.id {
				pub.kept.SetHead(sentGone, 1) // before the homes hear of it
			}
		}
	}
	c.gone = true
	for home := range c.asked {
		c.asked[home] = 0
	}
	a.reopenLocked(c)
	a.endContributionLocked()
}

// endContributionLocked forgets a contribution of which nothing is left. Homes that have asked for it may wait for an answer.
func (a *Area) endContributionLocked() {
	if r := &a.mu.replica; r.contribution != nil && r.contribution.gone && r.contribution.parts == 0 {
		if r.contribution.due {
			a.tellHomesLocked(r.contribution)
		}
		r.contribution = nil
		a.mu.wake = true
	}
}

// contributesLocked counts a publication that begins or ends, if it is a part.
func (a *Area) contributesLocked(pub *publication, by int) {
	if pub.round == (dsm.RoundID{}) {
		return
	}
	c := a.mu.replica.contribution
	invariants.Check(c != nil && c.id == pub.round, "area %d: a part of round %v, to which the node does not contribute", a.id, pub.round)
	c.parts += by
	a.mu.mem.HasParts(c.parts > 0)
	a.endContributionLocked()
}

// markAgainLocked has Contributed sent to all homes, behind all parts.
func (a *Area) markAgainLocked() {
	c := a.mu.replica.contribution
	if c == nil {
		return
	}
	clear(c.asked)
	clear(c.counted)
	a.reopenLocked(c)
}

// markAgainAtLocked is markAgainLocked for one home. It may have no extents any more, and wait all the same.
func (a *Area) markAgainAtLocked(home dsm.NodeID) {
	if c := a.mu.replica.contribution; c != nil {
		c.asked[home] = 0
		delete(c.counted, home)
		a.reopenLocked(c)
	}
}

// countAgainLocked follows the end of a part. A home that has not taken the Contributed which counted it waits for another one: an earlier home
// had merged the part, so this one never has it.
func (a *Area) countAgainLocked(pub *publication) {
	c := a.mu.replica.contribution
	if c == nil || c.id != pub.round || c.asked[pub.home] == 0 {
		return
	}
	if _, counted := c.counted[pub.home]; !counted {
		a.markAgainAtLocked(pub.home)
	}
}

// markAgainAfterResetLocked is markAgainAtLocked if the node is a home, or was asked as one. Parts to it may wait to be sent again.
func (a *Area) markAgainAfterResetLocked(peer dsm.NodeID) {
	c := a.mu.replica.contribution
	if c == nil {
		return
	}
	if _, ok := c.asked[peer]; ok {
		a.markAgainAtLocked(peer)
	}
	a.reopenLocked(c)
}

func (a *Area) reopenLocked(c *contribution) {
	c.due = true
	c.open = a.busyExtentsLocked()
}

// contributionChangedLocked follows a new size, which may bring new homes, or new rules, by which homes refuse what was made before.
func (a *Area) contributionChangedLocked(rules bool) {
	switch c := a.mu.replica.contribution; {
	case c == nil:
	case rules:
		a.markAgainLocked()
	default:
		c.due = true
	}
}

// markLocked sends Contributed to the homes that lack it, if all parts were sent. It reports whether it has.
func (a *Area) markLocked() (sent bool) {
	a.endLeftLocked()
	r := &a.mu.replica
	c := r.contribution
	if c == nil || !c.due || !c.whole && !c.gone || !a.sealedLocked(c) {
		return false
	}
	a.mu.wake = true
	return a.tellHomesLocked(c)
}

// tellHomesLocked sends Contributed to the homes that lack it.
func (a *Area) tellHomesLocked(c *contribution) (sent bool) {
	r := &a.mu.replica
	c.due = false
	for _, home := range a.homesLocked() {
		c.asked[home] += 0
	}
	parts := a.partsAtLocked(c.id)
	for _, home := range slices.Sorted(maps.Keys(c.asked)) {
		if c.asked[home] != 0 {
			continue
		}
		r.round++
		c.asked[home] = r.round
		a.sendLocked(home, &wire.Contributed{Stamp: a.stampLocked(), Round: c.id, Nonce: r.round, None: c.gone, Parts: parts[home]})
		sent = true
	}
	return sent
}

// partsAtLocked returns how many parts of a round each home must have.
func (a *Area) partsAtLocked(id dsm.RoundID) map[dsm.NodeID]int {
	at := make(map[dsm.NodeID]int)
	for _, e := range a.busyExtentsLocked() {
		for pub := range a.mu.replica.extents[e].publications() {
			if pub.round == id {
				at[a.rowLocked(e).Primary]++
			}
		}
	}
	return at
}

// sealedLocked reports whether all parts were sent, and none of them is going to be refused for its rules. Nor is what was being published when the
// program contributed: that is no part, but the homes are to have it before the round ends.
func (a *Area) sealedLocked(c *contribution) bool {
	for len(c.open) > 0 {
		e := c.open[len(c.open)-1]
		if x := a.mu.replica.extents[e]; x != nil {
			if x.joins || x.wanted && !c.gone {
				return false
			}
			for pub := range x.publications() {
				if (pub.round == c.id || !c.gone) && (pub.home == 0 || pub.stamp.Gen < a.mu.ino.Gen) {
					return false
				}
			}
		}
		c.open = c.open[:len(c.open)-1]
	}
	return true
}

// receiveOfRoundLocked is receiveLocked for the messages of rounds.
func (a *Area) receiveOfRoundLocked(from dsm.NodeID, msg any, payload func() []byte) error {
	switch m := msg.(type) {
	case *wire.Part:
		switch a.serveLocked(m.Epoch, m.Extent) {
		case park:
			a.parkLocked(from, msg, payload())
		case serve:
			return a.homePartLocked(from, m, payload())
		}
	case *wire.Contributed:
		a.homeContributedLocked(from, m)
	case *wire.Finish:
		if a.awaitingLocked() {
			a.parkLocked(from, msg, nil)
		} else {
			a.homeFinishLocked(from, m)
		}
	case *wire.Staged:
		if a.fromHomeLocked(from, m.Epoch, m.Extent) {
			a.replicaStagedLocked(m)
		}
	case *wire.Counted:
		// What says that there is no part has no Nonce, nor has its answer.
		if c := a.mu.replica.contribution; c != nil && m.Nonce != 0 && c.asked[from] == m.Nonce {
			c.counted[from] = struct{}{}
			a.mu.wake = true
		}
	case *wire.Missing:
		a.replicaMissingLocked(from, m)
	}
	return nil
}

// replicaMissingLocked answers a home that has no Contributed of this node. If the node does not take part in the round any more, it has
// finished it, and the home's part of it too, or it has taken back what it had.
func (a *Area) replicaMissingLocked(from dsm.NodeID, m *wire.Missing) {
	if c := a.mu.replica.contribution; c != nil && c.id == m.Round {
		a.markAgainAtLocked(from)
		return
	}
	a.sendLocked(from, &wire.Contributed{Stamp: a.stampLocked(), Round: m.Round, None: true})
}

// replicaStagedLocked takes note that the home keeps a part. It makes room for the next publication of the extent.
func (a *Area) replicaStagedLocked(m *wire.Staged) {
	r := &a.mu.replica
	if !r.subscribed || int(m.Extent) >= r.n {
		return
	}
	x := a.extentLocked(m.Extent)
	pub := x.publication(m.Seq)
	if pub == nil {
		return
	}
	if pub == x.pub {
		a.endPublicationLocked(x)
		a.keepPartLocked(x, pub)
		x.acked = max(x.acked, pub.number)
		a.mu.wake = true
	} else {
		a.node.links.give(pub.home, a, pub.credit)
	}
	pub.credit, pub.staged = 0, true
	if x.wanted {
		a.wantLocked(m.Extent, x)
	}
	a.startPublicationsLocked()
}

// hasPartsLocked reports whether this node has parts of an extent that are not merged.
func (a *Area) hasPartsLocked(e dsm.ExtentIndex) bool {
	x := a.mu.replica.extents[e]
	return x != nil && len(x.parts) > 0
}

// takeBackLocked ends a publication that the home has refused: its pages become dirty again, and are
// diffed anew. It stays in the round only if it was refused for its rules. What a program has handed over is sent again then, and else dropped:
// FinishRound says so.
func (a *Area) takeBackLocked(e dsm.ExtentIndex, x *replicaExtent, pub *publication) {
	c := a.mu.replica.contribution
	stays := pub.stamp.Gen < a.mu.ino.Gen && c != nil && c.id == pub.round && !c.gone
	if pub.given {
		if stays && a.accumulatesLocked(a.mu.ino.Layout.DataOffset, 0) == nil {
			pub.kept.Drop() // first: if the daemon is killed before the next line, it is dropped, but never counts twice
			pub.kept = nil
			a.giveAgainLocked(e, pub)
		} else if c == nil || !c.left { // else the program has left the round
			a.mu.replica.dropped[pub.round.Group] = pub.round
		}
		a.endUnmergedOneLocked(x, pub)
		pub.data.Release()
		if x.wanted {
			a.wantLocked(e, x)
		}
		return
	}
	x.joins = x.joins || stays
	for other := range x.publications() {
		for i := range pub.pages.All() {
			delete(other.snap, i) // it may account for pub
			other.kept.Without(i)
		}
	}
	a.endUnmergedOneLocked(x, pub)
	a.storedAgainLocked(x, pub)
	pub.data.Release()
	if x.wanted = x.joins || !a.versionedLocked(); x.wanted { // of a version, nothing is published alone
		a.wantLocked(e, x)
	}
}

// endUnmergedOneLocked ends one publication of an extent.
func (a *Area) endUnmergedOneLocked(x *replicaExtent, pub *publication) {
	if pub == x.pub {
		a.endPublicationLocked(x)
	} else {
		a.node.links.give(pub.home, a, pub.credit)
		a.dropPartLocked(x, pub)
	}
	pub.kept.Drop()
	pub.kept = nil
	a.contributesLocked(pub, -1)
}

// endUnmergedLocked ends all publications of an extent, for good.
func (a *Area) endUnmergedLocked(x *replicaExtent) {
	for _, pub := range slices.Collect(x.publications()) {
		a.endUnmergedOneLocked(x, pub)
		pub.data.Release()
	}
	x.joins = false
}
