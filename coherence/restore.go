package coherence

import (
	"errors"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// restore undoes what a program that has the memory did to its length: see pages.Area.Restore. It
// is called before each step of areas that programs have mapped, and takes a system call for each
// of their memories.
func (a *Area) restore() {
	if a.mu.replica.mapped == 0 || a.mu.mem == nil {
		return
	}
	r := &a.mu.replica
	cut, err := a.mu.mem.Restore(func(p dsm.PageIndex) bool {
		e, i := p.Extent()
		return int(e) < len(r.extents) && r.extents[e].have.Has(i)
	})
	for _, d := range a.mu.drafts {
		c, e := d.mem.Restore()
		cut, err = cut || c, errors.Join(err, e)
	}
	if (cut || err != nil) && !a.mu.toldOfCut {
		a.mu.toldOfCut = true
		a.node.cfg.Log.Warn("a program has cut the memory of an area that it has attached; what it had not published of it is lost", "area", a.id, "err", err)
	}
}
