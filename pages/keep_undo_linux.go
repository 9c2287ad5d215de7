package pages

import (
	"encoding/binary"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// A home that adds what was published to its bytes cannot do that twice: if its daemon is killed meanwhile, the next one does not know to which elements it was added. So the bytes of each page are set aside before, and the next
// daemon puts them back, as if nothing had come (an undo log, as in Gray and Reuter, "Transaction Processing", 1993, chapter 10). Who has published sends it again. Which publishes the bytes contain is said of several
// nodes, at the end of a round: the note of the extent has all of them before the ledger has the first, and from then on the next daemon goes on to say it.

// AddedBy is the newest publish of a node that the home's bytes of an extent contain, and the newest part of a round.
type AddedBy struct {
	Writer    dsm.NodeID
	Seq, Part dsm.Seq
}

// undo is what is set aside of the extent to which the home is just adding something.
type undo struct {
	note  frame
	more  []frame // what has no place in it
	pages []frame
}

// BeginAdding says that the home is about to add something to its bytes of an extent.
func (a *Area) BeginAdding(e dsm.ExtentIndex) {
	if a.kept == nil {
		return
	}
	a.undo.note = a.frames.take()
	a.frames.tag(a.undo.note, frameAdding, uint64(e), 0)
}

// BeforeAdding sets the home's bytes of a page aside, between BeginAdding and EndAdding.
func (a *Area) BeforeAdding(p dsm.PageIndex) {
	if a.kept == nil {
		return
	}
	f := a.frames.take()
	copy(f.mem, a.Home(p))
	a.frames.tag(f, frameUnadded, uint64(p), 0)
	a.undo.pages = append(a.undo.pages, f)
}

// Added says that all was added, and which publishes of these nodes the bytes contain now. The caller says that of each by Merged.Set, and then EndAdding.
func (a *Area) Added(by []AddedBy) {
	if a.kept == nil {
		return
	}
	const most = (dsm.PageSize - 8) / 24
	for len(by) > most {
		f := a.frames.take()
		putAdded(f.mem, by[:most])
		a.frames.tag(f, frameAddedMore, 0, 0)
		a.undo.more = append(a.undo.more, f)
		by = by[most:]
	}
	putAdded(a.undo.note.mem, by)
	a.frames.retag(a.undo.note, frameAdded)
}

func putAdded(to []byte, by []AddedBy) {
	binary.LittleEndian.PutUint64(to, uint64(len(by)))
	for i, x := range by {
		for j, word := range [3]uint64{uint64(x.Writer), uint64(x.Seq), uint64(x.Part)} {
			binary.LittleEndian.PutUint64(to[8+24*i+8*j:], word)
		}
	}
}

// EndAdding ends what BeginAdding has begun.
func (a *Area) EndAdding() {
	if a.kept == nil {
		return
	}
	a.frames.put(a.undo.note)
	for _, f := range a.undo.more {
		a.frames.put(f)
	}
	for _, f := range a.undo.pages {
		a.frames.put(f)
	}
	a.undo = undo{more: a.undo.more[:0], pages: a.undo.pages[:0]}
}

// undoAdding puts the home's bytes back to which an earlier daemon was just adding something, or says what they contain, if the node stays the home, or is alone. size is that of the base copy.
func (l Left) undoAdding(left map[frameKind][]tagged, base *areaCopy, size int64) {
	for _, note := range left[frameAdded] {
		e := dsm.ExtentIndex(note.arg)
		if l.Homed == nil || !l.Homed(e) {
			continue
		}
		for _, x := range append(left[frameAddedMore], note) {
			for i := range binary.LittleEndian.Uint64(x.mem) {
				var words [3]uint64
				for j := range words {
					words[j] = binary.LittleEndian.Uint64(x.mem[8+24*int(i)+8*j:])
				}
				l.k.store.KeepMerged(l.ID, e, dsm.NodeID(words[0])).Set(dsm.Seq(words[1]), dsm.Seq(words[2]))
			}
		}
	}
	for _, note := range left[frameAdding] {
		if l.Homed != nil && !l.Homed(dsm.ExtentIndex(note.arg)) {
			continue
		}
		for _, x := range left[frameUnadded] {
			if int64(x.arg)*dsm.PageSize < size {
				copy(base.page(dsm.PageIndex(x.arg)), x.mem)
			}
		}
	}
}
