package dsm

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"unique"
)

// Detours say around which slots extents of a file go. A slot whose home has died, and of which nobody has a copy, stays with that home as long as files have
// bytes in it, because the home may come back with them. Meanwhile nothing can be stored there. So extents that a file gets then are in other slots of its class. They stay there as
// long as the file has them, whatever becomes of the members: the slot of an extent depends on nothing but the spec of the file.
//
// They are a list of entries, each with the first extent that it is about and a bit for each slot to go around. Of an extent the last
// entry counts that is about it. Extents that live together are all about the first one. The list is a string of which there is one copy: so specs can be compared,
// and files of the same detours share them.
type Detours struct{ list unique.Handle[string] }

// maxDetours bounds the entries: a file that grows further while yet another member is gone may get extents at that one.
const maxDetours = 16

// detourStep spreads the slots to go around over the others: it is a prime, so no other one gets two while one gets none.
const detourStep = 2654435761

const (
	detourWords = Slots / 64
	detourBytes = 4 + 8*detourWords
)

// slotWords has a bit for each slot that areas share.
type slotWords [detourWords]uint64

func (w *slotWords) has(s Slot) bool { return w[s/64]>>(s%64)&1 != 0 }
func (w *slotWords) add(s Slot)      { w[s/64] |= 1 << (s % 64) }

// leaves reports whether there are slots of each class that are not in the set.
func (w *slotWords) leaves() bool {
	return !slices.ContainsFunc(Classes[:], func(c Class) bool { return w.in(c) == c.Slots })
}

// in counts the slots of the class in the set.
func (w *slotWords) in(c Class) int { return w.below(c.First+Slot(c.Slots)) - w.below(c.First) }

// below counts the slots in the set that are before another.
func (w *slotWords) below(s Slot) (n int) {
	for _, word := range w[:s/64] {
		n += bits.OnesCount64(word)
	}
	if s%64 > 0 {
		n += bits.OnesCount64(w[s/64] << (64 - s%64))
	}
	return n
}

// detoursOf returns those of a list.
func detoursOf(list string) Detours {
	if list == "" {
		return Detours{}
	}
	return Detours{unique.Make(list)}
}

// text returns the list.
func (d Detours) text() string {
	if d.None() {
		return ""
	}
	return d.list.Value()
}

// None reports whether there are none.
func (d Detours) None() bool { return d == Detours{} }

// MarshalBinary implements encoding.BinaryMarshaler.
func (d Detours) MarshalBinary() ([]byte, error) { return []byte(d.text()), nil }

// UnmarshalBinary implements encoding.BinaryUnmarshaler. Whether they are valid is for Valid to say.
func (d *Detours) UnmarshalBinary(b []byte) error {
	*d = detoursOf(string(b))
	return nil
}

// entries returns how many there are.
func (d Detours) entries() int { return len(d.text()) / detourBytes }

// entry returns the first extent and the slots of an entry.
func (d Detours) entry(i int) (first ExtentIndex, w slotWords) {
	b := []byte(d.text()[i*detourBytes : (i+1)*detourBytes])
	for i := range w {
		w[i] = binary.BigEndian.Uint64(b[4+8*i:])
	}
	return ExtentIndex(binary.BigEndian.Uint32(b)), w
}

// last returns the first extent of the last entry; 0 if there is none.
func (d Detours) last() (first ExtentIndex) {
	if n := d.entries(); n > 0 {
		first, _ = d.entry(n - 1)
	}
	return first
}

// with returns d with one entry more.
func (d Detours) with(first ExtentIndex, w slotWords) Detours {
	b := binary.BigEndian.AppendUint32([]byte(d.text()), uint32(first))
	for _, word := range w {
		b = binary.BigEndian.AppendUint64(b, word)
	}
	return detoursOf(string(b))
}

// before returns the entries that are about some of the first n extents.
func (d Detours) before(n ExtentIndex) Detours {
	for i := range d.entries() {
		if first, _ := d.entry(i); first >= n {
			return detoursOf(d.text()[:i*detourBytes])
		}
	}
	return d
}

// around returns the slot of extent e: hashed, which it hashes to, or the one in its place if the extent goes around that.
func (d Detours) around(c Class, e ExtentIndex, hashed Slot) Slot {
	for i := d.entries() - 1; i >= 0; i-- {
		first, w := d.entry(i)
		if first > e {
			continue
		}
		if !w.has(hashed) {
			break
		}
		before := w.below(hashed) - w.below(c.First)
		nth := uint64(before) * detourStep % uint64(c.Slots-w.in(c))
		for s := range c.Slots {
			if !w.has(c.First + Slot(s)) {
				if nth == 0 {
					return c.First + Slot(s)
				}
				nth--
			}
		}
		break
	}
	return hashed
}

// Valid reports whether they can be the detours of a file.
func (d Detours) Valid() bool {
	if len(d.text())%detourBytes != 0 || d.entries() > maxDetours {
		return false
	}
	for i := range d.entries() {
		first, w := d.entry(i)
		if !w.leaves() {
			return false
		}
		if i > 0 {
			if before, _ := d.entry(i - 1); before >= first {
				return false
			}
		}
	}
	return true
}

// String says from which extents on how many slots are gone around.
func (d Detours) String() string {
	text := ""
	for i := range d.entries() {
		first, w := d.entry(i)
		text += fmt.Sprintf("[from %d: %d slots]", first, w.below(Slots))
	}
	return text
}

// Homeless reports whether nobody who lives has the state of the slot, or the slot is never going to arrive.
func (h *SlotHome) Homeless(v *View) bool { return v.IsGone(h.Primary) || v.IsGone(h.Source) }

// Detours returns the detours of a file of was bytes that grows to size.
func (v *View) Detours(a AreaID, s Spec, was, size int64) Detours {
	first, end := ExtentIndex(Extents(was)), ExtentIndex(Extents(size))
	s.Detours = s.Detours.before(first)
	if first == end || s.Detours.entries() == maxDetours || !slices.ContainsFunc(v.Members, func(m Member) bool { return m.Gone }) {
		return s.Detours
	}
	var avoid slotWords
	c := ClassOf(s.Copies())
	for i := range c.Slots {
		if slot := c.First + Slot(i); v.Slots[slot].Homeless(v) {
			avoid.add(slot)
		}
	}
	if !avoid.leaves() {
		return s.Detours
	}
	from, n := s.Recur()
	for e := first; e < min(end, max(first, from)+ExtentIndex(n)); e++ {
		if slot := v.SlotOf(a, s, e); (e == 0 || !s.Together(e)) && int(slot) < Slots && avoid.has(slot) {
			return s.Detours.with(first, avoid)
		}
	}
	return s.Detours
}
