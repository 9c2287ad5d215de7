package dsm

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"time"
)

// SlotHome is the row of a slot in the view.
type SlotHome struct {
	Primary NodeID
	// Source is the previous primary while it hands the slot over, else 0.
	Source NodeID
	// Epoch is the epoch of the view in which Primary became primary.
	Epoch Epoch
	// Had is since when the node that has the state of the slot, see Holder, has had all of it without a break: through all that has become of the row. 0: since the slot began, with nothing.
	Had Epoch
	// Backups keep copies of what the primary has; the zero Backup is none. While Source is not 0, those in sync have what the source has,
	// and the primary can be one of them.
	Backups [MostBackups]Backup
}

// MostBackups is how many backups a slot has at most: as many as areas want, and one that is being filled in place of another.
const MostBackups = MostReplicas

// Backup is a member that keeps a copy of a slot.
type Backup struct {
	Node NodeID
	// InSync says that it has all that anybody has seen of the slot, so it can take over. Otherwise it is being filled.
	InSync bool
	// Former says that it was in sync with a home that has died: it has all that anybody has seen, and so can take over, but perhaps not what the
	// next home has. That says nothing of the slot until the catalog has taken it out of sync.
	Former bool
	// Since is the epoch of the view in which it was put in the row, or last taken out of sync, or in which its home died.
	Since Epoch
}

// InSync yields the backups of a slot that can take over.
func (h *SlotHome) InSync() iter.Seq[NodeID] {
	return func(yield func(NodeID) bool) {
		for _, b := range h.Backups {
			if b.Node != 0 && b.InSync && !yield(b.Node) {
				return
			}
		}
	}
}

// Settled reports whether the slot may begin to move: it is not moving already, and all backups in sync have what the home has.
func (h *SlotHome) Settled() bool {
	return h.Source == 0 && !slices.ContainsFunc(h.Backups[:], func(b Backup) bool { return b.Former })
}

// Failed reports whether the slot never arrives where it is going: its new primary has died.
func (h *SlotHome) Failed(v *View) bool { return h.Source != 0 && v.IsGone(h.Primary) }

// BackupOf returns the place of a node in Backups, or -1.
func (h *SlotHome) BackupOf(n NodeID) int {
	return slices.IndexFunc(h.Backups[:], func(b Backup) bool { return b.Node == n && n != 0 })
}

// View is the agreed members and slot table. It is immutable once shared.
type View struct {
	Cluster ClusterID
	Epoch   Epoch
	Lease   time.Duration // how long a member may act as one after it last asked the leader
	Members []Member      // by ID
	Trust   *Trust        // nil: the cluster does not encrypt
	Former  []Former      // members that were gone, and may join again; nothing else is known of them any more; the latest last
	Apart   []Link        // between members of which one does not reach the other, for all that the leader knows; in order: see Link.Compare
	Slots   [Slots]SlotHome
	Own     []OwnSlot // of areas that have a slot of their own: row i is that of slot Slots+i
	placed  map[AreaID]Slot
}

// OwnSlot is the row of a slot that one area has to itself. The extents of the area that are to live together are in this slot, and not in those that they hash
// to.
type OwnSlot struct {
	Area AreaID // 0: the slot is free
	SlotHome
	Began    Epoch  // the epoch of the view in which the area got it
	Moves    uint32 // how often the area has moved
	Patience uint8  // how many windows running another node must publish alone before the area moves to it by itself; 0: LeastPatience
}

// The bounds of OwnSlot.Patience.
const (
	LeastPatience = 2
	MostPatience  = 64
)

// MaxOwnSlots bounds the areas that have slots of their own.
const MaxOwnSlots = 4096

// Member returns the member with the id.
func (v *View) Member(id NodeID) (Member, bool) {
	for _, m := range v.Members {
		if m.ID == id {
			return m, true
		}
	}
	return Member{}, false
}

// IsGone reports whether a member has died, for all that the catalog knows.
func (v *View) IsGone(id NodeID) bool {
	m, ok := v.Member(id)
	return ok && m.Gone
}

// Stays reports whether the node is a member that does not leave.
func (v *View) Stays(id NodeID) bool {
	m, ok := v.Member(id)
	return ok && !m.Leaving
}

// Link is one between two members.
type Link struct{ A, B NodeID }

// LinkOf returns the link of two members: A is the smaller id.
func LinkOf(a, b NodeID) Link { return Link{min(a, b), max(a, b)} }

// Has reports whether it is a link of the member.
func (l Link) Has(n NodeID) bool { return l.A == n || l.B == n }

// Compare orders links.
func (l Link) Compare(o Link) int { return cmp.Or(cmp.Compare(l.A, o.A), cmp.Compare(l.B, o.B)) }

// Reaches reports whether two members reach each other, for all that is known.
func (v *View) Reaches(a, b NodeID) bool { return !slices.Contains(v.Apart, LinkOf(a, b)) }

// Former is a member that was gone, and is forgotten.
type Former struct {
	ID  NodeID
	Inc uint64
}

// MostFormer bounds View.Former.
const MostFormer = 64

// Knows reports whether a node is a member, or was one and may join again. Publishes of such a node that it has under way may come again.
func (v *View) Knows(id NodeID) bool {
	_, ok := v.Member(id)
	return ok || slices.ContainsFunc(v.Former, func(f Former) bool { return f.ID == id })
}

// Row returns the row of a slot; nil if there is no such slot.
func (v *View) Row(s Slot) *SlotHome {
	switch i := int(s) - Slots; {
	case i < 0:
		return &v.Slots[s]
	case i < len(v.Own) && v.Own[i].Area != 0:
		return &v.Own[i].SlotHome
	}
	return nil
}

// Rows yields all slots with their rows.
func (v *View) Rows() iter.Seq2[Slot, *SlotHome] {
	return func(yield func(Slot, *SlotHome) bool) {
		for i := range Slots + len(v.Own) {
			if row := v.Row(Slot(i)); row != nil && !yield(Slot(i), row) {
				return
			}
		}
	}
}

// Placed returns the slot that an area has to itself; 0 if it has none. (Slot 0 belongs to no area.)
func (v *View) Placed(a AreaID) Slot { return v.placed[a] }

// OwnOf returns what the view says of the slot that an area has to itself; nil if it has none.
func (v *View) OwnOf(a AreaID) *OwnSlot {
	if own := v.placed[a]; own != 0 {
		return &v.Own[own-Slots]
	}
	return nil
}

// SlotOf returns the slot of an extent of an area with the spec.
func (v *View) SlotOf(a AreaID, s Spec, e ExtentIndex) Slot {
	if own := v.placed[a]; own != 0 && s.Together(e) {
		return own
	}
	return s.SlotOf(a, e)
}

// Clone returns a copy whose members and slots can be changed.
func (v *View) Clone() *View {
	c := *v
	c.Members, c.Former, c.Own, c.placed = slices.Clone(v.Members), slices.Clone(v.Former), slices.Clone(v.Own), maps.Clone(v.placed)
	return &c
}

// Place gives an area a slot of its own, or a new row to the one that it has. It returns false if there are too many.
func (v *View) Place(a AreaID, row SlotHome) bool {
	moved := uint32(0)
	if row.Source != 0 {
		moved = 1
	}
	if own := v.placed[a]; own != 0 {
		o := &v.Own[own-Slots]
		o.SlotHome = row
		o.Moves += moved
		return true
	}
	i := slices.IndexFunc(v.Own, func(o OwnSlot) bool { return o.Area == 0 })
	if i < 0 {
		if len(v.Own) == MaxOwnSlots {
			return false
		}
		i, v.Own = len(v.Own), append(v.Own, OwnSlot{})
	}
	v.Own[i] = OwnSlot{Area: a, SlotHome: row, Began: v.Epoch, Moves: moved}
	if v.placed == nil {
		v.placed = make(map[AreaID]Slot)
	}
	v.placed[a] = Slot(Slots + i)
	return true
}

// Displace takes the slot of its own from an area.
func (v *View) Displace(a AreaID) {
	if own := v.placed[a]; own != 0 {
		v.Own[own-Slots] = OwnSlot{}
		delete(v.placed, a)
	}
	for n := len(v.Own); n > 0 && v.Own[n-1].Area == 0; n-- {
		v.Own = v.Own[:n-1]
	}
}

// RestoreOwn sets the slots that areas have to themselves, in a view that nobody uses yet. It returns false if an area has two.
func (v *View) RestoreOwn(own []OwnSlot) bool {
	v.Own, v.placed = own, make(map[AreaID]Slot)
	for i, o := range own {
		if o.Area == 0 {
			continue
		}
		if v.placed[o.Area] != 0 {
			return false
		}
		v.placed[o.Area] = Slot(Slots + i)
	}
	return len(own) <= MaxOwnSlots
}
