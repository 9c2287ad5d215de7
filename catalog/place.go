package catalog

import (
	"slices"
	"strings"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// An area whose placement names a node has a slot of its own, whose home is that node: only such a slot can move without others. It has
// the slot until it is removed, wherever it lives. An area gets it when nothing of it is on its way: while its shared slot is being handed
// over, neither end has all of its state. Until then, and as long as there is no such member, it is in unplaced.

// pinned returns the member that a placement names, if it stays; else 0.
func pinned(v *dsm.View, p dsm.Placement) dsm.NodeID {
	word, ok := p.Node()
	if !ok {
		return 0
	}
	for _, m := range v.Members {
		if !m.Leaving && !m.Gone && (m.Name == word || m.ID.String() == word) {
			return m.ID
		}
	}
	return 0
}

// checkPlacement refuses a placement that names no member.
func (s *state) checkPlacement(p dsm.Placement) error {
	word, ok := p.Node()
	if !ok || pinned(s.view, p) != 0 {
		return nil
	}
	var names []string
	for _, m := range s.view.Members {
		if !m.Leaving && !m.Gone {
			names = append(names, m.Name)
		}
	}
	return fail(errs.Invalid, "placement %q: no member that stays has this name or id: want auto, spread, one, or one of the members %s", word, strings.Join(names, " "))
}

// checkPlaceable refuses a node for the file if there are too many areas with slots of their own.
func (s *state) checkPlaceable(in *inode, p dsm.Placement) error {
	if _, ok := p.Node(); !ok {
		return nil
	}
	return s.placeable(in)
}

// placeable returns why the file cannot have a slot of its own, or nil.
func (s *state) placeable(in *inode) error {
	if s.view.Placed(in.Area()) != 0 || s.places() < dsm.MaxOwnSlots {
		return nil
	}
	return fail(errs.NoSpace, "%d files have a home of their own, which is the most", dsm.MaxOwnSlots)
}

// places counts the slots of areas that exist.
func (s *state) places() (n int) {
	for _, o := range s.view.Own {
		if in := s.inodes[dsm.Ino(o.Area)]; in != nil {
			n++
		}
	}
	return n
}

// placing has the file live where its placement says, as soon as it can.
func (s *state) placing(in *inode) {
	delete(s.unplaced, in.Ino)
	if _, ok := in.Spec.Placement.Node(); !ok || in.Kind != dsm.KindFile {
		return
	}
	own := s.view.Row(s.view.Placed(in.Area()))
	if s.view.Placed(in.Area()) == 0 {
		own = nil
		s.unplaced[in.Ino] = struct{}{}
	}
	if to := pinned(s.view, in.Spec.Placement); to != 0 && (own == nil || own.Primary != to) {
		s.reviewed(func(*dsm.View) {})
	}
}

// place brings the slots of single areas to where they belong: those of areas that name a node, and those of nodes that leave.
func (s *state) place(v *dsm.View) {
	s.displace(v)
	for i := range v.Own {
		o := &v.Own[i]
		if o.Area == 0 || !o.Settled() || v.IsGone(o.Primary) {
			continue
		}
		in := s.inodes[dsm.Ino(o.Area)]
		if to := ownHome(v, in, o.Primary); to != o.Primary {
			v.Place(o.Area, o.MovedTo(v, in.Spec.Copies(), to))
		}
	}
	for _, ino := range sortedKeys(s.unplaced) {
		in := s.inodes[ino]
		to, shared := pinned(v, in.Spec.Placement), v.Row(in.Spec.SlotOf(in.Area(), 0))
		if to != 0 && (in.Size == 0 || shared.Settled() && !v.IsGone(shared.Primary)) && v.Place(in.Area(), startOf(v, in, *shared, to)) {
			delete(s.unplaced, ino)
		}
	}
}

// displace takes the slots back of areas that are gone, or that are spread now.
func (s *state) displace(v *dsm.View) {
	for _, o := range slices.Clone(v.Own) {
		if in := s.inodes[dsm.Ino(o.Area)]; o.Area != 0 && (in == nil || !in.Spec.Together(0)) {
			v.Displace(o.Area)
		}
	}
}

// shares returns the slot that an area with one of its own would share.
func (s *state) shares(a dsm.AreaID) dsm.Slot {
	spec := dsm.Spec{}
	if in := s.inodes[dsm.Ino(a)]; in != nil {
		spec = in.Spec
	}
	return spec.SlotOf(a, 0)
}

// startOf returns the first row of an area's own slot. Who has a copy of the slot that it shared has one of it.
func startOf(v *dsm.View, in *inode, shared dsm.SlotHome, to dsm.NodeID) dsm.SlotHome {
	switch {
	case in.Size == 0: // there is nothing to hand over
		return dsm.SlotHome{Primary: to, Epoch: v.Epoch}
	case shared.Primary == to:
		return dsm.SlotHome{Primary: to, Epoch: v.Epoch, Had: shared.Had, Backups: shared.Backups}
	}
	return shared.MovedTo(v, in.Spec.Copies(), to)
}

// A home asks for this when another node has been the only one that publishes to an area of its for a while. What it has seen may be out of date.
func (o moveOp) apply(s *state, st step) (dsm.Inode, error) {
	in, err := s.get(o.Ino)
	if err != nil {
		return dsm.Inode{}, err
	}
	row := *s.view.Row(s.view.SlotOf(in.Area(), in.Spec, 0))
	_, fixed := in.Spec.Placement.Node()
	to, ok := s.view.Member(o.To)
	switch {
	case in.Kind != dsm.KindFile || fixed || in.Spec.Mode == dsm.ModeVersioned || !in.Spec.OneHome(in.Size):
		return dsm.Inode{}, fail(errs.Invalid, "inode %d does not move by itself", o.Ino)
	case row.Primary != st.node || !row.Settled() || o.Epoch < row.Epoch:
		return dsm.Inode{}, fail(errs.Busy, "inode %d has moved", o.Ino)
	case !ok || to.Leaving || to.Gone || to.ID == row.Primary:
		return dsm.Inode{}, fail(errs.Unavailable, "node %s takes nothing over", o.To)
	case o.Patience < dsm.LeastPatience || o.Patience > dsm.MostPatience:
		return dsm.Inode{}, fail(errs.Invalid, "a patience of %d windows", o.Patience)
	}
	if err := s.placeable(in); err != nil {
		return dsm.Inode{}, err
	}
	s.reviewed(func(v *dsm.View) {
		s.displace(v)
		v.Place(in.Area(), startOf(v, in, row, o.To))
		v.OwnOf(in.Area()).Patience = o.Patience
	})
	return dsm.Inode{}, nil
}

// The owner of a versioned area is the home of the slot that it has to itself. A node makes itself the owner of an area that has none; the
// owner gives its area to another one. So an area never has two.
func (o ownOp) apply(s *state, st step) (dsm.Inode, error) {
	in, err := s.get(o.Ino)
	if err != nil {
		return dsm.Inode{}, err
	}
	to, ok := s.view.Member(o.To)
	if in.Kind != dsm.KindFile || in.Spec.Mode != dsm.ModeVersioned {
		return dsm.Inode{}, fail(errs.Invalid, "inode %d is no versioned area, and has no owner", o.Ino)
	}
	row, owned := *s.view.Row(s.view.SlotOf(in.Area(), in.Spec, 0)), s.view.Placed(in.Area()) != 0
	switch {
	case owned && row.Primary == o.To:
		return in.Inode, nil
	case !ok || to.Leaving || to.Gone:
		return dsm.Inode{}, fail(errs.Unavailable, "node %s takes nothing over", o.To)
	case owned && row.Primary != st.node && !(o.To == st.node && in.Size == 0 && s.view.IsGone(row.Primary)):
		return dsm.Inode{}, fail(errs.Access, "node %s owns it", row.Primary)
	case !owned && o.To != st.node:
		return dsm.Inode{}, fail(errs.Access, "it has no owner, and only node %s itself can become one", o.To)
	case in.Size > 0 && (s.view.IsGone(row.Primary) || s.view.IsGone(row.Source)):
		return dsm.Inode{}, fail(errs.Unavailable, "the node that had its bytes has died")
	case row.Source != 0 && in.Size > 0:
		return dsm.Inode{}, fail(errs.Busy, "it is on its way to node %s", row.Primary)
	case !row.Settled() && in.Size > 0:
		return dsm.Inode{}, fail(errs.Busy, "node %s has just taken over", row.Primary)
	}
	if err := s.placeable(in); err != nil {
		return dsm.Inode{}, err
	}
	s.reviewed(func(v *dsm.View) {
		s.displace(v)
		v.Place(in.Area(), startOf(v, in, row, o.To))
	})
	return in.Inode, nil
}

// checkOwner refuses a node that may not change the size of a file, because another one owns it. What a dead owner had can be truncated by all.
func (s *state) checkOwner(in *inode, node dsm.NodeID) error {
	if in.Spec.Mode != dsm.ModeVersioned || s.view.Placed(in.Area()) == 0 {
		return nil
	}
	if owner := s.view.Row(s.view.Placed(in.Area())).Primary; owner != node && !s.view.IsGone(owner) {
		return fail(errs.Access, "the file is versioned, and node %s owns it: only its programs change the size", owner)
	}
	return nil
}

// ownHome returns where an area's own slot belongs: to the node that its placement names; else it stays. If its home leaves, it goes to the
// home of the slot that the area would share.
func ownHome(v *dsm.View, in *inode, now dsm.NodeID) dsm.NodeID {
	if to := pinned(v, in.Spec.Placement); to != 0 {
		return to
	}
	if v.Stays(now) {
		return now
	}
	if shared := v.Row(in.Spec.SlotOf(in.Area(), 0)).Primary; v.Stays(shared) {
		return shared
	}
	for _, m := range v.Members {
		if !m.Leaving {
			return m.ID
		}
	}
	return now
}
