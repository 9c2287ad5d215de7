package pages

// Drops is what is under way and may make the kernel drop pages of a file, other than by notices of its
// present ledger: calls of KernelDrops, and notices of earlier ledgers. It belongs to the file, and
// outlives its ledgers and its memory (see Area.SetDrops). The zero Drops is one with nothing under way.
type Drops struct {
	calls   int
	notices map[uint64]struct{}
	last    uint64 // id of the last notice of any ledger
}

// Begin says that something is about to make the kernel drop pages. It is for a file without a ledger;
// if there is one, call its KernelDrops. Call ended when that is over.
func (d *Drops) Begin() (ended func()) {
	d.calls++
	return func() { d.calls-- }
}

// Done says that the kernel has taken a notice of an earlier ledger. It ignores others.
func (d *Drops) Done(n Notice) { delete(d.notices, n.id) }

// Under reports whether anything is under way.
func (d *Drops) Under() bool { return d.calls > 0 || len(d.notices) > 0 }

// Replaced says that the ledger is not in use any more. What it has in flight goes on.
func (c *Cached) Replaced() {
	d := c.area.drops
	if d.notices == nil && len(c.flights) > 0 {
		d.notices = make(map[uint64]struct{})
	}
	for _, f := range c.flights {
		d.notices[f.id] = struct{}{}
	}
	c.flights = nil
}

// SetDrops says what may still make the kernel drop pages of the file, from before it had this memory.
// Call it before the first ledger is made.
func (a *Area) SetDrops(d *Drops) { a.drops = d }
