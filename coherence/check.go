package coherence

import (
	"fmt"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/invariants"
)

// checkLocked checks a part of the area after each step, a different one each time, in builds that
// check invariants: checking everything would make steps of large areas take for ever. The
// simulator checks everything after each event.
func (a *Area) checkLocked() {
	if !invariants.Enabled || a.mu.removed {
		return
	}
	const part = 16
	var look []dsm.PageIndex
	for range part {
		if a.mu.looked++; int64(a.mu.looked)*dsm.PageSize >= a.mu.ino.Size {
			a.mu.looked = 0
		}
		look = append(look, a.mu.looked)
	}
	if a.mu.replica.n > 64 {
		return
	}
	if bad := a.problemLocked(look); bad != "" {
		panic(fmt.Sprintf("invariant broken: area %d: %s", a.id, bad))
	}
}

// problemLocked checks between steps whether the parts of the area agree, and describes what does
// not: the sets of pages, the publications, the windows, the directory, the ledger of the page
// cache, and the bytes of the pages in look.
func (a *Area) problemLocked(look []dsm.PageIndex) string {
	if a.mu.removed {
		return ""
	}
	if bad := a.replicaProblemLocked(); bad != "" {
		return "the replica: " + bad
	}
	if bad := a.homeProblemLocked(); bad != "" {
		return "the home: " + bad
	}
	if a.mu.mem == nil {
		return ""
	}
	if bad := a.mu.cached.Problem(); bad != "" {
		return "the ledger: " + bad
	}
	for _, p := range look {
		if bad := a.bytesProblemLocked(p); bad != "" {
			return fmt.Sprintf("page %d: %s", p, bad)
		}
	}
	return ""
}

func (a *Area) replicaProblemLocked() string {
	r := &a.mu.replica
	if !r.subscribed {
		if r.n+r.underWay+r.units+len(r.subs) > 0 {
			return "something is left of one that was dropped"
		}
		return ""
	}
	if r.n != a.extentsLocked() {
		return fmt.Sprintf("%d extents, the area has %d", r.n, a.extentsLocked())
	}
	if r.whole > r.version {
		return fmt.Sprintf("everything up to %d is here, and %d is the newest", r.whole, r.version)
	}
	if r.version > a.mu.newest {
		return fmt.Sprintf("version %d is here, and nobody has heard of a later one than %d", r.version, a.mu.newest)
	}
	for _, d := range a.mu.drafts {
		if d.writers == 0 && d.filled && !d.behind && len(d.staleExtents) > 0 {
			return fmt.Sprintf("the draft of program %d, into which nobody stores, lacks something of extents %v", d.program, d.staleExtents)
		}
	}
	underWay, units, outdated := 0, 0, 0
	for e, x := range r.extents {
		if bad := a.extentProblemLocked(dsm.ExtentIndex(e), x); bad != "" {
			return fmt.Sprintf("extent %d: %s", e, bad)
		}
		if x.pub != nil {
			underWay += x.pub.weight()
		}
		if !x.outdated.Empty() {
			outdated++
		}
		both := x.have.Or(x.asked)
		units += both.Len()
	}
	switch {
	case outdated != r.outdated:
		return fmt.Sprintf("%d extents have outdated pages, counted as %d", outdated, r.outdated)
	case underWay != r.underWay:
		return fmt.Sprintf("%d bytes of publications, counted as %d", underWay, r.underWay)
	case r.demand && units != r.units:
		return fmt.Sprintf("%d pages on demand, counted as %d", units, r.units)
	}
	return ""
}

// extentProblemLocked checks the replica's side of an extent.
func (a *Area) extentProblemLocked(e dsm.ExtentIndex, x *replicaExtent) string {
	r := &a.mu.replica
	none := dsm.PageSet{}
	switch {
	case x.acked > x.started || x.pub != nil && x.acked == x.started && !x.wanted,
		x.pub == nil && x.acked < x.started && !x.wanted && !a.versionedLocked(): // what is refused of a version waits for the next one
		return fmt.Sprintf("publications started %d, acked %d, one under way: %v", x.started, x.acked, x.pub != nil)
	case x.pub != nil && x.pub.pages.Minus(x.pub.sent) != none:
		return "a publication accounts for pages that it has not sent"
	case x.joins && !x.wanted:
		return "what it has for a round is not to be published"
	case x.dirty.Minus(x.have) != none:
		return fmt.Sprintf("pages %v are dirty and not here", x.dirty.Minus(x.have))
	case r.demand && x.have.And(x.asked) != none:
		return fmt.Sprintf("pages %v are here and asked for", x.have.And(x.asked))
	case r.demand && x.outdated.Minus(x.have) != none:
		return fmt.Sprintf("pages %v have newer bytes at the home and are not here", x.outdated.Minus(x.have))
	}
	dead := a.deadHomeLocked(a.slotLocked(e)) != 0
	if x.wanted && x.pub == nil && len(x.stash) == 0 && !dead && !a.mu.absence.has(e) && !a.partsVoidLocked(x) && !slices.Contains(r.wants[a.rowLocked(e).Primary], e) {
		return "nobody will publish it"
	}
	if !x.idle() && !x.busy {
		return "it is not among those that are busy"
	}
	for i := range x.stash {
		if x.have.Has(i) {
			return fmt.Sprintf("stores to page %d wait, which is here", i)
		}
	}
	return ""
}

func (a *Area) homeProblemLocked() string {
	h := &a.mu.home
	n, data := 0, 0
	for e, x := range h.extents {
		if e >= h.below {
			return fmt.Sprintf("extent %d is not looked for: all are below %d", e, h.below)
		}
		if x.version > a.mu.newest {
			return fmt.Sprintf("extent %d is of version %d, and nobody has heard of a later one than %d", e, x.version, a.mu.newest)
		}
		data += x.data.Len()
		for i, v := range x.pages {
			switch {
			case v > x.version:
				return fmt.Sprintf("page %d of extent %d is of version %d, the extent of %d", i, e, v, x.version)
			case v != 0:
				n++
			case x.data.Has(i):
				return fmt.Sprintf("page %d of extent %d has data and no version", i, e)
			}
		}
		if !a.mu.mem.Homed(e) {
			return fmt.Sprintf("extent %d has no home copy", e)
		}
	}
	if n != h.pages || data != h.data {
		return fmt.Sprintf("%d pages, %d with data, counted as %d and %d", n, data, h.pages, h.data)
	}
	for id, s := range h.subs {
		if bad := s.problemLocked(); bad != "" {
			return fmt.Sprintf("subscriber %v: %s", id, bad)
		}
	}
	return ""
}

// problemLocked checks what is known about a subscriber.
func (s *subscriber) problemLocked() string {
	inFlight, lacking := 0, 0
	if t := s.batches; t != nil {
		for _, n := range t.unacked {
			inFlight += n
		}
		if t.sending != (len(t.left) > 0) {
			return fmt.Sprintf("a batch under way: %v, with %d parts left", t.sending, len(t.left))
		}
	}
	for e, l := range s.extents {
		if l.turn != 0 {
			lacking++
		}
		for _, p := range l.pushes {
			inFlight += p.bytes
		}
		switch {
		case e >= s.area.mu.home.below:
			return fmt.Sprintf("extent %d is not looked for: all are below %d", e, s.area.mu.home.below)
		case s.flying[e] != (len(l.pushes) > 0):
			return fmt.Sprintf("extent %d: %d pushes under way, noted: %v", e, len(l.pushes), s.flying[e])
		case l.lacks.Empty() != (l.turn == 0):
			return fmt.Sprintf("extent %d: its turn is %d, and it lacks %v", e, l.turn, l.lacks)
		case l.turn != 0 && len(l.pushes) == 0 && !slices.Contains(s.queue, queuedLag{l.turn, e}):
			return fmt.Sprintf("nobody will push what it lacks of extent %d", e)
		case !l.fetched.Empty() && !slices.Contains(s.fetches, e):
			return fmt.Sprintf("nobody will push what was fetched of extent %d", e)
		case len(l.pushes) == 0 && !l.sent.Empty():
			return fmt.Sprintf("extent %d: pages were sent by no push", e)
		case s.partial && l.lacks.Minus(l.has) != dsm.PageSet{}:
			return fmt.Sprintf("extent %d: it lacks pages that it does not have", e)
		}
	}
	if lacking != int(s.lacking) {
		return fmt.Sprintf("%d extents with lacking pages, counted as %d", lacking, s.lacking)
	}
	for _, w := range s.acquires {
		left := 0
		for _, l := range s.extents {
			if l.turn != 0 && l.turn <= w.until {
				left++
			}
		}
		if left != w.left {
			return fmt.Sprintf("an Acquire waits for %d extents, counted as %d", left, w.left)
		}
	}
	if inFlight != s.inFlight {
		return fmt.Sprintf("%d bytes pushed, counted as %d", inFlight, s.inFlight)
	}
	return ""
}

// bytesProblemLocked compares the copies of a page that must be equal.
func (a *Area) bytesProblemLocked(p dsm.PageIndex) string {
	e, i := p.Extent()
	if h := a.mu.home.extents[e]; h != nil && !h.data.Has(i) && int64(p)*dsm.PageSize < a.mu.ino.Size && !a.mu.mem.HomeZero(p) {
		return "the home has data, and says that it has none"
	}
	if !a.replicaHasLocked(e, i) || int64(p)*dsm.PageSize >= a.mu.ino.Size {
		return ""
	}
	x := a.extentLocked(e)
	switch {
	case x.dirty.Has(i) || x.unmerged(i) || a.sharedLocked() || a.bareLocked(p):
	case string(a.mu.mem.Working(p)) != string(a.mu.mem.Base(p)):
		return "nothing of it is unpublished, and it is not the base copy"
	}
	return ""
}
