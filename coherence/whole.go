package coherence

import (
	"cmp"
	"context"
	"math"
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
	killed   bool        // what is left is taken back: see Area.Killed
	waiting  bool        // a subscriber waits for room to begin a batch
	roomier  bool        // a batch has ended since: see pumpWaitingLocked
	taking   bool        // this node is receiving the home's bytes, and has pinned the version was
	torn     bool        // the published bytes in place are of no one version
	shrunk   bool        // the area was shrunk, and its home has made no version since
	pinned   bool        // a shrink has pinned the newest version, pinnedAt
	changing bool        // this step changes published bytes, or has made a version: see toldKeepLocked
	halved   bool        // the daemon before was killed while published bytes changed: perhaps they are of several versions
	leaving  uint32      // what is left of the area is being published: see publishLeft
	paused   dsm.Version // programs may be in the midst of it, or of a newer one, though it is not pinned; 0: of none
	was      dsm.Version // the newest before
	replica  dsm.Version // the newest version that the replica has, which on the home's node has a base of its own
	told     dsm.Version // the newest version that programs could ever read here
	pinnedAt dsm.Version
	coming   VersionInfo // what the former home says of its newest version
}

// keptVersion is a version that can be read.
type keptVersion struct {
	VersionInfo
	retained bool   // as one of the newest
	users    int    // calls of PinVersion
	change   uint64 // the last change of copies that tells backups of it, notTold or whileMute; 0: nobody could take over without it
}

const (
	// notTold is the change of a version that backups are about to be told of.
	notTold = math.MaxUint64
	// whileMute is that of one which this home has taken over with, while another backup could still take over without it.
	whileMute = notTold - 1
)

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

// completedLocked says that all bytes of a version are in place, and that other nodes may have it. Versions that need not be retained any more are dropped.
func (a *Area) completedLocked(v VersionInfo) { a.completeLocked(v, 0) }

// tookOverLocked is completedLocked for the version with which this node has become the home.
func (a *Area) tookOverLocked(v VersionInfo) {
	change := uint64(0)
	if a.mu.mute {
		change = whileMute
	}
	a.completeLocked(v, change)
}

// madeLocked is completedLocked for a version that this node has made as the home. toldOfNewestLocked follows.
func (a *Area) madeLocked(v VersionInfo) {
	change := uint64(0)
	if hasBackups(a.rowLocked(0)) {
		change = notTold
	}
	a.completeLocked(v, change)
}

func (a *Area) completeLocked(v VersionInfo, change uint64) {
	w, h := &a.mu.whole, a.historyLocked()
	h.Advance(v.Version)
	w.torn, w.halved, w.changing = false, false, true
	a.mu.wake = true
	if change == 0 {
		w.told = max(w.told, v.Version)
	}
	if n := len(w.kept); n > 0 && w.kept[n-1].Version >= v.Version {
		return
	}
	w.shrunk = false
	if w.pinned {
		w.pinned = false
		h.Unpin(w.pinnedAt)
	}
	w.kept = append(w.kept, keptVersion{VersionInfo: v, change: change})
	a.retainLocked()
}

// toldOfNewestLocked says that backups are told of the newest version. It is readable here when they have it.
func (a *Area) toldOfNewestLocked() {
	if k := a.mu.whole.kept; len(k) > 0 && k[len(k)-1].change == notTold {
		if k[len(k)-1].change = 0; a.mu.copies != nil {
			k[len(k)-1].change = a.mu.copies.index
		}
		a.backedLocked()
	}
}

// backedLocked follows what backups have acked.
func (a *Area) backedLocked() {
	k := a.mu.whole.kept
	if len(k) == 0 || k[len(k)-1].change == 0 {
		return
	}
	for i := range a.readableLocked() + 1 {
		k[i].change = 0
		a.mu.whole.told = max(a.mu.whole.told, k[i].Version)
	}
	a.retainLocked()
	a.mu.wake = true
}

// readableLocked returns the index of the newest kept version that programs may read, -1 if there is none. A home with backups shows a version only when all those that could take over have it: else a
// program could read it, and then the one before it, when another daemon has taken over.
func (a *Area) readableLocked() int {
	k := a.mu.whole.kept
	i := len(k) - 1
	if i < 0 || k[i].change == 0 || !a.ownHomeLocked() {
		return i
	}
	need := uint64(0)
	if a.mu.copies != nil {
		need = a.mu.copies.needed(0)
	}
	for ; i >= 0 && k[i].change != 0; i-- {
		if c := k[i].change; c != notTold && !a.mu.mute && (c == whileMute || need == 0 || c < need) {
			break
		}
	}
	return i
}

// keepReadableLocked is called before the next version is made here: if that is not readable at once, the newest of now is kept. The home may have got backups since it was made.
func (a *Area) keepReadableLocked() {
	if a.mu.whole.history != nil {
		a.retainLocked()
	}
}

// keepNewestLocked pins the newest version, unless it is. The next retainLocked may unpin it.
func (a *Area) keepNewestLocked() {
	if k := a.mu.whole.kept; len(k) > 0 && !k[len(k)-1].retained {
		a.mu.whole.history.Pin()
		k[len(k)-1].retained = true
	}
}

// retainLocked pins the versions that are to be retained, and drops others.
func (a *Area) retainLocked() {
	w, h := &a.mu.whole, a.mu.whole.history
	last := len(w.kept) - 1
	first := min(last+1-a.mu.ino.Spec.Retained(), max(a.readableLocked(), 0))
	// With one version, there is nothing to keep when it is overwritten, unless the next one is not readable at once.
	several := a.mu.ino.Spec.Retained() > 1 || a.ownHomeLocked() && hasBackups(a.rowLocked(0))
	if several {
		a.keepNewestLocked()
	}
	for i := range w.kept {
		if k := &w.kept[i]; k.retained && (i < first || !several) {
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
	older := a.mu.whole.paused != 0 && a.mu.whole.paused < newest.Version
	for _, k := range a.mu.whole.kept {
		older = older || k.users > 0 && k.Version != newest.Version
	}
	a.mu.mem.HasOlder(older)
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
	if !a.versionedLocked() {
		return
	}
	if a.mu.whole.changing = true; a.mu.mem != nil {
		a.mu.mem.IsChanging()
	}
	for _, l := range a.mu.heads {
		l.Changing()
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
	if w.taking { // it was taken back before all was here
		w.taking = false
		w.history.Advance(w.was)
		w.history.Unpin(w.was)
	}
	if !a.mu.replica.subscribed || a.acksAreDueLocked() || w.replica != w.history.Newest() {
		a.dropHistoryLocked()
		w.torn = a.mu.replica.subscribed
	}
}

// acksAreDueLocked reports whether the home has merged what this node has published, and the replica here has not heard of that: a backup is to have it first, or was to, before another one took
// over.
func (a *Area) acksAreDueLocked() bool {
	for e := range a.mu.replica.busy.extents {
		x, h := a.mu.replica.extents[e], a.mu.home.extents[e]
		if x != nil && h != nil && slices.ContainsFunc(x.parts, func(p *publication) bool { return p.seq <= h.parts[a.node.cfg.Self] }) {
			return true
		}
	}
	return false
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
		a.resubscribeLocked(a.askedLocked(), nil)
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
	for i := 0; i < a.readableLocked() && a.lacksRoomLocked(0); i++ {
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
	kept := a.mu.whole.kept[:a.readableLocked()+1]
	list := make([]VersionInfo, 0, len(kept))
	for _, k := range kept {
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
			return none != nil || a.readableLocked() >= 0 || a.unpublishedLocked()
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
		newest := a.readableLocked()
		if v == 0 {
			v = w.kept[newest].Version
		}
		i := slices.IndexFunc(w.kept[:newest+1], func(k keptVersion) bool { return k.Version == v })
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
	if a.readableLocked() >= 0 {
		return nil
	}
	if len(a.mu.whole.kept) > 0 || !a.unpublishedLocked() {
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

// PauseVersion is UnpinVersion for a program that may go on to read the version, and is told then if it is not here any more. So that the next daemon can tell it, too, this is known until no program has the area open.
func (a *Area) PauseVersion(v dsm.Version) {
	a.step(func() {
		a.pausedLocked(v)
		a.unpinLocked(v)
	})
}

func (a *Area) pausedLocked(v dsm.Version) {
	if w := &a.mu.whole; w.paused == 0 || v < w.paused {
		w.paused = v
	}
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

// basesFollowLocked is called before the base copy takes over what this node has published to another owner. The versions that are here stay, and the bytes in place are of none until the
// owner sends the next one.
func (a *Area) basesFollowLocked(e dsm.ExtentIndex, set dsm.PageSet) {
	w := &a.mu.whole
	if !a.versionedLocked() || a.ownHomeLocked() || w.history == nil || set.Empty() {
		return
	}
	a.changingLocked()
	if !w.pinned { // until the next version comes
		w.pinned, w.pinnedAt = true, w.history.Pin()
	}
	for i := range set.All() {
		w.history.Before(page(e, i), a.mu.mem.Base(page(e, i)))
	}
	w.history.Advance(w.history.Newest())
	w.torn = true
}

// shrinkVersionsLocked keeps what the versions here have past size, before a shrink takes it.
func (a *Area) shrinkVersionsLocked(size int64) {
	w := &a.mu.whole
	if w.history == nil {
		return
	}
	a.keepReadableLocked()
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
