package coherence

import (
	"context"
	"encoding/binary"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// versioned is an area of which one node makes whole versions.
var versioned = simCase{name: "versioned", ino: dsm.Inode{Size: simSize, Spec: dsm.Spec{Mode: dsm.ModeVersioned, Retain: 3}}, rules: retainRule,
	resize: true, starves: true,
	store: storeBytes, check: checkBytes}

// versionedMarked is one of which each version has the same mark in all pages that are stored to: half a version would have two.
var versionedMarked = simCase{name: "versioned-marked", ino: dsm.Inode{Size: simSize, Spec: dsm.Spec{Mode: dsm.ModeVersioned}}, marked: true, rules: retainRule,
	store: storeMark, check: checkMark}

// marking is a mark that a program has not stored to all pages yet.
type marking struct {
	prog  *simProgram
	mark  uint32
	pages []dsm.PageIndex // that are left
}

// storeMark has a program store the next mark to some pages, or the last one to those that are left, as a program with one thread does: not while it publishes. What others have
// left may be published then.
func storeMark(r *simRun, n *simNode) {
	if n.marking != nil {
		n.endMark()
		return
	}
	prog := n.aProgram()
	if prog == nil || prog.at == nil {
		return
	}
	for _, p := range r.hotPages() {
		if n.memory(prog, p, true) == nil {
			return
		}
	}
	r.rest()
	if w := &n.area.mu.whole; w.serial && w.leaving == 0 || !slices.Contains(n.attached, prog) {
		return
	}
	r.marks++
	n.marking = &marking{prog, r.marks, r.hotPages()}
	if r.rng.IntN(2) == 0 {
		n.endMark()
	} else {
		n.goOnMarking(r.rng.IntN(len(n.marking.pages)))
	}
}

// goOnMarking has the program store its mark to at most k pages more.
func (n *simNode) goOnMarking(k int) {
	m := n.marking
	for ; k > 0 && len(m.pages) > 0; k-- {
		b := n.memory(m.prog, m.pages[0], true)
		if b == nil {
			return
		}
		binary.LittleEndian.PutUint32(b, m.mark)
		m.pages = m.pages[1:]
	}
	if len(m.pages) == 0 {
		n.marking = nil
	}
}

// endMark has a program of the node store the rest of its mark. It reports whether that could be done, and the node may publish.
func (n *simNode) endMark() bool {
	if n.marking != nil {
		n.goOnMarking(len(n.marking.pages))
	}
	return n.marking == nil
}

func checkMark(r *simRun, n *simNode) {
	for _, p := range r.hotPages() {
		w, c := n.page(p)
		if a, b := binary.LittleEndian.Uint32(w), binary.LittleEndian.Uint32(c.data[:]); a != r.marks || b != r.marks {
			r.t.Fatalf("node %d page %d: the mark is %d, in the page cache %d, want %d", n.i, p, a, b, r.marks)
		}
	}
}

// checkMarks checks that what programs of a node see as published is a whole version, if their line says so.
func (r *simRun) checkMarks(n *simNode) {
	a := n.area
	a.mu.Lock()
	defer a.mu.Unlock()
	newest, ok := a.newestLocked()
	if !ok || !a.shownLocked() || !a.mu.replica.subscribed || !n.isOpen() || n.entering != nil {
		return
	}
	var got []uint32
	for _, p := range r.hotPages() {
		got = append(got, 0)
		if b := a.inPlaceLocked(p); b != nil {
			got[len(got)-1] = binary.LittleEndian.Uint32(b)
		}
	}
	if slices.Min(got) != slices.Max(got) {
		r.t.Errorf("node %d: the published bytes, of version %d, have the marks %v", n.i, newest.Version, got)
		a.mu.Unlock()
		r.explain()
		a.mu.Lock()
		r.t.FailNow()
	}
	for _, prog := range slices.Concat(n.attached, n.reading) {
		if prog.reads != nil {
			r.checkShown(n, prog, got)
		}
	}
}

// checkShown checks that the memory which a program has attached to read has the marks of a version, and of no older one than before.
func (r *simRun) checkShown(n *simNode, prog *simProgram, want []uint32) {
	for i, p := range r.hotPages() {
		var b [4]byte
		if _, err := prog.shown.ReadAt(b[:], int64(p)*dsm.PageSize); err != nil {
			r.t.Fatal(err)
		}
		if got := binary.LittleEndian.Uint32(b[:]); got != want[i] {
			r.t.Fatalf("node %d: what program %d has attached to read has the mark %d in page %d, want %d", n.i, prog.id, got, p, want[i])
		}
	}
	if want[0] < prog.saw {
		r.t.Fatalf("node %d: program %d has seen the mark %d, and sees %d", n.i, prog.id, prog.saw, want[0])
	}
	prog.saw = want[0]
}

// retainRule changes how many versions are retained.
func retainRule(r *simRun, ino *dsm.Inode) { ino.Spec.Retain = uint8(1 + r.rng.IntN(4)) }

// pinnedVersion is a version that a program of a node has pinned.
type pinnedVersion struct {
	n       *simNode
	area    *Area
	version dsm.Version
}

// checkVersions compares the versions that each node has: a version is the same everywhere, and for as long as it can be read. At times a
// program pins one.
func (r *simRun) checkVersions() {
	if !r.whole {
		return
	}
	if r.versions == nil {
		r.versions = make(map[dsm.Version]map[int64]byte)
	}
	for _, n := range r.programNodes() {
		if !n.isOpen() || n.entering != nil {
			continue
		}
		newest := dsm.Version(0)
		for _, v := range n.area.Versions() {
			r.checkVersion(n, v.Version)
			newest = v.Version
		}
		if newest != 0 && newest < n.newest {
			r.t.Errorf("node %d: the newest version that can be read is %d, and was %d", n.i, newest, n.newest)
			r.explain()
			r.t.FailNow()
		}
		n.newest = max(n.newest, newest)
		if r.kind.marked {
			r.checkMarks(n)
		}
		if r.rng.IntN(50) == 0 && len(r.pinned) < 6 {
			v, err := n.area.PinVersion(0)
			if err == nil {
				r.pinned = append(r.pinned, pinnedVersion{n, n.area, v.Version})
			} else if !errs.Is(err, errs.Unavailable) {
				r.t.Fatalf("node %d: pin: %v", n.i, err)
			}
		}
	}
	if k := len(r.pinned); k > 0 && r.rng.IntN(40) == 0 {
		p := r.pinned[0]
		r.pinned = r.pinned[1:]
		p.area.UnpinVersion(p.version)
	}
}

// checkVersion compares what is stored to in a version with what it was on other nodes, and before.
func (r *simRun) checkVersion(n *simNode, v dsm.Version) {
	if r.versions[v] == nil {
		r.versions[v] = make(map[int64]byte)
	}
	was, mark := r.versions[v], ""
	for _, p := range r.hotPages() {
		b, at := make([]byte, hotBytes), int64(p)*dsm.PageSize
		k, err := n.area.ReadVersion(v, b, at)
		if err != nil {
			r.t.Fatalf("node %d: version %d: %v", n.i, v, err)
		}
		for i, c := range b[:k] { // a node that has truncated the rest does not say
			off := at + int64(i)
			if w, ok := was[off]; ok && w != c {
				r.t.Errorf("node %d: byte %d of page %d of version %d is %d, and was %d", n.i, i, p, v, c, w)
				r.explain()
				r.t.FailNow()
			}
			was[off] = c
		}
		if mark == "" {
			mark = string(b[:4])
		}
		if r.kind.marked && string(b[:4]) != mark {
			r.t.Errorf("node %d: version %d has the mark %x in page %d, and %x in page %d", n.i, v, mark, r.hotPages()[0], b[:4], p)
			r.explain()
			r.t.FailNow()
		}
	}
}

// transfer has a node take the area, or some node give it to another one. At times the programs of the owner close it before.
func (r *simRun) transfer() {
	n, to := r.aNode(), r.aNode()
	if n.outstanding() >= mostAsked || n.away {
		return
	}
	if r.rng.IntN(3) > 0 {
		if owner := r.nodes[r.owner(0)]; !owner.dead && !owner.away {
			owner.leaveStorers()
		}
	}
	if r.rng.IntN(3) > 0 {
		to = n
	}
	n.ask("take", func(ctx context.Context) error {
		err := n.node.Transfer(ctx, simArea, to.id)
		if n.node.Owner(simArea) == 0 && errs.Is(err, errs.Unavailable) {
			return nil
		}
		return err
	}, nil)
}

// leaveStorers has the programs of a node that store close the area.
func (n *simNode) leaveStorers() {
	for _, prog := range slices.Clone(n.attached) {
		n.leaveAttached(prog)
	}
	n.leaveWriter()
}

// handTo makes a node the owner at the end.
func (r *simRun) handTo(n *simNode) {
	for _, o := range r.programNodes() {
		if o != n {
			o.leaveStorers()
			r.calm("wait")
		}
	}
	gives := func(o *simNode) bool {
		o.area.mu.Lock()
		defer o.area.mu.Unlock()
		return o.area.mu.owning.giving != nil
	}
	for i := 0; slices.ContainsFunc(r.programNodes(), gives); i++ {
		if i == 100 {
			r.t.Fatal("an area is being given away for ever")
		}
		r.pass(giveAgain)
		r.calm("wait")
	}
	n.ask("take at the end", n.take, nil)
	r.calm("wait")
	if r.owner(0) != n.i {
		r.t.Fatalf("node %d has taken the area, and node %d owns it", n.i, r.owner(0))
	}
}

// take makes the node the owner of the area.
func (n *simNode) take(ctx context.Context) error { return n.node.Transfer(ctx, simArea, n.id) }

// OwnArea does what the catalog does: see catalog/place.go. A refusal, too, is known when this node has applied what it is about.
func (n *simNode) OwnArea(ctx context.Context, id dsm.AreaID, to dsm.NodeID) error {
	epoch, err := n.sim.own(n.id, id, to)
	if n.WaitApplied(ctx, 0, epoch) != nil {
		return errs.E(errs.Timeout, "own", "")
	}
	return err
}

// own commits a view in which the area belongs to another node, if the node that asks may. It returns the epoch of the last view.
func (s *sim) own(by dsm.NodeID, id dsm.AreaID, to dsm.NodeID) (dsm.Epoch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.lastViewLocked().Clone()
	row, owned := *s.firstRowLocked(v), v.Placed(id) != 0
	switch {
	case owned && row.Primary == to:
		return v.Epoch, nil
	case owned && row.Primary != by && !(to == by && s.lastInodeLocked().Size == 0 && v.IsGone(row.Primary)):
		return v.Epoch, errs.E(errs.Access, "own", "node %v owns it", row.Primary)
	case !owned && to != by:
		return v.Epoch, errs.E(errs.Access, "own", "it has no owner")
	case (!row.Settled() || s.twoUnheard()) && s.lastInodeLocked().Size > 0:
		return v.Epoch, errs.E(errs.Busy, "own", "it is on its way to node %v", row.Primary)
	}
	v.Epoch++
	first := s.movedTo(v, row, to)
	if s.lastInodeLocked().Size == 0 {
		first.Source = 0
	}
	v.Place(id, first)
	s.assign(v)
	s.log = append(s.log, entry{nil, v})
	return v.Epoch, nil
}
