package coherence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/spread"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/pages"
	"github.com/dsmfs/dsmfs/pages/merge"
)

// publishWindow bounds the bytes of one area in publications under way. It takes about this much to
// keep a fast link busy.
const publishWindow = 8 << 20

// publishBatch is how many pages are diffed in one step. They are sent, and merged by their homes,
// while the next batch is diffed. When all 4096 pages of a publish were diffed in one step it took
// half as long again: the homes had nothing to do for the first half of the time.
const publishBatch = 512

// publication is a publish of one extent that the home has not acked. There is at most one for each
// extent. Until the ack the base copy stays what the home had. Where the node's own stores must be
// counted, the publication is overlaid on the base.
type publication struct {
	seq   dsm.Seq
	stamp wire.Stamp // made with it; a resend keeps its Gen, so that a home with newer rules refuses it
	// pages are those whose changes no push has brought back yet.
	pages dsm.PageSet
	// sent has all pages of the message, and does not change after the diff. Before the diff it has
	// the pages to compare.
	sent   dsm.PageSet
	delta  merge.Delta
	data   *wire.Shared // the buffer of delta's data
	kernel merge.Kernel
	// snap has the working bytes at the time of the diff. It has only pages where the base plus the
	// published difference is not exactly the same (floating-point rounding).
	snap   map[int][]byte
	home   dsm.NodeID // where it was sent; 0: it waits for credit
	credit int        // bytes of credit that it has taken from the link
	// recount says that some page became all zero, or stopped being so.
	recount bool
	// zeroed are the pages that it makes all zero.
	zeroed dsm.PageSet
	// limit is the smallest size that the area has had since, in bytes from the start of the extent.
	// The part of the publication past it is void.
	limit int
	// compared are the pages that were diffed, refusals what was left out of them.
	compared dsm.PageSet
	refusals []refusal
	// number is what replicaExtent.acked becomes with the ack: the stores of all publications up to
	// this number are then published. A publication that leaves out stores, because their pages are
	// not here yet, does not get a new number.
	number uint64

	// round is that of which the publication is a part; 0: it is none.
	round dsm.RoundID
	// staged says that the home keeps the part, so it has given its credit back.
	staged bool
	// kept is what the next daemon has of it; nil: nothing.
	kept *pages.Sent
	// given says that a program has handed over what it adds: the working copy has nothing of it, and pages is empty.
	given bool
}

// weight returns the bytes for which the publication counts in the window.
func (p *publication) weight() int { return len(p.delta.Data) + len(p.delta.Index) }

// overlay applies the publication to the bytes of page i.
func (p *publication) overlay(dst []byte, i int) {
	keep := max(p.limit-i*dsm.PageSize, 0)
	if keep >= dsm.PageSize {
		p.kernel.Overlay(&p.delta, i, dst)
		return
	}
	tail := bytes.Clone(dst[keep:])
	p.kernel.Overlay(&p.delta, i, dst)
	copy(dst[keep:], tail)
}

// accounted sets dst to the bytes that the working copy of page i had when it was diffed, with updates
// that have come since. Where the working copy differs from them, there is something to publish next.
func (p *publication) accounted(dst []byte, i int, base []byte) {
	if s := p.snap[i]; s != nil {
		copy(dst, s)
		return
	}
	copy(dst, base)
	p.overlay(dst, i)
}

// shrink follows a shrink of the area.
func (p *publication) shrink(e dsm.ExtentIndex, size int64) {
	p.limit = int(min(int64(p.limit), max(size-int64(e)*dsm.ExtentSize, 0)))
	p.kept.SetHead(sentLimit, uint64(p.limit))
	for i, s := range p.snap {
		clear(s[min(max(p.limit-i*dsm.PageSize, 0), dsm.PageSize):])
	}
}

// startPublicationsLocked makes publications of the wanted extents. Those with other homes come first,
// up to the window, because they take longest; then those whose home is this node. What is more than a
// batch is left to further steps.
func (a *Area) startPublicationsLocked() {
	if a.publishableLocked() != nil {
		return
	}
	if a.forfeitsLocked() {
		if a.node.resuming.Load() {
			return // Resumed does it
		}
		a.forfeitLocked()
	}
	if a.startPublicationsToLocked(false) {
		a.startPublicationsToLocked(true)
	}
}

// startPublicationsToLocked makes publications for this node (here) or for other homes, one for each home
// in turn. It returns false when the batch is full and some are left for another step.
func (a *Area) startPublicationsToLocked(here bool) (rest bool) {
	r := &a.mu.replica
	var list []*publication
	var parked []dsm.ExtentIndex
	homes := r.wants.queued(a.node.cfg.Self, here)
batch:
	for len(homes) > 0 {
		more := homes[:0]
		for _, home := range homes {
			e, x := a.nextWantedLocked(home)
			if x == nil {
				continue
			}
			full := r.underWay >= publishWindow
			if a.mu.again = a.mu.handled >= publishBatch; a.mu.again || full && !here {
				break batch
			}
			if full && here && !a.node.slotReady(a.slotLocked(e), a.rowLocked(e)) { // the message would be parked
				parked = append(parked, e)
				r.wants.drop(home, x)
				more = append(more, home)
				continue
			}
			pages := x.dirty.And(x.have)
			n := pages.Len()
			if !a.node.links.take(home, a, n*dsm.PageSize) {
				continue
			}
			more = append(more, home)
			r.wants.drop(home, x)
			a.mu.handled += uint16(n)
			x.wanted = len(x.stash) > 0 // stores in the stash are published when their pages have come
			pub := a.newPublicationLocked(e, x)
			pub.home, pub.credit = home, n*dsm.PageSize
			list = append(list, pub)
		}
		homes = more
	}
	for _, e := range parked {
		a.wantLocked(e, a.extentLocked(e))
	}
	spread.Over(len(list), func(i int) { a.diffLocked(list[i]) })
	for _, pub := range list {
		r.published(pub.delta.Extent, pub.compared)
		a.startPublicationLocked(pub)
	}
	return !a.mu.again
}

// newPublicationLocked makes a publication from the dirty pages of an extent.
func (a *Area) newPublicationLocked(e dsm.ExtentIndex, x *replicaExtent) *publication {
	pub := &publication{kernel: a.mu.kernel, stamp: a.stampLocked(), limit: dsm.ExtentSize, sent: x.dirty.And(x.have)}
	if x.joins {
		pub.round = a.mu.replica.contribution.id
		x.joins = len(x.stash) > 0
	}
	x.dirty = x.dirty.Minus(pub.sent)
	if len(x.stash) == 0 {
		x.started++
	}
	pub.number = x.started
	pub.delta.Reset(e)
	pub.delta.Grow(pub.sent.Len())
	return pub
}

// diffLocked finds what changed in the pages of a publication. Calls for different publications run
// concurrently: each changes only its own publication.
func (a *Area) diffLocked(pub *publication) {
	mem, e := a.mu.mem, pub.delta.Extent
	pub.data = wire.Share(pub.sent.Len() * dsm.PageSize)
	pub.delta.Data = pub.data.Bytes[:0]
	x := a.mu.replica.extents[e]
	pub.compared = pub.sent
	var snap, accounted, buf [dsm.PageSize]byte
	for i := range pub.sent.All() {
		p := page(e, i)
		mem.PrefetchNext(e, &pub.sent, i)
		var changed, inexact bool
		w, base, before := mem.Working(p), mem.Base(p), pub.delta.NotFinite
		if x.unmerged(i) {
			x.accounted(accounted[:], i, base)
			base = accounted[:]
		}
		had := base
		base = a.storedBaseLocked(pub.kernel, p, base, &buf)
		// A program that has detached may have left bytes past the end.
		if a.sharedLocked() || int64(p+1)*dsm.PageSize > a.mu.ino.Size {
			w = a.bytesOfLocked(p)
			changed, inexact = pub.kernel.AppendShared(&pub.delta, p, base, w, snap[:])
			if inexact || pub.kernel.RefusesNotFinite() {
				w = snap[:] // programs may store meanwhile: what is accounted for must be the bytes that are sent
			}
		} else {
			changed, inexact = pub.kernel.AppendDelta(&pub.delta, p, base, w)
		}
		if n := pub.delta.NotFinite - before; n > 0 && pub.kernel.RefusesNotFinite() {
			copy(snap[:], w)
			w = snap[:]
			_, first := pub.kernel.Finite(p, base, w)
			pub.refusals = append(pub.refusals, refusal{page: i, count: n, first: first})
		}
		if changed {
			pub.pages.Add(i)
			zero := isZero(w)
			pub.recount = pub.recount || isZero(had) != zero
			if zero {
				pub.zeroed.Add(i)
			}
		}
		if inexact {
			if pub.snap == nil {
				pub.snap = make(map[int][]byte)
			}
			pub.snap[i] = bytes.Clone(w)
		}
	}
	pub.sent = pub.pages
	pub.data.Bytes = pub.delta.Data // delta.Data may have outgrown the buffer
	pub.data.Trim()
	pub.delta.Data = pub.data.Bytes
}

// startPublicationLocked sends a publication that has been diffed. If nothing changed, it is over at once.
func (a *Area) startPublicationLocked(pub *publication) {
	r := &a.mu.replica
	e := pub.delta.Extent
	x := a.extentLocked(e)
	a.lookAtDiffLocked(x, pub)
	a.node.links.more(pub.home, a, pub.weight()-pub.credit)
	pub.credit = pub.weight()
	if pub.pages.Empty() {
		pub.data.Release()
		x.acked = pub.number
		clean := pub.compared.Minus(x.dirty) // but for those with elements that must not be published
		a.mu.wake, a.mu.cleaner = true, a.mu.cleaner || r.demand && !clean.Empty()
		return
	}
	r.seq++
	r.underWay += pub.weight()
	pub.seq = r.seq
	x.pub = pub
	a.contributesLocked(pub, +1)
	if pub.kernel.Last() && pub.round == (dsm.RoundID{}) {
		l := r.leaves()
		l.unkept = append(l.unkept, e)
	} else {
		a.keepPublicationLocked(e, pub)
	}
	a.node.stats.publishes.Add(1)
	a.node.stats.publishedBytes.Add(uint64(len(pub.delta.Data)))
	a.sendPublicationLocked(e, pub)
}

func (a *Area) sendPublicationLocked(e dsm.ExtentIndex, pub *publication) {
	st := a.stampLocked()
	st.Gen = pub.stamp.Gen
	if pub.round != (dsm.RoundID{}) {
		delta, data := pub.delta, pub.data.Retain()
		if later := a.extentLocked(e).publish(); later != nil { // the home may get it, or have got it, before the part
			overtake(pub.kernel, &delta, &data, later.kernel, &later.delta)
		}
		a.sendSharedLocked(a.rowLocked(e).Primary, &wire.Part{Stamp: st, Round: pub.round, Extent: e, Seq: pub.seq, Pages: pub.sent, Index: pub.delta.Index}, data)
		return
	}
	a.sendSharedLocked(a.rowLocked(e).Primary, &wire.Publish{Stamp: st, Extent: e, Seq: pub.seq, Pages: pub.sent, Index: pub.delta.Index},
		pub.data.Retain())
}

// resendAllLocked sends the publications of an extent again.
func (a *Area) resendAllLocked(e dsm.ExtentIndex, x *replicaExtent) {
	for pub := range x.publications() {
		a.resendLocked(e, pub)
	}
}

// resendLocked sends a publication again, perhaps to another home. If the link there has no credit, the
// publication waits for credit.
func (a *Area) resendLocked(e dsm.ExtentIndex, pub *publication) {
	if a.mu.absence.has(e) {
		return // comparedAllLocked sends it
	}
	home := a.rowLocked(e).Primary
	if pub.home != home || pub.staged {
		a.node.links.give(pub.home, a, pub.credit)
		pub.home, pub.credit, pub.staged = 0, 0, false
		if !a.node.links.take(home, a, pub.weight()) {
			if l := a.mu.replica.leaves(); !slices.Contains(l.unsent, e) {
				l.unsent = append(l.unsent, e)
			}
			return
		}
		pub.home, pub.credit = home, pub.weight()
	}
	a.sendPublicationLocked(e, pub)
}

// sendUnsentLocked sends publications that wait for credit.
func (a *Area) sendUnsentLocked() {
	r := &a.mu.replica
	if r.leaving == nil {
		return
	}
	unsent := r.leaving.unsent
	r.leaving.unsent = nil
	for _, e := range unsent {
		if int(e) >= r.n {
			continue
		}
		for pub := range a.extentLocked(e).publications() {
			if pub.home == 0 {
				a.resendLocked(e, pub)
			}
		}
	}
}

// replicaPublishAckLocked ends a publication. The base copy takes it over. If the home has refused it,
// because the area was shrunk or its rules changed meanwhile, its pages become dirty again and are
// diffed anew.
func (a *Area) replicaPublishAckLocked(m *wire.PublishAck) {
	r := &a.mu.replica
	a.heardLocked(m.Version)
	if !r.subscribed || int(m.Extent) >= r.n {
		return
	}
	x := a.extentLocked(m.Extent)
	pub := x.publication(m.Seq)
	if pub == nil {
		return
	}
	a.mu.wake = true
	part := pub.round != (dsm.RoundID{})
	if part {
		defer a.countAgainLocked(pub)
	}
	if m.Stale {
		if part && a.versionedLocked() {
			a.mu.owning.fences++
		}
		a.takeBackLocked(m.Extent, x, pub) // the next publication ends the waits for this one
		a.startPublicationsLocked()
		return
	}
	if !part {
		a.overtakeLocked(x, pub)
	}
	a.mu.recount = a.mu.recount || pub.recount || part
	if a.extentsLocked() == 1 {
		a.mu.counted = counted{pages: int64(m.Data), known: true, taken: a.mu.counted.taken}
	}
	mem := a.mu.mem
	a.basesFollowLocked(m.Extent, pub.pages)
	var n [dsm.PageSize]byte
	for i := range pub.pages.All() {
		p := page(m.Extent, i)
		mem.PrefetchNext(m.Extent, &pub.pages, i)
		s := pub.snap[i]
		if x.amongOthers(pub, i) && a.inAreaLocked(m.Extent, i) {
			a.mergedAmongLocked(m.Extent, x, pub, i)
			continue
		}
		if !a.inAreaLocked(m.Extent, i) || s == nil && m.Rode.Has(i) {
			continue
		}
		if s == nil && pub.kernel.Last() && !mem.Homed(m.Extent) { // if the daemon is killed meanwhile, the next one does it again: that does no harm
			pub.overlay(mem.OwnBase(p), i)
			pub.pages.Remove(i)
			x.keepsNow(i)
			continue
		}
		done := a.mergesLocked(m.Extent, x, i, s != nil)
		if pub.pages.Remove(i); s == nil && !mem.Homed(m.Extent) {
			pub.overlay(mem.OwnBase(p), i)
			done()
			continue
		}
		copy(n[:], mem.Base(p))
		if !m.Rode.Has(i) {
			pub.overlay(n[:], i)
		}
		if s != nil {
			// The home's result is rounded differently: bring it into memory too.
			a.mu.cached.BeforeMerge(p)
			a.mergeLocked(pub.kernel, x, i, s, n[:], n[:])
			a.mu.replica.changes++
			a.changedLocked(m.Extent, dsm.Range(i, i+1), nil)
		}
		mem.SetBase(p, n[:])
		done()
	}
	a.endUnmergedOneLocked(x, pub)
	if !part {
		a.freeZeroedLocked(m.Extent, x, pub.zeroed)
	}
	a.mu.cleaner = r.demand
	if m.Complete && x.outdated.Empty() {
		x.version = max(x.version, m.Version)
		r.version = max(r.version, m.Version)
	}
	if m.Gen >= a.mu.ino.Gen { // else pushes before it were as old, and refused
		a.cameUptoLocked(m.Upto)
	}
	x.acked = max(x.acked, pub.number)
	pub.data.Release()
	if x.wanted {
		a.wantLocked(m.Extent, x)
	}
	a.startPublicationsLocked()
}

// aheadBytes is the smallest WRITE that starts publications before any call asks for them. Such a WRITE
// means that a program, or the kernel's writeback, is writing a lot.
const aheadBytes = 256 << 10

// canPublishAheadLocked reports whether the caller should start a goroutine that calls publishAheadLocked; if
// so, it has recorded that one will run. Only an area with an interval may be published before a call asks for it.
func (a *Area) canPublishAheadLocked() bool {
	r := &a.mu.replica
	if r.early || a.mu.ino.Spec.Interval == 0 || a.versionedLocked() || r.underWay >= publishWindow {
		return false
	}
	r.early = true
	return true
}

// publishAheadLocked publishes the extents in which every page is dirty. These are diffed and sent while
// the kernel still delivers the rest of a large writeback. So the fsync that follows finds most of it done.
func (a *Area) publishAheadLocked() {
	r := &a.mu.replica
	r.early = false
	for _, e := range r.busy.full {
		if int(e) < r.n && a.extentLocked(e).dirty == dsm.AllPages {
			a.wantLocked(e, a.extentLocked(e))
		}
	}
	r.busy.full = nil
	a.startPublicationsLocked()
}

// publishGoal says when the publish that a caller waits for is complete: when the publications of each
// extent up to its number are acked. It has replicaExtents, not indices: if an extent is truncated and the area grows again, the new extent is another one.
type publishGoal map[*replicaExtent]uint64

// truncated ends all waits for publications of an extent that has been truncated.
func (x *replicaExtent) truncated() { x.acked = math.MaxUint64 }

// requestPublishLocked queues all dirty extents to be published, starts publications, and returns the goal; nil if
// there is nothing to wait for.
func (a *Area) requestPublishLocked() publishGoal {
	r := &a.mu.replica
	var goal publishGoal
	r.busy.full = nil
	for _, e := range a.busyExtentsLocked() {
		x := a.extentLocked(e)
		switch {
		case !x.dirty.Empty() || len(x.stash) > 0:
			a.wantLocked(e, x)
			var stored dsm.PageSet
			for i := range x.stash {
				stored.Add(i)
			}
			a.askLocked(e, x, stored) // asks only for pages that came and could not be put in place
		case x.pub == nil:
			continue
		}
		if goal == nil {
			goal = make(publishGoal)
		}
		goal[x] = x.started
		if x.wanted {
			goal[x]++
		}
	}
	if goal != nil {
		a.startPublicationsLocked()
	}
	return goal
}

// reachedLocked reports whether the goal is reached. It removes finished extents from the goal, so that it
// need not look at them again.
func (a *Area) reachedLocked(g publishGoal) bool {
	for x, n := range g {
		if x.acked >= n {
			delete(g, x)
		}
	}
	return len(g) == 0
}

// Publish makes the stores that this node has received so far visible to the other nodes. It returns
// when the homes have merged them. errs.Timeout if some home does not answer before ctx ends; the stores
// are kept, and published later. errs.Invalid if the area's rules do not fit its bytes, errs.NotFinite if some elements must not be published.
func (a *Area) Publish(ctx context.Context) error {
	if a.versioned() {
		return a.publishVersion(ctx)
	}
	return a.publish(ctx, false, nil, func() {})
}

// PublishLast is Publish for a program that closes the area. It does not wait for silent homes: those that have let an earlier publish
// run into its deadline, and have sent nothing since. If only such homes are left, it returns errs.Timeout at once.
func (a *Area) PublishLast(ctx context.Context) error {
	if a.versioned() {
		return a.publishVersion(ctx)
	}
	return a.publish(ctx, true, nil, func() {})
}

// publish is Publish, or PublishLast with last. If own is not nil, of what programs have in drafts it looks for that in own alone. It calls and in the step that sends the first publications, after they are sent.
func (a *Area) publish(ctx context.Context, last bool, own *draft, and func()) error {
	a.scan(own) // a step follows in any case
	a.refreshAll()
	var goal publishGoal
	var rule error
	for looked := false; ; looked = true {
		var header *candidate
		a.step(func() {
			if header = a.candidateLocked(); header != nil && !looked {
				return
			}
			if goal = a.requestPublishLocked(); goal != nil {
				rule = a.publishableLocked()
			} else {
				rule = a.errNotFiniteLocked() // of a draft
			}
			and()
		})
		if header == nil || looked {
			break
		}
		if err := a.setLayout(ctx, header); err != nil {
			return err
		}
	}
	if goal == nil {
		return rule
	}
	if rule != nil {
		return rule
	}
	if err := a.awaitHomes(ctx, "publish", func() bool {
		rule = a.publishableLocked()
		return rule != nil || a.reachedLocked(goal)
	}, func() dsm.NodeID { return a.deadGoalLocked(goal, last) }); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			a.step(func() { a.silentLocked(goal) })
		}
		return err
	}
	if rule == nil {
		a.note(func() { rule = a.errNotFiniteLocked() })
	}
	return rule
}

// publishableLocked returns why the bytes of the area cannot be merged by its rules; nil if they can.
func (a *Area) publishableLocked() error {
	if a.mu.ruleErr != nil {
		err := a.mu.ruleErr
		if a.mu.header.err != nil && a.mu.ino.Layout == (dsm.Layout{}) {
			err = fmt.Errorf("%w; what is there cannot be used: %w", err, a.mu.header.err)
		}
		return &errs.Error{Op: "publish", Area: a.id, Kind: errs.Invalid, Err: err}
	}
	if a.mu.ino.Spec.Merge != dsm.MergeLast {
		if err := a.mu.ino.Layout.CheckEnd(a.mu.ino.Size); err != nil {
			return &errs.Error{Op: "publish", Area: a.id, Kind: errs.Invalid, Err: err}
		}
	}
	return nil
}
