package pages

import (
	"cmp"
	"encoding/binary"
	"slices"
	"sync/atomic"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/hold"
)

// Sent is what a node has sent of an extent, and what is not merged at its home yet. It is there for the next daemon until Drop. The methods of nil do nothing.
type Sent struct {
	area   *Area
	frames []frame // the first has the head
	body   []byte  // only of one that was left
}

const (
	sentHead = 512 // bytes of the first frame
	sentSize = sentHead - 8
	// What is at the begin of a head.
	sentNumber = 0
	sentSets   = 8 // sets of pages
	sentWords  = sentSets + 2*32

	// What a note of sets has of each thing that was sent: its number, and which sets have the page.
	notePages, noteBesides = 1 << 63, 1 << 62
	noteNumber             = noteBesides - 1
)

// SentOf is what is so of a page of something that was sent.
type SentOf struct {
	Sent *Sent
	// Lacks says that the base copy does not have it of the page yet, Besides that bytes of the page count which it has.
	Lacks, Besides bool
}

func (s SentOf) in() (bits uint64) {
	if s.Lacks {
		bits |= notePages
	}
	if s.Besides {
		bits |= noteBesides
	}
	return bits
}

// KeepSent keeps what is sent of an extent under a number: pages of which the base copy does not have it, pages whose bytes it has besides, a
// head, and a body. It returns nil if nothing outlives the daemon.
func (a *Area) KeepSent(e dsm.ExtentIndex, number uint64, pages, besides dsm.PageSet, head []uint64, body ...[]byte) *Sent {
	if !a.Outlives() {
		return nil
	}
	a.sent++
	s := &Sent{area: a, frames: []frame{a.frames.take()}}
	first := s.frames[0].mem
	binary.LittleEndian.PutUint64(first[sentNumber:], number)
	for k, set := range []dsm.PageSet{pages, besides} {
		for i, w := range set {
			s.word(sentSets + 32*k + 8*i).Store(w)
		}
	}
	for i, w := range head {
		s.SetHead(i, w)
	}
	size, to := 0, first[sentHead:]
	for _, b := range body {
		size += len(b)
		for len(b) > 0 {
			if len(to) == 0 {
				x := a.frames.take()
				s.frames, to = append(s.frames, x), x.mem
			}
			n := copy(to, b)
			to, b = to[n:], b[n:]
		}
	}
	binary.LittleEndian.PutUint64(first[sentSize:], uint64(size))
	for i := len(s.frames) - 1; i >= 0; i-- {
		a.frames.tag(s.frames[i], frameSent, uint64(e)<<16|uint64(i), number)
	}
	return s
}

// word returns a number of the head.
func (s *Sent) word(off int) *atomic.Uint64 { return hold.WordOf(s.frames[0].mem[off:]) }

// SetHead sets word i of the head.
func (s *Sent) SetHead(i int, w uint64) {
	if s != nil {
		s.word(sentWords + 8*i).Store(w)
	}
}

// Head returns word i of the head.
func (s *Sent) Head(i int) uint64 { return s.word(sentWords + 8*i).Load() }

// Number returns the number under which it was sent.
func (s *Sent) Number() uint64 { return s.word(sentNumber).Load() }

func (s *Sent) set(k int) (set dsm.PageSet) {
	for i := range set {
		set[i] = s.word(sentSets + 32*k + 8*i).Load()
	}
	return set
}

func (s *Sent) wordOf(k, i int) *atomic.Uint64 { return s.word(sentSets + 32*k + 8*(i/64)) }

func (s *Sent) has(k, i int) bool { return s.wordOf(k, i).Load()>>(i%64)&1 != 0 }

func (s *Sent) put(k, i int, in bool) {
	if s == nil {
		return
	}
	w := s.wordOf(k, i)
	if bit := uint64(1) << (i % 64); in {
		w.Or(bit)
	} else {
		w.And(^bit)
	}
}

// Pages returns the pages of which the base copy does not have it yet.
func (s *Sent) Pages() dsm.PageSet { return s.set(0) }

// Of returns what is so of page i.
func (s *Sent) Of(i int) SentOf {
	if s == nil {
		return SentOf{}
	}
	return SentOf{s, s.has(0, i), s.has(1, i)}
}

// Besides returns the pages whose bytes count.
func (s *Sent) Besides() dsm.PageSet { return s.set(1) }

// Merged says that the base copy has it of page i.
func (s *Sent) Merged(i int) { s.put(0, i, false) }

// Without says that the bytes of page i do not count any more.
func (s *Sent) Without(i int) { s.put(1, i, false) }

// SetBody replaces bytes of the body from one place on. Whoever is killed meanwhile leaves some of the old ones.
func (s *Sent) SetBody(at int, b []byte) {
	if s == nil {
		return
	}
	for at += sentHead; len(b) > 0; {
		n := copy(s.frames[at/dsm.PageSize].mem[at%dsm.PageSize:], b)
		at, b = at+n, b[n:]
	}
}

// Body returns the body of one that was left.
func (s *Sent) Body() []byte { return s.body }

// Extent returns the extent.
func (s *Sent) Extent() dsm.ExtentIndex {
	x := s.frames[0]
	return dsm.ExtentIndex(s.area.kept.store.tag(x.slab, x.i).Arg.Load() >> 16)
}

// Drop forgets it.
func (s *Sent) Drop() {
	if s == nil || s.frames == nil {
		return
	}
	for _, x := range s.frames { // what is left without its first frame does not count
		s.area.frames.put(x)
	}
	s.frames = nil
	if s.area.sent--; s.area.sent == 0 {
		s.area.dropNote()
	}
}

// leftSent puts the pieces together.
func (a *Area) leftSent(pieces []tagged) (all []*Sent) {
	slices.SortFunc(pieces, func(x, y tagged) int { return cmp.Or(cmp.Compare(x.more, y.more), cmp.Compare(x.arg, y.arg)) })
	for len(pieces) > 0 {
		n := 1
		for n < len(pieces) && pieces[n].more == pieces[0].more {
			n++
		}
		a.sent++
		s := &Sent{area: a}
		for _, x := range pieces[:n] {
			s.frames = append(s.frames, x.frame)
		}
		if pieces[0].arg&0xffff != 0 { // its first piece was not there yet, or not any more
			s.Drop()
		} else {
			s.body = append(s.body, pieces[0].mem[sentHead:]...)
			for _, x := range pieces[1:n] {
				s.body = append(s.body, x.mem...)
			}
			s.body = s.body[:s.word(sentSize).Load()]
			all = append(all, s)
		}
		pieces = pieces[n:]
	}
	return all
}
