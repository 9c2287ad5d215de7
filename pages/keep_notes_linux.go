package pages

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/pages/merge"
)

// A note says to the next daemon what is being done to a page that is in more than one place. It is a few frames, of which the area has one set: one page is changed at a time, under the
// lock of the area.

// BeginMerge is called before the base copy of page p is changed in a way that cannot be done twice, and the working copy with it if both is true. If the daemon is killed before EndMerge, the next one has what changes of the
// page as it is now, and what was sent of it as it is said to be. While programs may be storing to the working copy that is not put back: see MergeShared.
func (a *Area) BeginMerge(p dsm.PageIndex, both bool, sent []SentOf) {
	if !a.Outlives() {
		return
	}
	a.takeNote(2)
	a.noteSets(2, frameSets, p, sent)
	copy(a.note[1].mem, a.Base(p))
	if !both || a.ledger != nil && a.ledger.shared {
		a.frames.tag(a.note[1], frameBefore, uint64(p), 0)
		return
	}
	copy(a.note[0].mem, a.working.look(p, 1))
	a.frames.tag(a.note[1], frameBase, uint64(p), 0)
	a.frames.tag(a.note[0], frameWorking, uint64(p), 0)
}

// Replace makes n the bytes of page p, in which both copies are the same, and which no program can be storing to. before and after say what is so of what was sent before and after it. EndMerge follows. At any
// moment one of the copies is whole, so nothing is set aside: if the daemon is killed, the next one copies it to the other.
func (a *Area) Replace(p dsm.PageIndex, n []byte, before, after []SentOf) {
	if !a.Outlives() {
		copy(a.Working(p), n)
		a.SetBase(p, n)
		return
	}
	a.noteReplace(p, before, after)
	a.SetBase(p, n)
	a.frames.retag(a.note[1], frameToWorking)
	copy(a.Working(p), n)
}

// noteReplace notes that Replace is about to change the base copy.
func (a *Area) noteReplace(p dsm.PageIndex, before, after []SentOf) {
	a.takeNote(2)
	a.noteSets(2, frameSets, p, before)
	a.noteSets(6, frameSetsAfter, p, after)
	a.frames.tag(a.note[1], frameToBase, uint64(p), 0)
}

// FollowToHome is called before the home's bytes of page p are copied to the working copy. From then on they are the base. Until now both copies are the same, no program can be storing to the page, and nothing
// that was sent of it is unmerged. The extent is homed here. The caller ends it by EndMerge. Nothing is set aside: if the daemon is killed meanwhile, the next one copies the home's bytes.
func (a *Area) FollowToHome(p dsm.PageIndex) {
	if a.Outlives() {
		a.noteFollow(p)
	}
	a.FollowHome(p)
}

// noteFollow notes that the working copy of page p is about to follow its base. The twin may go afterwards: until then it is the base, and the same as the working copy.
func (a *Area) noteFollow(p dsm.PageIndex) {
	a.takeNote(2)
	a.frames.tag(a.note[1], frameToWorking, uint64(p), 0)
}

// ReplaceShared merges n into the working copy of page p, to which programs may be storing, from the base copy, by a rule. The base becomes n. after says what is so of what was sent then. EndMerge follows.
// If the daemon is killed, the next one goes on: what it is merged from is the base, until all is merged.
func (a *Area) ReplaceShared(k merge.Kernel, p dsm.PageIndex, n []byte, after []SentOf) {
	if !a.Outlives() {
		k.MergeShared(p, a.OwnBase(p), a.Working(p), n)
		a.SetBase(p, n)
		return
	}
	k.MergeNoted(a.noteIncoming(p, n, after), p, a.OwnBase(p), a.Working(p), n)
	a.frames.tag(a.note[7], frameIncomingMerged, uint64(p), 0)
	a.SetBase(p, n)
}

// noteIncoming notes what ReplaceShared is about to do, and returns where it says how far it is.
func (a *Area) noteIncoming(p dsm.PageIndex, n []byte, after []SentOf) (note []byte) {
	a.takeNote(8)
	a.noteSets(6, frameSetsAfter, p, after)
	note = a.note[4].mem[:merge.NoteSize]
	clear(note)
	copy(a.note[7].mem, n)
	a.frames.tag(a.note[4], frameIncomingNote, uint64(p), 0)
	a.frames.tag(a.note[7], frameIncoming, uint64(p), 0)
	return note
}

// replaceAgain ends what an earlier daemon had begun by Replace or ReplaceShared.
func (a *Area) replaceAgain(k merge.Kernel, left map[frameKind][]tagged, sent []*Sent, within func(tagged) bool) {
	for _, x := range left[frameIncoming] {
		for _, note := range left[frameIncomingNote] {
			if p := dsm.PageIndex(x.arg); within(x) {
				k.MergeRest(note.mem, p, a.leftBase(p), a.working.page(p), x.mem)
				a.frames.tag(x.frame, frameIncomingMerged, x.arg, 0)
			}
		}
	}
	for _, x := range slices.Concat(left[frameIncoming], left[frameIncomingMerged]) {
		if p := dsm.PageIndex(x.arg); within(x) {
			copy(a.leftBase(p), x.mem)
			putSets(p, left[frameSetsAfter], sent)
		}
	}
	for _, x := range left[frameToBase] {
		if p := dsm.PageIndex(x.arg); within(x) {
			copy(a.leftBase(p), a.working.page(p))
			putSets(p, left[frameSets], sent)
		}
	}
	for _, x := range left[frameToWorking] {
		if p := dsm.PageIndex(x.arg); within(x) {
			copy(a.working.page(p), a.base.page(p))
			a.dropTwin(p)
			putSets(p, left[frameSetsAfter], sent)
		}
	}
}

// noteSets notes which sets of what was sent have page p.
func (a *Area) noteSets(at int, kind frameKind, p dsm.PageIndex, sent []SentOf) {
	if len(sent) == 0 {
		return
	}
	a.takeNote(at + 1)
	to := a.note[at].mem
	if len(sent) >= len(to)/8 {
		panic(fmt.Sprintf("page %d of area %d is in %d things that were sent", p, a.id, len(sent)))
	}
	binary.LittleEndian.PutUint64(to, uint64(len(sent)))
	for i, s := range sent {
		binary.LittleEndian.PutUint64(to[8+8*i:], s.Sent.Number()|s.in())
	}
	a.frames.tag(a.note[at], kind, uint64(p), 0)
}

// MergeShared is merge.Kernel.MergeShared of the working copy of page p, from mine to coming, between BeginMerge and EndMerge. The base becomes after. A program that stores to the page meanwhile goes on when
// the daemon is killed, so the working copy cannot be put back. Instead the next daemon goes on with the merge where it was. sent says what is so of the page afterwards.
func (a *Area) MergeShared(k merge.Kernel, p dsm.PageIndex, sent []SentOf, mine, coming, after []byte) {
	if !a.Outlives() {
		k.MergeShared(p, mine, a.Working(p), coming)
		return
	}
	k.MergeNoted(a.noteShared(p, sent, mine, coming, after), p, mine, a.Working(p), coming)
}

// noteShared notes what MergeShared is about to do, and returns where it says how far it is.
func (a *Area) noteShared(p dsm.PageIndex, sent []SentOf, mine, coming, after []byte) (note []byte) {
	a.takeNote(8)
	a.noteSets(6, frameSetsAfter, p, sent)
	note = a.note[4].mem[:merge.NoteSize]
	clear(note)
	copy(a.note[3].mem, mine)
	copy(a.note[5].mem, after)
	copy(a.note[7].mem, coming)
	a.frames.tag(a.note[3], frameMine, uint64(p), 0)
	a.frames.tag(a.note[4], frameNote, uint64(p), 0)
	a.frames.tag(a.note[5], frameAfter, uint64(p), 0)
	a.frames.tag(a.note[7], frameComing, uint64(p), 0)
	return note
}

// noteStored notes what storeShared is about to do, and returns where it says how far it is.
func (a *Area) noteStored(p dsm.PageIndex, base, stored []byte) (note []byte) {
	a.takeNote(6)
	note = a.note[4].mem[:merge.NoteSize]
	clear(note)
	copy(a.note[3].mem, base)
	copy(a.note[5].mem, stored)
	for i, kind := range []frameKind{frameMine, frameNote, frameStored} {
		a.frames.tag(a.note[3+i], kind, uint64(p), 0)
	}
	return note
}

// EndMerge says that the change is done.
func (a *Area) EndMerge() {
	if !a.Outlives() {
		return
	}
	a.frames.untag(a.note[0])
	a.frames.untag(a.note[1])
	for i := len(a.note) - 1; i >= 2; i-- {
		a.frames.untag(a.note[i])
	}
}

// takeNote makes the note at least n frames long.
func (a *Area) takeNote(n int) {
	for len(a.note) < n {
		a.note = append(a.note, a.frames.take())
	}
}

// dropNote frees what BeginMerge needs. No change may be under way.
func (a *Area) dropNote() {
	for _, x := range a.note {
		a.frames.put(x)
	}
	a.note = nil
}

// putSets sets which sets of what was sent have page p, as notes say that an earlier daemon has left.
func putSets(p dsm.PageIndex, notes []tagged, sent []*Sent) {
	_, i := p.Extent()
	for _, x := range notes {
		if dsm.PageIndex(x.arg) != p {
			continue
		}
		for n := range int(binary.LittleEndian.Uint64(x.mem)) {
			w := binary.LittleEndian.Uint64(x.mem[8+8*n:])
			for _, s := range sent {
				if s.Number() == w&noteNumber {
					s.put(0, i, w&notePages != 0)
					s.put(1, i, w&noteBesides != 0)
				}
			}
		}
	}
}

// mergeAgain ends what an earlier daemon had begun to do with a page to which programs may be storing: a merge goes on, and any other change is undone.
func (a *Area) mergeAgain(k merge.Kernel, left map[frameKind][]tagged, sent []*Sent, within func(tagged) bool) {
	for _, x := range left[frameStored] {
		begun := slices.ContainsFunc(left[frameNext], func(n tagged) bool { return n.arg == x.arg })
		for _, mine := range left[frameMine] {
			for _, note := range left[frameNote] {
				if p := dsm.PageIndex(x.arg); begun && within(x) {
					k.StoreRest(note.mem, p, mine.mem, a.working.page(p), x.mem)
				}
			}
		}
	}
	if len(left[frameComing]) == 0 {
		for _, x := range left[frameBefore] {
			if p := dsm.PageIndex(x.arg); within(x) {
				copy(a.leftBase(p), x.mem)
				putSets(p, left[frameSets], sent)
			}
		}
		return
	}
	for _, x := range left[frameComing] {
		if !within(x) {
			continue
		}
		p := dsm.PageIndex(x.arg)
		for _, mine := range left[frameMine] {
			for _, note := range left[frameNote] {
				k.MergeRest(note.mem, p, mine.mem, a.working.page(p), x.mem)
			}
		}
		for _, after := range left[frameAfter] {
			copy(a.leftBase(p), after.mem)
		}
		putSets(p, left[frameSetsAfter], sent)
	}
}

// leftBase returns the base of a page that an earlier daemon has left. In an extent of which the node stays the home that is a twin, also if the home's bytes were the base: what was being done to the base is none of theirs.
func (a *Area) leftBase(p dsm.PageIndex) []byte {
	if t, ok := a.twins[p]; ok {
		return t.mem
	}
	e, _ := p.Extent()
	if a.stays == nil || !a.stays(e) {
		return a.base.page(p)
	}
	t := a.frames.take()
	copy(t.mem, a.base.page(p))
	a.frames.tag(t, frameTwin, uint64(p), 0)
	a.homed[e] = struct{}{}
	a.twins[p] = t
	return t.mem
}
