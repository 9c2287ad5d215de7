package hold

import "sync/atomic"

const areaSize = 64

// Area is the record of an area: where its copies are.
type Area struct {
	// ID is the area's, 0 if the record is not used. It is set last and cleared first.
	ID *atomic.Uint64
	// Base and Working are where the copies are, as package pages writes it; 0: nowhere.
	Base, Working *atomic.Uint64
	// Newest is 1 if the working copy has all bytes of the area; else the base has.
	Newest *atomic.Uint64
	// Rev is the change of the catalog that the copies follow.
	Rev *atomic.Uint64
}

// Area returns record i.
func (m *Memory) Area(i int) Area {
	at := func(k int) *atomic.Uint64 { return word(m.areas, i*areaSize/8+k) }
	return Area{ID: at(0), Base: at(1), Working: at(2), Newest: at(3), Rev: at(4)}
}

// MaxAreas is how many records there are.
const MaxAreas = maxAreas
