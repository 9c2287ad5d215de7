package hold

import "sync/atomic"

const areaSize = 128

// Area is the record of an area: where its copies are.
type Area struct {
	// ID is the area's, 0 if the record is not used. It is set last and cleared first.
	ID *atomic.Uint64
	// Base and Working are where the copies are, as package pages writes it; 0: nowhere. Working may name what the holder has: see Files.
	Base, Working *atomic.Uint64
	// Newest is 1 if the working copy has all bytes of the area; else the base has.
	Newest *atomic.Uint64
	// Rev is the change of the catalog that the copies follow.
	Rev *atomic.Uint64
	// Uncertain is not 0 while it is not certain what the kernel has of some pages: all bytes before Uncertain-1 are certain.
	Uncertain *atomic.Uint64
	// Size is the largest size that the area has had since it was certain. Past it the kernel has nothing.
	Size *atomic.Uint64
	// Parts is 1 while the node has parts of a round that are not over.
	Parts *atomic.Uint64
	// Whole is the last version whose bytes the base had as a whole, if the area is versioned; 0: none.
	Whole *atomic.Uint64
	// Changing is 1 while the base has bytes of several versions.
	Changing *atomic.Uint64
	// Writer is who has published it; 0: not known.
	Writer *atomic.Uint64
	// Older is 1 while somebody reads an older one.
	Older *atomic.Uint64
	// WholeSize is how many bytes that version has.
	WholeSize *atomic.Uint64
	// Owner is 1 while the node owns the area.
	Owner *atomic.Uint64
	// Lost is 1 while programs have the area open for writing that have to hear that what they had stored is a conflict, 2 while it may become one.
	Lost *atomic.Uint64
}

// Area returns record i.
func (m *Memory) Area(i int) Area {
	at := func(k int) *atomic.Uint64 { return word(m.areas, i*areaSize/8+k) }
	return Area{ID: at(0), Base: at(1), Working: at(2), Newest: at(3), Rev: at(4), Uncertain: at(5), Parts: at(6), Size: at(7), Whole: at(8), Writer: at(9), Older: at(10), Owner: at(11), WholeSize: at(12), Lost: at(13), Changing: at(14)}
}

// OfDraft is a bit of the ID of a record that is one of a draft: the memory of one program, and its base. The rest is the area's ID.
const OfDraft = 1 << 63

// Program returns the process that a draft is for. It takes the place of a word that drafts have no use for.
func (a Area) Program() *atomic.Uint64 { return a.Size }

// MaxAreas is how many records there are.
const MaxAreas = maxAreas

// InRound returns an area of which the daemon has parts of a round that is not over; 0: there is none. If it is killed now, its programs lose their groups in the midst of that.
func (m *Memory) InRound() uint64 {
	if m.Word(Others).Load() == 0 {
		return 0
	}
	for i := range int(m.Word(AreasUsed).Load()) {
		if a := m.Area(i); a.Parts.Load() != 0 {
			if id := a.ID.Load(); id != 0 && id&OfDraft == 0 {
				return id
			}
		}
	}
	return 0
}
