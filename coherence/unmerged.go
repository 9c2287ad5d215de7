package coherence

import (
	"iter"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/pages/merge"
)

// What a node has sent of an extent, and its home has not merged: the parts that the home keeps for a round, and behind them at most one
// publication that the home has not answered.

// publications yields them, oldest first. No publication may begin or end meanwhile.
func (x *replicaExtent) publications() iter.Seq[*publication] {
	return func(yield func(*publication) bool) {
		for _, pub := range x.parts {
			if !yield(pub) {
				return
			}
		}
		if x.pub != nil {
			yield(x.pub)
		}
	}
}

// hasPart reports whether one of them is a part of a round.
func (x *replicaExtent) hasPart() bool {
	for pub := range x.publications() {
		if pub.round != (dsm.RoundID{}) {
			return true
		}
	}
	return false
}

// keepPartLocked adds a part to those that wait for the end of their round, and dropPartLocked takes one out.
func (a *Area) keepPartLocked(x *replicaExtent, pub *publication) {
	x.parts = append(x.parts, pub)
	a.mu.replica.partBytes += int64(cap(pub.data.Bytes))
}

func (a *Area) dropPartLocked(x *replicaExtent, pub *publication) {
	x.parts = slices.DeleteFunc(x.parts, func(o *publication) bool { return o == pub })
	a.mu.replica.partBytes -= int64(cap(pub.data.Bytes))
}

// publish returns the publication that is no part and that the home has not answered, or nil.
func (x *replicaExtent) publish() *publication {
	if x.pub == nil || x.pub.round != (dsm.RoundID{}) {
		return nil
	}
	return x.pub
}

// publishing reports whether there are any.
func (x *replicaExtent) publishing() bool { return x.pub != nil || len(x.parts) > 0 }

// publication returns the one with a number, or nil.
func (x *replicaExtent) publication(seq dsm.Seq) *publication {
	for pub := range x.publications() {
		if pub.seq == seq {
			return pub
		}
	}
	return nil
}

// endPublicationLocked says that the home has answered the publication of an extent.
func (a *Area) endPublicationLocked(x *replicaExtent) {
	a.mu.replica.underWay -= x.pub.weight()
	a.node.links.give(x.pub.home, a, x.pub.credit)
	x.pub = nil
}

// unmerged reports whether changes of page i are under way.
func (x *replicaExtent) unmerged(i int) bool {
	if x.pub != nil && x.pub.pages.Has(i) {
		return true
	}
	for _, pub := range x.parts {
		if pub.pages.Has(i) {
			return true
		}
	}
	return false
}

// amongOthers reports whether others than pub matter to what it has of page i.
func (x *replicaExtent) amongOthers(pub *publication, i int) bool {
	for other := range x.publications() {
		if other != pub && (other.pages.Has(i) || other.snap[i] != nil) {
			return true
		}
	}
	return false
}

// accounted sets dst to the base copy of page i with all that is under way of it: see publication.accounted.
func (x *replicaExtent) accounted(dst []byte, i int, base []byte) {
	copy(dst, base)
	for pub := range x.publications() {
		if pub.pages.Has(i) {
			pub.accounted(dst, i, dst)
		}
	}
}

// takeBackVoidLocked takes back the parts that were made by earlier rules, and that a push does not contain: its home refuses them. What is published
// behind them, by the rules of now, may be in the push, and is not to be taken for what came before them. What was accumulated stays: it is in no copy
// of this node yet, and would be lost.
func (a *Area) takeBackVoidLocked(m *wire.Push, x *replicaExtent) {
	if a.versionedLocked() {
		return
	}
	for _, part := range slices.Clone(x.parts) {
		if !part.given && part.stamp.Gen < a.mu.ino.Gen && part.seq > m.Parts {
			a.takeBackLocked(m.Extent, x, part)
			a.countAgainLocked(part)
		}
	}
}

// overtakeLocked follows a publish that the home has merged. What it has stored to the elements of parts that wait is newer than these: where the last
// store wins, they take its values. So neither the end of the round undoes it, nor a part that is taken back. The home has done the same: see
// overtakePartsLocked.
func (a *Area) overtakeLocked(x *replicaExtent, pub *publication) {
	for _, part := range x.parts {
		a.mu.replica.partBytes -= int64(cap(part.data.Bytes))
		if overtake(part.kernel, &part.delta, &part.data, pub.kernel, &pub.delta) {
			part.kept.SetBody(len(part.delta.Index), part.delta.Data) // if the daemon is killed meanwhile, the next one does it again: pub is kept still
		}
		a.mu.replica.partBytes += int64(cap(part.data.Bytes))
	}
}

// overtake is merge.Kernel.Overtake for a delta whose data is in a shared buffer. It puts another one in its place: the data may be on its way.
func overtake(k merge.Kernel, d *merge.Delta, data **wire.Shared, l merge.Kernel, later *merge.Delta) bool {
	if !k.Overtake(d, l, later) {
		return false
	}
	s := wire.Share(len(d.Data))
	copy(s.Bytes, d.Data)
	(*data).Release()
	*data, d.Data = s, s.Bytes
	return true
}

// contained says which publications of the receiver the bytes of a push contain.
type contained struct {
	publishes, parts dsm.Seq
}

// of returns the newest one of the kind of pub.
func (c contained) of(pub *publication) dsm.Seq {
	if pub.round != (dsm.RoundID{}) {
		return c.parts
	}
	return c.publishes
}

// mergedAmongLocked takes page i of a publication into the base copy, while others of the extent are under way.
func (a *Area) mergedAmongLocked(e dsm.ExtentIndex, x *replicaExtent, pub *publication, i int) {
	var mine, base, now [dsm.PageSize]byte
	mem, p := a.mu.mem, page(e, i)
	x.accounted(mine[:], i, mem.Base(p))
	copy(base[:], mem.Base(p))
	pub.overlay(base[:], i)
	pub.pages.Remove(i)
	for other := range x.publications() {
		delete(other.snap, i) // it accounts for the old base, and may be from before pub
	}
	x.accounted(now[:], i, base[:])
	defer a.mergesLocked(e, x, i, mine != now)()
	if mine != now {
		a.mu.cached.BeforeMerge(p)
		a.mergeLocked(pub.kernel, x, i, mine[:], now[:], base[:])
		a.mu.replica.changes++
		a.changedLocked(e, dsm.Range(i, i+1), nil)
	}
	mem.SetBase(p, base[:])
}
