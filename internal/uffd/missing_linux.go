package uffd

import "github.com/dsmfs/dsmfs/internal/lockrank"

// waits is the set of pages for which Missing was called and which no Wake or Poison has covered
// since. A page is removed before the threads that wait for it are woken. A thread whose event was
// read earlier is waiting by then, and is woken. A thread whose event is read later does not find
// the page here, and makes a new call.
type waits struct {
	mu struct {
		lockrank.Mutex
		pages map[int64]struct{} // by offset
	}
}

func (w *waits) init() {
	w.mu.Init("uffd.waits")
	w.mu.pages = make(map[int64]struct{})
}

// add adds a page, and reports whether it was not there before.
func (w *waits) add(off int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, had := w.mu.pages[off]
	w.mu.pages[off] = struct{}{}
	return !had
}

// remove removes the pages in [off, end), in time proportional to the smaller of that range and the
// set.
func (w *waits) remove(off, end int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if (end-off)/int64(pageSize) <= int64(len(w.mu.pages)) {
		for page := off &^ (int64(pageSize) - 1); page < end; page += int64(pageSize) {
			delete(w.mu.pages, page)
		}
		return
	}
	for page := range w.mu.pages {
		if page+int64(pageSize) > off && page < end {
			delete(w.mu.pages, page)
		}
	}
}

// missingLocked records that Missing must be called for the page at the address.
func (r *Range) missingLocked(addr uint64) {
	off, ok := r.offset(addr)
	switch {
	case !ok:
		r.strayLocked(addr)
	case r.missing != nil && r.waits.add(off):
		r.mu.missed = append(r.mu.missed, off)
	}
}

// strayLocked handles a fault at an unknown address. Either the mapping is being moved there, and
// the event comes next: then nothing can be poisoned yet, and the thread tries again. Or the
// program has grown or doubled its mapping by an mremap that makes no event: nobody fills such a
// page, so it is poisoned.
func (r *Range) strayLocked(addr uint64) {
	_ = poisonRun(r.uffd, addr, addr+pageSize)
	_ = wake(r.uffd, addr, pageSize)
}

// strandedLocked wakes threads that waited for pages that are not at these addresses any more.
func (r *Range) strandedLocked(start, end uint64) {
	if r.missing != nil {
		_ = wake(r.uffd, start, end-start)
	}
}

// handOnLocked makes sure that Missing is called when another goroutine than the watcher has read
// the events.
func (r *Range) handOnLocked() {
	if len(r.mu.missed) == 0 {
		return
	}
	missed := r.mu.missed
	r.mu.missed = nil
	r.watcher.Go(func() { r.call(missed) })
}

func (r *Range) call(missed []int64) {
	for _, off := range missed {
		r.missing(off)
	}
}

// Wake lets threads go on that wait for missing pages of [off, off+n), offsets in the memfd. It
// does nothing to a Range that is closed. It takes neither the lock of the Range nor that of the
// memory map, so it does not wait for a Scan.
func (r *Range) Wake(off, n int64) {
	r.waits.remove(off, off+n)
	// The pieces are read after the pages were removed from the waits. So if a call was left out
	// because its page was still among the waits, the pieces read here are those of that moment or
	// newer.
	_ = r.raw.Control(func(fd uintptr) { r.wakeMapped(int(fd), off, n) })
}

// wakeMapped wakes at the addresses of [off, off+n). Where that fails, the mapping is gone.
func (r *Range) wakeMapped(fd int, off, n int64) {
	for _, p := range r.pieces() {
		if start, end := p.addresses(off, off+n); start < end {
			_ = wake(fd, start, end-start)
		}
	}
}

// Unmapped is closed when the process has nothing of the Range mapped any more: because it has
// unmapped it or ended, or because a Scan or Mapped has seen that its memory is gone (exec).
func (r *Range) Unmapped() <-chan struct{} { return r.unmapped }

// Mapped reports whether anything is still mapped. Like Scan it may wait for the memory map of the
// process, but it does not wait for a Scan.
func (r *Range) Mapped() bool {
	select {
	case <-r.unmapped:
		return false
	default:
	}
	// The descriptors stay open until this returns.
	lives := true
	err := r.raw.Control(func(uintptr) { lives = memoryLives(r.pagemap) })
	if err == nil && !lives {
		r.goneOnce()
	}
	return lives
}
