package coherence

import (
	"bytes"
	"fmt"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/pages"
	"github.com/dsmfs/dsmfs/pages/merge"
)

// A node that is held keeps what it publishes until the base copy has it. The next daemon sends it again under the same number, so the home knows whether it
// has merged it. A part of a round is kept until it is merged, or taken back.

// Words of the head of what is kept.
const (
	sentGen = iota
	sentLimit
	sentMerge // the rules
	sentType
	sentOffset
	sentComplex
	sentRecount
	sentAll    // four words each
	sentZeroed = sentAll + 4
	sentSnaps  = sentZeroed + 4
	sentIndex  = sentSnaps + 4
	sentData   = sentIndex + 1
	sentGroup  = sentData + 1 // of the round; 0: it is no part
	sentLife   = sentGroup + 1
	sentRound  = sentLife + 1
	sentGiven  = sentRound + 1
	sentGone   = sentGiven + 1 // the contribution of which it is a part is taken back
	sentWords  = sentGone + 1
)

// keepPublicationLocked keeps a publication, before it is sent.
func (a *Area) keepPublicationLocked(e dsm.ExtentIndex, pub *publication) {
	if a.node.cfg.Store == nil {
		return
	}
	body, snaps := [][]byte{pub.delta.Index, pub.delta.Data}, dsm.PageSet{}
	for i := range pub.sent.All() {
		if s := pub.snap[i]; s != nil {
			snaps.Add(i)
			body = append(body, s)
		}
	}
	head := make([]uint64, sentWords)
	l := a.mu.ino.Layout
	head[sentGen], head[sentLimit] = uint64(pub.stamp.Gen), uint64(pub.limit)
	head[sentMerge], head[sentType], head[sentOffset] = uint64(a.mu.ino.Spec.Merge), uint64(l.DType), uint64(l.DataOffset)
	head[sentComplex], head[sentRecount] = bit(l.Complex), bit(pub.recount)
	copy(head[sentAll:], pub.sent[:])
	copy(head[sentZeroed:], pub.zeroed[:])
	copy(head[sentSnaps:], snaps[:])
	head[sentIndex], head[sentData] = uint64(len(pub.delta.Index)), uint64(len(pub.delta.Data))
	head[sentGroup], head[sentLife], head[sentRound], head[sentGiven] = uint64(pub.round.Group), pub.round.Generation, pub.round.Number, bit(pub.given)
	pub.kept = a.mu.mem.KeepSent(e, uint64(pub.seq), pub.pages, snaps, head, append(body, []byte(l.Parts))...)
}

// keepUnansweredLocked keeps the publications that the step has made, before they leave the node. If this node is the home it has mostly answered by then, and nothing needs to be kept.
// If the daemon is killed before, the next one finds what was not merged by comparing with the base copy. That may find what was merged as well, so publications by rules that add are kept when they are made.
func (a *Area) keepUnansweredLocked() {
	r := &a.mu.replica
	l := r.leaving
	if l == nil {
		return
	}
	for _, e := range l.unkept {
		if int(e) >= r.n {
			continue
		}
		if pub := a.extentLocked(e).publish(); pub != nil && pub.kept == nil {
			a.keepPublicationLocked(e, pub)
		}
	}
	l.unkept = l.unkept[:0]
}

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// publicationLocked returns the publication that was kept. The area has been as short as least since.
func (a *Area) publicationLocked(s *pages.Sent, least int64) (*publication, error) {
	set := func(at int) (set dsm.PageSet) {
		for i := range set {
			set[i] = s.Head(at + i)
		}
		return set
	}
	broken := func(err error) error { return &errs.Error{Op: "resume", Area: a.id, Kind: errs.Corrupt, Err: err} }
	body, index, data := s.Body(), s.Head(sentIndex), s.Head(sentData)
	snaps := set(sentSnaps)
	parts := index + data + uint64(snaps.Len())*dsm.PageSize
	if uint64(len(body)) < parts {
		return nil, broken(fmt.Errorf("a publish of %d bytes", len(body)))
	}
	kernel, err := merge.KernelFor(dsm.MergeRule(s.Head(sentMerge)), dsm.Layout{
		DType: dsm.DType(s.Head(sentType)), DataOffset: int64(s.Head(sentOffset)), Complex: s.Head(sentComplex) != 0, Parts: dsm.Parts(body[parts:]),
	})
	if err != nil {
		return nil, broken(err)
	}
	pub := &publication{
		seq: dsm.Seq(s.Number()), stamp: a.stampLocked(), pages: s.Pages(), sent: set(sentAll), zeroed: set(sentZeroed), kernel: kernel,
		recount: s.Head(sentRecount) != 0, limit: int(s.Head(sentLimit)), kept: s, given: s.Head(sentGiven) != 0,
		round: dsm.RoundID{Group: dsm.AreaID(s.Head(sentGroup)), Generation: s.Head(sentLife), Number: s.Head(sentRound)},
	}
	pub.stamp.Gen = dsm.Generation(s.Head(sentGen))
	pub.data = wire.Share(int(data))
	copy(pub.data.Bytes, body[index:])
	pub.delta = merge.Delta{Extent: s.Extent(), Pages: pub.sent, Index: bytes.Clone(body[:index]), Data: pub.data.Bytes}
	if err := pub.delta.Validate(pub.kernel); err != nil {
		return nil, broken(err)
	}
	rest, counts := body[index+data:], s.Besides()
	for i := range snaps.All() {
		if counts.Has(i) {
			if pub.snap == nil {
				pub.snap = make(map[int][]byte)
			}
			pub.snap[i] = bytes.Clone(rest[:dsm.PageSize])
		}
		rest = rest[dsm.PageSize:]
	}
	pub.shrink(s.Extent(), least)
	return pub, nil
}

// mergesLocked says that page i of an extent is about to change in the base copy, and if both is true in the working copy too. The function that it returns says that it has.
func (a *Area) mergesLocked(e dsm.ExtentIndex, x *replicaExtent, i int, both bool) (done func()) {
	if a.node.cfg.Store == nil {
		return func() {}
	}
	a.mu.mem.BeginMerge(page(e, i), both, x.keptOf(i, false))
	return func() { a.mergedLocked(x, i) }
}

// mergedLocked says that page i has changed, as was noted.
func (a *Area) mergedLocked(x *replicaExtent, i int) {
	x.keepsNow(i)
	a.mu.mem.EndMerge()
}

// keepsNow says to the next daemon what is so of page i of what was sent.
func (x *replicaExtent) keepsNow(i int) {
	for pub := range x.publications() {
		if !pub.pages.Has(i) {
			pub.kept.Merged(i)
		}
		if pub.snap[i] == nil {
			pub.kept.Without(i)
		}
	}
}

// replaceLocked makes n the bytes of page i in both copies, which are the same.
func (a *Area) replaceLocked(e dsm.ExtentIndex, x *replicaExtent, i int, n []byte) {
	a.mu.mem.Replace(page(e, i), n, x.keptOf(i, false), x.keptOf(i, true))
	a.mergedLocked(x, i)
}

// keptOf returns what the next daemon has of the publications of page i. after: as it is when the change is done that was begun.
func (x *replicaExtent) keptOf(i int, after bool) (list []pages.SentOf) {
	for pub := range x.publications() {
		is := pub.kept.Of(i)
		if !is.Lacks && !is.Besides {
			continue
		}
		if after {
			is.Lacks, is.Besides = pub.pages.Has(i), pub.snap[i] != nil
		}
		list = append(list, is)
	}
	return list
}

// ridesLocked reports whether the base copy may follow the home while that merges. If the daemon is killed meanwhile, some of the elements are merged already: with the rule
// last that does no harm.
func (a *Area) ridesLocked() bool {
	return a.node.cfg.Store == nil || a.mu.ino.Spec.Merge == dsm.MergeLast
}
