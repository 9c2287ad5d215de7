package coherence

// KernelCuts says that the kernel is about to be told of the size by the answer to a SETATTR: it drops what it
// holds past it before it writes anything back. (Of sizes that other nodes set the
// kernel hears at some time; until then what it writes back is the change from what it was given: see pages.Cached.)
func (a *Area) KernelCuts(size int64) {
	a.step(func() {
		if a.mu.cached != nil {
			a.mu.cached.KernelCuts(size)
		}
	})
}

// KernelTold says that an answer is about to tell the kernel of the size. It goes before every such answer, whoever
// asked: see pages.Cached.KernelTold.
func (a *Area) KernelTold(size int64) {
	a.step(func() {
		if a.mu.cached != nil {
			a.mu.cached.KernelTold(size)
		}
	})
}

// KernelDrops says that the kernel is about to be told to drop pages of its page cache, other than by a notice of the
// area. The caller calls ended when it has.
func (a *Area) KernelDrops() (ended func()) {
	ended = func() {}
	a.note(func() {
		if a.mu.cached != nil {
			end := a.mu.cached.KernelDrops()
			ended = func() { a.note(end) }
		}
	})
	return ended
}

// WriteBack is WriteAt for what the kernel writes back of its page cache. It is refused where the change cannot be
// told from what the page cache was given: then msync and fsync fail.
func (a *Area) WriteBack(p []byte, off int64) error {
	return a.write(p, off, writtenBack)
}
