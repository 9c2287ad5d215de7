package coherence

import "github.com/dsmfs/dsmfs/internal/errs"

// Programs that have opened the file of the working copy itself, by FUSE passthrough, map it as
// attached programs do. They can also use write(2). Past the end that makes the file longer than
// the area, and nobody is told.

// Extended returns the end of what such programs have written past the end of the area, or 0. The
// caller may then make the area as long, in the catalog, or undo the writes with Trim.
func (a *Area) Extended() (end int64) {
	a.note(func() {
		if a.mu.mem == nil {
			return
		}
		n, err := a.mu.mem.Extended()
		if err != nil {
			a.node.cfg.Log.Warn("look for writes past the end", "area", a.id, "err", err)
			return
		}
		if n > a.mu.ino.Size {
			end = n
		}
	})
	return end
}

// Trim removes what programs have written past the end of the area.
func (a *Area) Trim() {
	a.note(func() {
		if a.mu.mem == nil {
			return
		}
		if err := a.mu.mem.Trim(); err != nil {
			a.node.cfg.Log.Warn("truncate writes past the end", "area", a.id, "err", err)
		}
	})
}

// exclusiveLocked refuses the attachment of the mount while programs have the working copy for writing, and the other way round.
func (a *Area) exclusiveLocked(t *Attachment) error {
	r := &a.mu.replica
	switch {
	case !t.mount && t.write && t.draft == nil && r.direct > 0:
		return errs.E(errs.Unsupported, "attach", "the file is open or mapped on this node with access=direct: programs that write map it through the mount, which is the same memory")
	case !t.mount || r.direct > 0:
		return nil
	}
	if r.mapped == 0 || !a.mu.mem.Sealed() && r.attached == 0 {
		a.endsWithDaemonLocked("a program has a file with access=direct open")
	}
	if r.mapped == 0 {
		a.unshareLocked()
	}
	if a.mu.mem.Sealed() || r.attached > 0 {
		return errs.E(errs.Busy, "attach", "programs have attached the file for writing")
	}
	return nil
}
