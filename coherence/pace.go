package coherence

import (
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// A backup is filled at full speed while nobody publishes to this home. Otherwise filling takes a tenth of the time, for it competes with publishes for
// processors and links at both ends:
//
//   - What goes to a backup of a slot that is being filled takes credit of a small window, and that comes back late: when it took t until the ack, and n such may be
//     under way, after 10 n - 1 times t more. It is never later than fillPause, so a fill ends, however much is published: a window at least goes in that time.
//   - What is published meanwhile to extents that the backup has been sent is not passed on, but noted (backup.changed): they are sent again when everything has been sent once.
//     From then on (following) publishes are passed on as they come, and the rest goes at full speed: that costs what a second copy costs anyway.
//
// An extent that is published to often is so sent twice, not each time. Versions of versioned areas are not paced: what waits pins pages of older versions.
const (
	fillWindow = 4 << 20
	fillPause  = 100 * time.Millisecond
	fillShare  = 10
)

// paced is what is known of a change that goes to a backup while that is being filled.
type paced struct {
	first  bool // it counts in fills.unsent
	window bool // its credit is of fillLinks
	sent   time.Time
	merged uint64 // publishes until then
}

// fillsLocked reports whether a change is one for a slot that is being filled.
func (a *Area) fillsLocked(b *backup, x *update) bool {
	if x.waits || x.record || a.versionedLocked() {
		return false
	}
	phase, _ := a.node.fills.standing(a.slotLocked(x.extent), b.id)
	return phase == filling
}

// firstLocked counts a change that tells of an extent for the first time.
func (a *Area) firstLocked(b *backup, x *update) *update {
	if a.fillsLocked(b, x) {
		x.paced.first = true
		a.node.fills.count(b.id, +1)
	}
	return x
}

// batchOfLocked returns the batch in which a change waits that cannot be sent at once.
func (a *Area) batchOfLocked(b *backup, x *update) *batch {
	switch {
	case b.history != nil:
		return &b.later
	case x.record:
		return &b.due
	case b.fill.of[x.extent] != nil:
		return &b.fill
	case b.changed.of[x.extent] != nil && len(x.marks) == 0:
		return &b.changed
	case !a.fillsLocked(b, x):
		return &b.due
	case len(x.marks) > 0: // the fill waits for it
		return &b.fill
	}
	return &b.changed
}

// passedOnLocked says that a change was sent, or need not be.
func (a *Area) passedOnLocked(b *backup, x *update) {
	if x.paced.first {
		x.paced.first = false
		a.node.fills.count(b.id, -1)
	}
}

// count counts extents that were never sent to a backup.
func (f *fills) count(to dsm.NodeID, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.unsent[to] += n; f.mu.unsent[to] == 0 {
		delete(f.mu.unsent, to)
		f.ringLocked(to)
	}
}

// takeCreditLocked takes credit for a change that is to be sent now.
func (a *Area) takeCreditLocked(b *backup, x *update, n int) bool {
	links := &a.node.copyLinks
	x.paced.window = a.fillsLocked(b, x)
	if x.paced.window {
		links = &a.node.fillLinks
	}
	if !links.take(b.id, a, n) {
		return false
	}
	x.credit, x.paced.sent, x.paced.merged = n, a.now(), a.node.stats.publishesMerged.Load()
	return true
}

// giveCreditLocked gives the credit of a change back.
func (a *Area) giveCreditLocked(b *backup, x *update) {
	a.passedOnLocked(b, x)
	to, n := b.id, x.credit
	switch {
	case !x.paced.window:
		a.node.copyLinks.give(to, a, n)
	case n == 0:
	case a.node.stats.publishesMerged.Load() == x.paced.merged:
		a.node.fillLinks.give(to, a, n)
	default:
		atOnce := max(a.node.fillLinks.window/n, 1) // so many may be under way, each with a pause of its own
		pause := min(time.Duration(fillShare*atOnce-1)*a.now().Sub(x.paced.sent), fillPause)
		time.AfterFunc(pause, func() { a.node.fillLinks.give(to, a, n) })
	}
}
