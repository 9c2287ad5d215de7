package coherence

import (
	"cmp"
	"context"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/pages"
)

// A versioned area (mode=versioned) has one owner, whose node is also its home. What the owner
// publishes is one version: the home merges all of it in one step, and the other nodes stage what they
// receive of it and put it in place in one step. Older versions stay readable while they are retained
// (user.dsm.retain) or pinned: a pages.History keeps the pages that have changed since.
//
//	owner's program stores ──► working copy ──publish──► home's bytes = the newest version
//	                                                          │ parts of a batch, at one version
//	other nodes                              working copy ◄── staged, then all in one step
//	                                              └── History: pages of older versions

// VersionInfo is what is known of a version of a versioned area.
type VersionInfo struct {
	Version dsm.Version // also says when it was made: Version.Time
	Size    int64       // bytes
	Writer  dsm.NodeID  // who published it; 0: not known any more
}

// whole is what a node keeps of the versions of a versioned area.
type whole struct {
	history  *pages.History // of the home's bytes at the home, else of the working copy
	kept     []keptVersion  // that can be read, ascending; the last is the newest that is complete here
	stage    stage
	id       dsm.RoundID // of the version that is being published; none if Group is 0
	serial   bool        // publishVersion is at work
	waiting  bool        // a subscriber waits for room to begin a batch
	roomier  bool        // a batch has ended since: see pumpWaitingLocked
	taking   bool        // this node is receiving the home's bytes, and has pinned the version was
	was      dsm.Version // the newest before
	torn     bool        // the published bytes in place are of no one version
	replica  dsm.Version // the newest version that the replica has, which on the home's node has a base of its own
	told     dsm.Version // the newest version that was ever complete here
	shrunk   bool        // the area was shrunk, and its home has made no version since
	pinned   bool        // a shrink has pinned the newest version, pinnedAt
	pinnedAt dsm.Version
	coming   VersionInfo // what the former home says of its newest version
}

// keptVersion is a version that can be read.
type keptVersion struct {
	VersionInfo
	retained bool // as one of the newest
	users    int  // calls of PinVersion
}

// versionedLocked reports whether versions of the area are whole.
func (a *Area) versionedLocked() bool { return a.mu.ino.Spec.Mode == dsm.ModeVersioned }

// ownHomeLocked reports whether this node has the home's bytes.
func (a *Area) ownHomeLocked() bool { return len(a.mu.home.extents) > 0 }

// historyLocked returns the history, and makes it at first use. The caller has made the memory of the area.
func (a *Area) historyLocked() *pages.History {
	if a.mu.whole.history == nil {
		a.mu.whole.history = pages.NewHistory(0)
	}
	return a.mu.whole.history
}

// inPlaceVersionLocked returns the version whose bytes are in place; 0 if nothing has been published.
func (a *Area) inPlaceVersionLocked() dsm.Version {
	if a.mu.whole.history == nil {
		return 0
	}
	return a.mu.whole.history.Newest()
}

// dropHistoryLocked forgets all versions.
func (a *Area) dropHistoryLocked() {
	if h := a.mu.whole.history; h != nil {
		h.Close()
	}
	w := &a.mu.whole
	w.history, w.kept, w.taking, w.torn, w.pinned = nil, nil, false, false, false
}

// inPlaceLocked returns the bytes of page p that the history is about: those of the newest version. nil: the page is all zero.
func (a *Area) inPlaceLocked(p dsm.PageIndex) []byte {
	e, _ := p.Extent()
	if a.mu.mem.Homed(e) {
		return a.mu.mem.Home(p)
	}
	if row := a.rowLocked(e); !a.mu.replica.subscribed || a.isSelf(row.Primary) && a.node.slotReady(a.slotLocked(e), row) {
		return nil // nothing of the extent was ever published
	}
	return a.mu.mem.Base(p)
}

// completedLocked says that all bytes of a version are in place. Versions that need not be retained any more are dropped.
func (a *Area) completedLocked(v VersionInfo) {
	w, h := &a.mu.whole, a.historyLocked()
	h.Advance(v.Version)
	w.torn, w.told = false, max(w.told, v.Version)
	a.mu.wake = true
	if n := len(w.kept); n > 0 && w.kept[n-1].Version >= v.Version {
		return
	}
	w.shrunk = false
	if w.pinned {
		w.pinned = false
		h.Unpin(w.pinnedAt)
	}
	w.kept = append(w.kept, keptVersion{VersionInfo: v})
	a.retainLocked()
}

// retainLocked pins the versions that are to be retained, and drops others.
func (a *Area) retainLocked() {
	w, h := &a.mu.whole, a.mu.whole.history
	first := len(w.kept) - a.mu.ino.Spec.Retained()
	if n := len(w.kept); n > 0 && first < n-1 && !w.kept[n-1].retained { // with one version, there is nothing to keep when it is overwritten
		h.Pin()
		w.kept[n-1].retained = true
	}
	for i := range w.kept {
		if k := &w.kept[i]; k.retained && (i < first || first >= len(w.kept)-1) {
			h.Unpin(k.Version)
			k.retained = false
		}
	}
	a.forgetVersionsLocked()
	a.shedVersionsLocked()
}

// forgetVersionsLocked forgets the versions that nobody keeps.
func (a *Area) forgetVersionsLocked() {
	newest, _ := a.newestLocked()
	a.mu.whole.kept = slices.DeleteFunc(a.mu.whole.kept, func(k keptVersion) bool {
		return !k.retained && k.users == 0 && k.Version != newest.Version
	})
}

// newestLocked returns the newest version that is complete here.
func (a *Area) newestLocked() (v VersionInfo, ok bool) {
	k := a.mu.whole.kept
	if len(k) == 0 {
		return v, false
	}
	return k[len(k)-1].VersionInfo, true
}

// changingLocked is called before published bytes change in place. The lines of programs say so until the end of the step.
func (a *Area) changingLocked() {
	if a.versionedLocked() {
		for _, l := range a.mu.heads {
			l.Changing()
		}
	}
}

// resignVersionsLocked is called before the home's bytes of an extent go. From then on the base has the newest version. If the replica lacks
// some of it, because the home has not pushed it all to its own node, no version can be read here until the next one has come.
func (a *Area) resignVersionsLocked() {
	w := &a.mu.whole
	if !a.versionedLocked() || w.history == nil {
		return
	}
	a.changingLocked()
	waits := a.mu.copies != nil && slices.ContainsFunc(a.mu.copies.outputs, func(o output) bool { return a.isSelf(o.peer) })
	if !a.mu.replica.subscribed || waits || w.replica != w.history.Newest() {
		a.dropHistoryLocked()
		w.torn = a.mu.replica.subscribed
	}
}

// modeChangedLocked follows a change of the mode, which the catalog allows only for empty areas. The two modes push in different ways, so all
// subscribe anew.
func (a *Area) modeChangedLocked() {
	for _, id := range a.subscribersLocked() {
		a.forgetSubscriberLocked(id)
	}
	a.dropHistoryLocked()
	a.mu.whole.stage, a.mu.whole.coming = stage{}, VersionInfo{}
	if a.mu.replica.subscribed {
		a.resubscribeLocked(a.askedLocked())
	}
}

// versionBytesLocked returns the memory that versions take beside the newest that is in place.
func (a *Area) versionBytesLocked() int64 {
	n := a.mu.whole.stage.bytes
	if h := a.mu.whole.history; h != nil {
		n += h.Bytes()
	}
	return n
}

// lacksRoomLocked reports whether there is no memory for what the areas of this node take, and n bytes more.
func (a *Area) lacksRoomLocked(n int64) bool {
	m := &a.node.room
	return m.budget > 0 && m.fixed.Load()-a.mu.charged.fixed+a.fixedLocked()+n > m.forPages()
}

// shedVersionsLocked drops retained versions while memory is short, the oldest first, but none that is pinned.
func (a *Area) shedVersionsLocked() {
	w := &a.mu.whole
	for i := 0; i < len(w.kept)-1 && a.lacksRoomLocked(0); i++ {
		if k := &w.kept[i]; k.retained {
			w.history.Unpin(k.Version)
			k.retained = false
		}
	}
	a.forgetVersionsLocked()
}

// Versions returns the versions of the area that this node can read, the oldest first.
func (a *Area) Versions() []VersionInfo {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := make([]VersionInfo, 0, len(a.mu.whole.kept))
	for _, k := range a.mu.whole.kept {
		if k.Version > 0 {
			list = append(list, k.VersionInfo)
		}
	}
	return list
}

// PinVersion keeps a version readable until UnpinVersion, whatever is published meanwhile; 0 is the newest that is here. It costs
// the pages that change meanwhile. errs.Dropped if this node does not have the version any more; the error says which is the oldest.
// errs.NoSpace if there is no room for older versions in the memory of the node. Before anything is published, the newest
// version is 0: all bytes are zero.
func (a *Area) PinVersion(v dsm.Version) (info VersionInfo, err error) { return a.pin(v, true) }

// PinToRead is PinVersion for as long as it takes to read the version. There need not be room for it. While no version is here, because
// the home has not sent one yet or has moved away before this node had all, it waits for one. errs.Invalid if the area has no bytes and no version.
func (a *Area) PinToRead(ctx context.Context, v dsm.Version) (info VersionInfo, err error) {
	for {
		if info, err = a.pin(v, false); !errs.Is(err, errs.Unavailable) {
			return info, err
		}
		none := error(nil)
		gone := a.awaitHomes(ctx, "read", func() bool {
			switch none = nil; {
			case a.extentsLocked() == 0:
				none = errs.E(errs.Invalid, "read", "area %d is empty, and has no version", a.id)
			case !a.versionedLocked() || !a.mu.replica.subscribed: // no home sends any
				none = err
			}
			return none != nil || len(a.mu.whole.kept) > 0 || a.unpublishedLocked()
		}, a.deadInAreaLocked)
		if gone = cmp.Or(gone, none); gone != nil {
			return VersionInfo{}, gone
		}
	}
}

func (a *Area) pin(v dsm.Version, room bool) (info VersionInfo, err error) {
	err = &errs.Error{Op: "pin", Area: a.id, Kind: errs.NotExist} // if the area has been removed
	a.step(func() {
		w := &a.mu.whole
		if err = a.startVersionsLocked(); err != nil {
			return
		}
		newest := len(w.kept) - 1
		if v == 0 {
			v = w.kept[newest].Version
		}
		i := slices.IndexFunc(w.kept, func(k keptVersion) bool { return k.Version == v })
		if i < 0 || !w.history.PinAgain(v) {
			err = errs.E(errs.Dropped, "pin", "version %d of area %d is not here; the oldest that is here is %d, the newest %d",
				v, a.id, w.kept[0].Version, w.kept[newest].Version)
			return
		}
		k := &w.kept[i]
		if v == 0 && i == newest {
			k.Size = a.mu.ino.Size
		}
		k.users++
		info, room = k.VersionInfo, room && k.users == 1
		if a.shedVersionsLocked(); room && a.lacksRoomLocked(0) {
			a.unpinLocked(v)
			info, err = VersionInfo{}, errs.E(errs.NoSpace, "pin", "older versions of areas, and the areas, take all of --memory (%d bytes) of this node", a.node.room.budget)
		}
	})
	return info, err
}

// startVersionsLocked makes version 0 readable if this node knows that nothing has been published. errs.Unavailable if no version is here.
func (a *Area) startVersionsLocked() error {
	if len(a.mu.whole.kept) > 0 {
		return nil
	}
	if !a.unpublishedLocked() {
		return errs.E(errs.Unavailable, "pin", "no version of area %d is here yet", a.id)
	}
	if _, err := a.memoryLocked(); err != nil {
		return err
	}
	a.completedLocked(VersionInfo{Size: a.mu.ino.Size})
	return nil
}

// unpublishedLocked reports whether this node is the home of a versioned area of which nothing has been published.
func (a *Area) unpublishedLocked() bool {
	row := a.rowLocked(0)
	return a.versionedLocked() && !a.ownHomeLocked() && a.isSelf(row.Primary) && a.node.slotReady(a.slotLocked(0), row)
}

// UnpinVersion ends a PinVersion or PinToRead.
func (a *Area) UnpinVersion(v dsm.Version) { a.step(func() { a.unpinLocked(v) }) }

func (a *Area) unpinLocked(v dsm.Version) {
	w := &a.mu.whole
	i := slices.IndexFunc(w.kept, func(k keptVersion) bool { return k.Version == v && k.users > 0 })
	if i < 0 {
		return // the memory of the area has gone, with all versions
	}
	w.kept[i].users--
	w.history.Unpin(v)
	a.retainLocked()
}

// ReadVersion fills p with the bytes of a pinned version from off on. n is short at the end of the version.
func (a *Area) ReadVersion(v dsm.Version, p []byte, off int64) (n int, err error) {
	err = &errs.Error{Op: "read", Area: a.id, Kind: errs.NotExist}
	a.step(func() {
		w := &a.mu.whole
		err = nil
		i := slices.IndexFunc(w.kept, func(k keptVersion) bool { return k.Version == v })
		if i < 0 {
			err = errs.E(errs.Dropped, "read", "version %d of area %d is not here any more", v, a.id)
			return
		}
		p = p[:min(int64(len(p)), max(w.kept[i].Size-off, 0))]
		for n < len(p) {
			at := off + int64(n)
			pg := dsm.PageIndex(at / dsm.PageSize)
			page, inPlace := w.history.At(pg, v)
			if inPlace && int64(pg)*dsm.PageSize < a.mu.ino.Size {
				page = a.inPlaceLocked(pg)
			}
			from := int(at % dsm.PageSize)
			room := min(len(p)-n, dsm.PageSize-from)
			if page == nil { // truncated, and all zero
				clear(p[n : n+room])
			} else {
				copy(p[n:n+room], page[from:])
			}
			n += room
		}
	})
	return n, err
}

// shrinkVersionsLocked keeps what the versions here have past size, before a shrink takes it.
func (a *Area) shrinkVersionsLocked(size int64) {
	w := &a.mu.whole
	if w.history == nil {
		return
	}
	if !w.pinned { // until the next version comes
		w.pinned, w.pinnedAt = true, w.history.Pin()
	}
	have := make(map[dsm.ExtentIndex]struct{}) // extents that may have bytes
	for e := range a.mu.home.extents {
		have[e] = struct{}{}
	}
	for e := range a.mu.replica.extents {
		have[e] = struct{}{}
	}
	for e := range have {
		for i := range dsm.ExtentPages {
			if p := page(e, i); int64(p+1)*dsm.PageSize > size && int64(p)*dsm.PageSize < a.mu.ino.Size {
				if b := a.inPlaceLocked(p); b != nil {
					w.history.Before(p, b)
				}
			}
		}
	}
	w.history.Advance(w.history.Newest())
}
