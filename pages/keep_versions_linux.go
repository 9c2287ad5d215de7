package pages

import (
	"sync/atomic"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// Of a versioned area the next daemon knows whether the base copy has a version as a whole, and which one.

// IsWhole says that the base copy has all bytes of a version, and no others, until IsChanging. It has size bytes. writer has published it; 0: it is not known.
func (a *Area) IsWhole(v dsm.Version, size int64, writer dsm.NodeID) {
	if a.kept != nil {
		a.kept.record.WholeSize.Store(uint64(size))
		a.kept.record.Writer.Store(uint64(writer))
		a.kept.record.Whole.Store(uint64(v))
		a.kept.record.Changing.Store(0)
	}
}

// IsChanging says that the base copy is about to have bytes of several versions.
func (a *Area) IsChanging() {
	if a.kept != nil {
		setBit(a.kept.record.Changing, true)
	}
}

// HasOlder says whether somebody reads a version that is not the newest.
func (a *Area) HasOlder(has bool) {
	if a != nil && a.kept != nil {
		setBit(a.kept.record.Older, has)
	}
}

// IsOwned says whether this node owns the area.
func (a *Area) IsOwned(is bool) {
	if a.kept != nil {
		setBit(a.kept.record.Owner, is)
	}
}

// IsLost says whether programs have the area open for writing that have to hear that what they had stored is a conflict, or will have if any of it is found (late).
func (a *Area) IsLost(is, late bool) {
	switch {
	case a.kept == nil:
	case is:
		setWord(a.kept.record.Lost, 1)
	case late:
		setWord(a.kept.record.Lost, 2)
	default:
		setWord(a.kept.record.Lost, 0)
	}
}

func setBit(w *atomic.Uint64, is bool) {
	if is {
		setWord(w, 1)
	} else {
		setWord(w, 0)
	}
}

func setWord(w *atomic.Uint64, v uint64) {
	if w.Load() != v {
		w.Store(v)
	}
}

// LeftVersions is what an earlier daemon has said of the versions of an area.
type LeftVersions struct {
	Whole  dsm.Version // that the base copy has, all of it and nothing else; 0: none
	Last   dsm.Version // the last one that it had so
	Halved bool        // it was changing when the daemon was killed
	Size   int64       // bytes of that
	Writer dsm.NodeID  // 0: not known
	Older  bool        // somebody was reading an older one
	Owner  bool        // the node owned the area
	Lost   bool        // see IsLost
	Late   bool
}

// Versions returns what the daemon before has said of versions.
func (l Left) Versions() LeftVersions {
	r := l.k.record
	v := LeftVersions{
		Last: dsm.Version(r.Whole.Load()), Halved: r.Changing.Load() != 0, Size: int64(r.WholeSize.Load()), Writer: dsm.NodeID(r.Writer.Load()),
		Older: r.Older.Load() != 0, Owner: r.Owner.Load() != 0, Lost: r.Lost.Load() == 1, Late: r.Lost.Load() == 2,
	}
	if !v.Halved {
		v.Whole = v.Last
	}
	return v
}
