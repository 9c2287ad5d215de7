package coherence

import (
	"fmt"
	"maps"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/pages/merge"
)

// Floats that are infinite, or not a number, spread: whoever computes with one has another. An area counts those that programs of this
// node publish, and the sums at this home that are none. With user.dsm.on_nonfinite=refuse a node publishes none: such an element stays
// as it is in the program's memory, and sync calls fail with errs.NotFinite, until a program stores a finite one there. All other elements are
// published. Finite parts of several nodes can still have a sum that is infinite. Nobody has made it alone, so nobody could be refused: it is counted.

// notFinite is what an area knows of such elements.
type notFinite struct {
	published  uint64      // by this node
	refused    uint64      // not published, each time that one was stored
	overflowed uint64      // sums at this home, each time that something was added
	pages      refused     // of the working copy; those of a draft are in the draft
	given      dsm.RoundID // the last round into which one was accumulated that was left out
	first      int64       // where one that was refused is, in bytes
}

// refused are pages with elements that are not published because they are not finite, and how many each has.
type refused map[dsm.PageIndex]int

// refusedLocked records how many a page has now, the first one at byte first. The map is made when it is needed.
func (a *Area) refusedLocked(r *refused, p dsm.PageIndex, n int, first int64) {
	was := (*r)[p]
	if n == 0 {
		if was > 0 {
			delete(*r, p)
		}
		return
	}
	if *r == nil {
		*r = make(refused)
	}
	(*r)[p] = n
	f := a.foundNotFiniteLocked("a program has stored numbers that are not finite; they are not published", n)
	f.refused += uint64(max(n-was, 0))
	f.first = first
}

// allFinite is what an area knows that has found none.
var allFinite = &notFinite{}

// notFiniteLocked returns what the area knows, to be read.
func (a *Area) notFiniteLocked() *notFinite {
	if a.mu.notFinite == nil {
		return allFinite
	}
	return a.mu.notFinite
}

// foundNotFiniteLocked returns what the area knows, to be changed: n elements were found.
func (a *Area) foundNotFiniteLocked(what string, n int) *notFinite {
	if a.mu.notFinite == nil {
		a.mu.notFinite = new(notFinite)
		a.node.cfg.Log.Warn(what, "area", a.id, "elements", n)
	}
	return a.mu.notFinite
}

// kernelOf returns the kernel of an area of these rules, or why there is none.
func kernelOf(ino dsm.Inode) (merge.Kernel, error) {
	k, err := merge.KernelFor(ino.Spec.Merge, ino.Layout)
	if err == nil && ino.Spec.OnNonFinite == dsm.NonFiniteRefuse {
		k = k.OnlyFinite()
	}
	return k, err
}

// refusal is what the diff of a page has left out.
type refusal struct {
	page  int
	count int
	first int64
}

// lookAtDiffLocked follows the diff of a publication.
func (a *Area) lookAtDiffLocked(x *replicaExtent, pub *publication) {
	if n := pub.delta.NotFinite; n > 0 && !pub.kernel.RefusesNotFinite() {
		a.foundNotFiniteLocked("a program has published numbers that are not finite", n).published += uint64(n)
	}
	if len(pub.refusals) == 0 && len(a.notFiniteLocked().pages) == 0 {
		return // nearly always
	}
	f := a.foundNotFiniteLocked("a program has stored numbers that are not finite; they are not published", pub.delta.NotFinite)
	for i := range pub.compared.All() {
		n, first := 0, int64(0)
		for _, r := range pub.refusals {
			if r.page == i {
				n, first = r.count, r.first
				a.dirtyLocked(pub.delta.Extent, x, dsm.Range(i, i+1))
			}
		}
		a.refusedLocked(&f.pages, page(pub.delta.Extent, i), n, first)
	}
}

// lookAtGivenLocked follows the diff of what a program has handed over to a round.
func (a *Area) lookAtGivenLocked(c *contribution, pub *publication) {
	switch n := pub.delta.NotFinite; {
	case n == 0:
	case pub.kernel.RefusesNotFinite():
		f := a.foundNotFiniteLocked("a program has added numbers that are not finite; they are left out", n)
		f.refused += uint64(n)
		f.given, f.first = c.id, pub.delta.FirstNotFinite
	default:
		a.foundNotFiniteLocked("a program has added numbers that are not finite", n).published += uint64(n)
	}
}

// takesFiniteLocked leaves out of what a program has stored to a page of its draft what is not to be published.
func (a *Area) takesFiniteLocked(d *draft, p dsm.PageIndex, base, now []byte) {
	if a.mu.kernel.RefusesNotFinite() {
		n, first := a.mu.kernel.Finite(p, base, now)
		a.refusedLocked(&d.refused, p, n, first)
	}
}

// overflowedLocked counts sums at this home that are no finite numbers.
func (a *Area) overflowedLocked(n int) {
	if n > 0 {
		a.foundNotFiniteLocked("sums of what nodes have published are not finite", n).overflowed += uint64(n)
	}
}

// errNotFiniteLocked returns an error if elements that programs of this node have stored are not published.
func (a *Area) errNotFiniteLocked() error {
	f := a.notFiniteLocked()
	maps.DeleteFunc(f.pages, func(p dsm.PageIndex, _ int) bool {
		e, i := p.Extent()
		x := a.mu.replica.extents[e]
		return x == nil || !x.dirty.Has(i)
	})
	some := len(f.pages) > 0
	for _, d := range a.mu.drafts {
		maps.DeleteFunc(d.refused, func(p dsm.PageIndex, _ int) bool { return int64(p)*dsm.PageSize >= a.mu.ino.Size })
		some = some || len(d.refused) > 0
	}
	if !some {
		return nil
	}
	return a.notFiniteErrorLocked()
}

func (a *Area) notFiniteErrorLocked() error {
	return &errs.Error{Op: "publish", Area: a.id, Kind: errs.NotFinite, Err: errs.E(errs.NotFinite, "",
		"the element at byte %d is infinite or not a number, and is not published (user.dsm.on_nonfinite=refuse): store a finite one", a.notFiniteLocked().first)}
}

// NotFiniteStats are the figures of an area about elements that are no finite numbers.
func (a *Area) NotFiniteStats() []Stat {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.notFiniteLocked()
	return []Stat{
		{"nonfinite_published", fmt.Sprint(f.published)},
		{"nonfinite_refused", fmt.Sprint(f.refused)},
		{"nonfinite_sums", fmt.Sprint(f.overflowed)},
	}
}
