package coherence

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
