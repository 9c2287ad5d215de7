package pages

import (
	"errors"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/hold"
	"github.com/dsmfs/dsmfs/pages/merge"
)

// A draft outlives the daemon as a working copy does that programs have attached: its memory is a HeldFile, and its base is in the Keep. It has a record of its own. The pages of a draft change
// together with others in two ways:
//
//	taken       what the program has stored goes to the working copy, and to the base of the draft. Only the daemon changes these, so the next one puts back what was there before
//	refreshed   what is new in the working copy goes to the memory, to which the program may be storing, and to the base. The next daemon goes on with that, where it was left

// keepDraft has a draft outlive the daemon.
func (a *Area) keepDraft(d *Draft, program int, file *HeldFile) error {
	if file == nil { // the caller did not know that it needs one
		return errs.E(errs.Busy, "new draft", "the settings of the file have just changed: try again")
	}
	k, err := a.kept.store.keep(dsm.AreaID(hold.OfDraft) | a.id)
	if err != nil {
		return a.fail("new draft", err)
	}
	k.record.Program().Store(uint64(program))
	d.kept, d.memory.kept, d.base.kept = k, k, k
	d.memory.filed, d.memory.at, d.base.at = false, &k.record.Working, &k.record.Base
	d.memory.fd, d.memory.number = file.fd, file.number
	d.memory.isAt(placeOfFile(file.number))
	file.files = nil
	return nil
}

// Program returns the process that a draft of an earlier daemon is for.
func (d *Draft) Program() int { return int(d.kept.record.Program().Load()) }

// Is reports whether the memory of the draft has an inode number.
func (d *Draft) Is(memory uint64) bool { return d.memory.is(memory) }

func (c *areaCopy) is(memory uint64) bool {
	if c.fd < 0 {
		return false
	}
	st, err := c.stat()
	return err == nil && st.Ino == memory
}

// takeDrafts takes over what is left of drafts.
func (a *Area) takeDrafts(l Left, end int64) error {
	s := l.k.store
	for _, i := range s.drafts[l.ID] {
		k := &keeping{s, i, s.mem.Area(i)}
		d, err := Left{ID: l.ID, Rev: l.Rev, k: k}.draft(end)
		if err != nil {
			return err
		}
		a.drafts = append(a.drafts, d)
	}
	delete(s.drafts, l.ID)
	return nil
}

// draft restores a draft. Its bytes from size on are zero.
func (l Left) draft(size int64) (*Draft, error) {
	d := &Draft{kept: l.k}
	var err error
	if d.base, err = l.restore("db", l.k.record.Base.Load(), size); err != nil {
		return nil, err
	}
	if d.memory, err = l.restore("d", l.k.record.Working.Load(), size); err != nil {
		return nil, errors.Join(err, d.base.unmap())
	}
	if d.memory.fd < 0 { // it was not made yet, and no program has it
		return d, nil
	}
	d.size = min(d.base.size, d.memory.size)
	return d, errors.Join(d.memory.resize(d.size), d.base.resize(d.size))
}

// dropDrafts frees what is left of the drafts of an area.
func (l Left) dropDrafts() error {
	var a Area
	err := a.takeDrafts(l, 0)
	for _, d := range a.drafts {
		err = errors.Join(err, d.Close())
	}
	return err
}

// LeftDrafts returns the drafts that an earlier daemon has left, once.
func (a *Area) LeftDrafts() []*Draft {
	list := a.drafts
	a.drafts = nil
	return list
}

// Differs calls f for each page of which the base of the draft is not what the working copy has. The programs that store to the working copy, if there are any, have not yet begun again.
func (d *Draft) Differs(a *Area, f func(p dsm.PageIndex)) {
	page := func(c *areaCopy, p dsm.PageIndex) []byte {
		if c.takes(p) {
			return c.look(p, 1)
		}
		return zeroPage
	}
	for p := dsm.PageIndex(0); int64(p)*dsm.PageSize < min(a.working.len, d.base.len); p++ {
		w, b := a.working.nextData(p), d.base.nextTaken(p)
		if p = min(w, b); p == noPage || int64(p)*dsm.PageSize >= min(a.working.len, d.base.len) {
			return
		}
		if string(page(a.working, p)) != string(page(d.base, p)) {
			f(p)
		}
	}
}

// BeginTake is called before what a program has stored to page p of a draft goes to the working copy and to the base of the draft; EndTake when it has. In between they are as they
// were for the next daemon.
func (a *Area) BeginTake(d *Draft, p dsm.PageIndex) {
	if d.kept == nil {
		return
	}
	a.takeNote(2)
	copy(a.note[0].mem, a.working.look(p, 1))
	copy(a.note[1].mem, d.base.look(p, 1))
	a.frames.tag(a.note[1], frameTakenBase, uint64(p), uint64(d.kept.i))
	a.frames.tag(a.note[0], frameTaken, uint64(p), uint64(d.kept.i))
}

// EndTake ends BeginTake.
func (a *Area) EndTake(d *Draft) {
	if d.kept != nil {
		a.EndMerge()
	}
}

// Refresh merges is, the bytes of page p of the working copy, into the memory of the draft, by a rule. They are its base from then on. If is is the
// working copy itself, no program can be storing to that: the next daemon finds it there.
func (a *Area) Refresh(k merge.Kernel, d *Draft, p dsm.PageIndex, is []byte) {
	base := d.Base(p)
	if d.kept == nil {
		k.MergeShared(p, base, d.Page(p), is)
		copy(base, is)
		return
	}
	a.takeNote(5)
	note := a.note[2:]
	if w := a.Working(p); len(is) == dsm.PageSize && &is[0] == &w[0] {
		clear(note[2].mem[:merge.NoteSize])
		a.frames.tag(note[2], frameRefreshing, uint64(p), uint64(d.kept.i))
		k.MergeNoted(note[2].mem, p, base, d.Page(p), is)
		a.frames.retag(note[2], frameRefreshed)
		copy(base, is)
		a.frames.untag(note[2])
		return
	}
	clear(note[2].mem[:merge.NoteSize])
	copy(note[0].mem, base)
	copy(note[1].mem, is)
	for i, kind := range []frameKind{frameDraftMine, frameDraftComing, frameDraftNote} {
		a.frames.tag(note[i], kind, uint64(p), uint64(d.kept.i))
	}
	k.MergeNoted(note[2].mem, p, base, d.Page(p), is)
	copy(base, is)
	for i := len(note) - 1; i >= 0; i-- {
		a.frames.untag(note[i])
	}
}

// endOfDrafts ends what an earlier daemon was doing with a page of a draft.
func (a *Area) endOfDrafts(k merge.Kernel, left map[frameKind][]tagged) {
	of := func(x tagged) (*Draft, dsm.PageIndex) {
		for _, d := range a.drafts {
			if uint64(d.kept.i) == x.more && int64(x.arg)*dsm.PageSize < min(d.size, a.size) {
				return d, dsm.PageIndex(x.arg)
			}
		}
		return nil, 0
	}
	for _, w := range left[frameTaken] {
		for _, b := range left[frameTakenBase] {
			if d, p := of(w); d != nil && b.arg == w.arg {
				copy(a.working.page(p), w.mem)
				copy(d.base.page(p), b.mem)
			}
		}
	}
	for _, n := range left[frameRefreshing] {
		if d, p := of(n); d != nil {
			k.MergeRest(n.mem, p, d.base.page(p), d.memory.page(p), a.working.page(p))
			a.frames.retag(n.frame, frameRefreshed)
			copy(d.base.page(p), a.working.page(p))
		}
	}
	for _, n := range left[frameRefreshed] {
		if d, p := of(n); d != nil {
			copy(d.base.page(p), a.working.page(p))
		}
	}
	for _, n := range left[frameDraftNote] {
		d, p := of(n)
		if d == nil {
			continue
		}
		for _, mine := range left[frameDraftMine] {
			for _, coming := range left[frameDraftComing] {
				k.MergeRest(n.mem, p, mine.mem, d.memory.page(p), coming.mem)
				copy(d.base.page(p), coming.mem)
			}
		}
	}
}
