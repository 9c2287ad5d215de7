package coherence

import (
	"maps"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/pages/merge"
)

// A node that was cut off, and evicted, comes back with stores that it has not published. By all merge rules but last they merge as ever. By
// the rule last what is published later wins, so its stores would undo what the others have published since. So there it compares first:
//
//	Returning    stores are found; extents that have any are returning: nothing of them is published
//	Rejoined     Subscribe to all homes: what is newer than the base copy?
//	Subscribed   the pages that are, if this node has stored to them too, must come first
//	Push         an element that both have changed since the base copy, to different values, is a conflict: the value of the
//	             others stays, and that of this node is kept aside
//	             then the extent is not returning any more, and what is left is published
//
// A home that was cut off may have merged what its own programs have published, if nobody could take over from it. When it comes back the others have not
// published what they have stored: they compare in the same way, but there their values stay.
//
// Who is right is decided here, because only this node has all three values. What the others publish after the Push is an ordinary publish at
// the same time: the last one wins.
//
// Two things have to be true. Nothing that this node has sent before it was evicted may be merged any more, though it may arrive long after, from
// the buffers of a connection: see strangerLocked. And the base copy must not follow what the homes have sent before this node knew that it was
// evicted: see doubtfulLocked.

// absence is what is left of the time when a node was not a member.
type absence struct {
	returning map[dsm.ExtentIndex]comparison // the extents that are being compared
	conflicts
}

// comparison is that of an extent.
type comparison struct {
	at   comparedTo
	wins bool // the home was cut off, and not this node: the values of this node stay
}

// comparedTo is how far a comparison has come.
type comparedTo uint8

const (
	unanswered comparedTo = iota // the home has not answered a Subscribe since both are members
	answered                     // it has: now it is known which pages are newer there
	fetching                     // they were asked for, because the home pushes none by itself
)

// set records how far the comparison of an extent has come.
func (b *absence) set(e dsm.ExtentIndex, at comparedTo) {
	b.returning[e] = comparison{at, b.returning[e].wins}
}

// has reports whether an extent is being compared.
func (b *absence) has(e dsm.ExtentIndex) bool {
	if b == nil {
		return false
	}
	_, ok := b.returning[e]
	return ok
}

// compares reports whether extents are being compared.
func (b *absence) compares() bool { return b != nil && len(b.returning) > 0 }

// Returning says that this node was evicted, and is about to act as a member again: Rejoined follows. What the kernel had of the stores of
// programs has been delivered.
func (n *Node) Returning() {
	for _, a := range n.all() {
		a.collect()
		a.step(a.returningLocked)
	}
}

// comparesLocked reports whether conflicts are looked for: in areas of other rules only headers, and parts that have no other rule, could have any.
func (a *Area) comparesLocked() bool {
	return a.mu.replica.subscribed && a.mu.ino.Spec.Merge == dsm.MergeLast && !a.versionedLocked()
}

func (a *Area) returningLocked() {
	if a.forfeitsLocked() {
		a.forfeitLocked()
		return
	}
	a.compareLocked(false, func(dsm.ExtentIndex) bool { return true })
}

// homesReturnedLocked follows homes that were cut off, and have joined again since the view old with what they had. Their programs may have published
// there to elements to which this node has stored: as this node was with the majority, its values stay, and it keeps those of the home.
func (a *Area) homesReturnedLocked(old *dsm.View) {
	a.compareLocked(true, func(e dsm.ExtentIndex) bool {
		row, had := a.rowLocked(e), old.Row(a.slotLocked(e))
		if a.isSelf(row.Primary) || row.Source != 0 || had == nil || had.Primary != row.Primary || a.mu.absence.has(e) {
			return false
		}
		m, ok := a.mu.view.Member(row.Primary)
		before, was := old.Member(row.Primary)
		again := was && (before.Gone || before.Inc != m.Inc) || !was && old.Knows(row.Primary) // one that goes on with another daemon was not cut off
		return ok && !m.Gone && again
	})
}

// compareLocked begins the comparison of those extents that have stores.
func (a *Area) compareLocked(wins bool, which func(e dsm.ExtentIndex) bool) {
	if !a.comparesLocked() {
		return
	}
	for _, e := range a.busyExtentsLocked() {
		if x := a.mu.replica.extents[e]; x.dirty.Empty() && x.pub == nil || !which(e) {
			continue
		}
		a.absentLocked().returning[e] = comparison{wins: wins}
		a.mu.mem.IsCompared(e, wins)
	}
}

// compareLeftLocked goes on with the comparisons of a daemon that was killed. They begin anew: what it has compared is in the base copy.
func (a *Area) compareLeftLocked() {
	for e, wins := range a.mu.mem.Compared() {
		if int(e) >= a.extentsLocked() {
			a.mu.mem.WasCompared(e)
			continue
		}
		a.absentLocked().returning[e] = comparison{wins: wins}
	}
}

// endComparisonLocked ends the comparison of an extent, or says that it was truncated.
func (a *Area) endComparisonLocked(e dsm.ExtentIndex) {
	if a.mu.absence.has(e) {
		delete(a.mu.absence.returning, e)
		a.mu.mem.WasCompared(e)
	}
}

// absentLocked returns the absence of the area, made if there is none.
func (a *Area) absentLocked() *absence {
	if a.mu.absence == nil {
		a.mu.absence = &absence{returning: make(map[dsm.ExtentIndex]comparison), conflicts: conflicts{last: a.node.lastConflict.Load()}}
	}
	return a.mu.absence
}

// rejoinedLocked subscribes to what this node is the home of. It subscribes at other nodes, too, because its sessions with them count as broken: so
// answers to earlier Subscribes are answers to none.
func (a *Area) rejoinedLocked() {
	if a.mu.absence.compares() {
		a.replicaResetLocked(a.node.cfg.Self)
	}
}

// awaitsAnswerLocked reports whether pushes of an extent are not taken yet. They belong to an earlier subscription: what this one lacks is pushed
// again, with what the home knows now of the publishes that it contains.
func (a *Area) awaitsAnswerLocked(e dsm.ExtentIndex) bool {
	return a.mu.absence.has(e) && a.mu.absence.returning[e].at == unanswered
}

// awaitsAnswerOfLocked reports whether pushes of a home are not taken yet. So what it says it has pushed may not be here. The Subscribe that it is to answer is followed by all Acquires.
func (a *Area) awaitsAnswerOfLocked(home dsm.NodeID) bool {
	if !a.mu.absence.compares() {
		return false
	}
	for e := range a.mu.absence.returning {
		if a.awaitsAnswerLocked(e) && a.rowLocked(e).Primary == home {
			return true
		}
	}
	return false
}

// homeAnsweredLocked follows the answer of a home to a Subscribe.
func (a *Area) homeAnsweredLocked(from dsm.NodeID, m *wire.Subscribed) {
	if !a.mu.absence.compares() {
		return
	}
	for e := range a.mu.absence.returning {
		if slices.Contains(m.Slots, a.slotLocked(e)) && a.fromHomeLocked(from, m.Epoch, e) {
			a.mu.absence.set(e, answered)
		}
	}
}

// takeBackUnmergedLocked makes what was sent of a returning extent, and its home has not merged, into stores again: it never will be merged.
func (a *Area) takeBackUnmergedLocked(m *wire.Push, x *replicaExtent) {
	if !a.mu.absence.has(m.Extent) {
		return
	}
	a.mu.absence.joins = false
	if x.pub == nil || x.pub.round != (dsm.RoundID{}) || x.pub.seq <= m.Contains {
		return
	}
	a.takeBackLocked(m.Extent, x, x.pub)
}

// conflictsLocked finds the conflicts between the working copy of page i, which was base, and incoming, and keeps aside the values that do not stay. It
// returns the base with which the page is to be merged: if those are this node's, as if nothing had been stored to these elements.
func (a *Area) conflictsLocked(e dsm.ExtentIndex, i int, base, incoming []byte) []byte {
	if !a.mu.absence.has(e) {
		return base
	}
	p := page(e, i)
	var mine [dsm.PageSize]byte
	merge.Snapshot(mine[:], a.bytesOfLocked(p))
	found := a.mu.kernel.Conflicts(p, base, mine[:], incoming)
	if len(found) == 0 {
		return base
	}
	wins := a.mu.absence.returning[e].wins
	base = slices.Clone(base)
	for _, run := range found {
		off, own, others := int64(p)*dsm.PageSize+run.Off, mine[run.Off:][:run.Len], incoming[run.Off:][:run.Len]
		if wins {
			a.keepLocked(off, others, own)
			continue
		}
		a.keepLocked(off, own, others)
		copy(base[run.Off:], own)
	}
	return base
}

// comparedAllLocked ends the comparison of the extents of which all is here that is needed, and has them published. It reports whether it has
// sent anything.
func (a *Area) comparedAllLocked() bool {
	b := a.mu.absence
	if !b.compares() {
		return false
	}
	any, fetched := false, false
	for _, e := range slices.Sorted(maps.Keys(b.returning)) {
		x := a.mu.replica.extents[e]
		if x != nil {
			stored := x.dirty
			if x.pub != nil {
				stored = stored.Or(x.pub.sent)
			}
			if outdated := x.outdated.And(stored); b.returning[e].at == unanswered || !outdated.Empty() {
				fetched = a.fetchToCompareLocked(e, outdated) || fetched
				continue
			}
		}
		a.endComparisonLocked(e)
		any = true
		if x == nil { // it was truncated
			continue
		}
		a.resendAllLocked(e, x)
		if x.hasPart() { // the home may have been told already that this node is in no round, or has contributed all
			a.markAgainAtLocked(a.rowLocked(e).Primary)
		}
		if x.wanted {
			a.wantLocked(e, x)
		}
	}
	if !any {
		return fetched
	}
	a.startPublicationsLocked()
	if len(b.returning) == 0 {
		b.before = 0
		a.tellOfConflictsLocked("programs here and others have stored to the same elements while a node was cut off: the values of the majority stay")
	}
	a.mu.wake = true
	return true
}

// fetchToCompareLocked asks for pages that the home does not push by itself, because updates enter memory in sync calls only. The working copy
// takes them all the same: nothing can be published otherwise. Programs that do not share it see them after their next sync call.
func (a *Area) fetchToCompareLocked(e dsm.ExtentIndex, outdated dsm.PageSet) bool {
	b := a.mu.absence
	if b.returning[e].at != answered || !a.mu.replica.onRequest {
		return false
	}
	b.set(e, fetching)
	a.sendLocked(a.rowLocked(e).Primary, &wire.Fetch{Stamp: a.stampLocked(), Extent: e, Pages: outdated})
	return true
}

// doubtfulLocked reports whether a message of a home, or a publish for this one, must wait. This node's lease has run out: it is a member still, or it
// was evicted, and what programs have stored on both sides is to be compared with what was known before.
func (a *Area) doubtfulLocked(from dsm.NodeID, msg any) bool {
	if a.isSelf(from) || a.mu.ino.Spec.Merge != dsm.MergeLast || a.versionedLocked() {
		return false
	}
	r := &a.mu.replica
	if _, publish := msg.(*wire.Publish); !publish && (!fromHome(msg) || !r.subscribed || r.writers == 0 && len(r.busy.extents) == 0) {
		return false
	}
	return !a.node.cfg.View.MayServe()
}

// strangerLocked reports whether a message was sent while its sender, or this node, was not a member, or before one of them was evicted. A publish of
// then is not merged: who has sent it compares first, and sends again what is left of it. Nor is a push of then taken.
func (a *Area) strangerLocked(from dsm.NodeID, st *wire.Stamp) bool {
	if a.isSelf(from) {
		return a.leftLocked(from, 0)
	}
	self, _ := a.mu.view.Member(a.node.cfg.Self)
	m, ok := a.mu.view.Member(from)
	return !ok || m.Gone || st.Epoch < max(m.Since, self.Since)
}
