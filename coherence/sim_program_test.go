package coherence

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/pages"
)

// simProgram is a program that stores: into the page cache, into the working copy itself, or into a draft of its own.
type simProgram struct {
	at          *Attachment // nil: the page cache
	reads       *Attachment // for reading; the process may have it longer than the other one
	id          int         // of the process
	memory      *os.File    // that it maps
	shown       *os.File    // likewise, that of reads
	saw         uint32      // the mark that was there last: see checkShown
	untrack     func()      // ends the tracking of its mapping
	found       map[dsm.PageIndex]bool
	temporaries *temporaries // that it has loaded and not stored back
	syncing     int          // its sync calls under way
}

// openReader opens the area for reading, if the node has it not open so.
func (n *simNode) openReader() {
	if n.reader || n.entering != nil {
		return
	}
	n.enter("open to read", func(ctx context.Context) error {
		_, err := n.node.Open(ctx, simArea, false)
		return err
	}, func() { n.reader = true })
}

// openWriter opens the area for writing.
func (n *simNode) openWriter() {
	if n.writer != nil || n.entering != nil || n.sim.careful && len(n.attached) > 0 {
		return
	}
	n.enter("open to write", func(ctx context.Context) error {
		_, err := n.node.Open(ctx, simArea, true)
		return err
	}, func() { n.writer = new(simProgram) })
}

// mostAttached is how many programs of a node are attached at once: a byte of which programs store different
// values has one that does.
func (s *sim) mostAttached() int {
	if s.careful {
		return 3
	}
	return 1
}

// attach has one more program map the memory of the area.
func (n *simNode) attach() {
	s := n.sim
	if len(n.attached) == s.mostAttached() || n.held != nil && !s.outlive || n.entering != nil || s.careful && n.writer != nil {
		return
	}
	s.lastProgram++
	if s.whole && n.held != nil && s.rng.IntN(2) == 0 {
		n.attachToRead()
		return
	}
	id, compare := s.lastProgram, s.rng.IntN(3) == 0
	if !s.careful && n.held == nil && s.rng.IntN(2) == 0 && n.ino.Spec.Residency != dsm.ResidencyDemand {
		id = dsm.ByMount // which shares the working copy
	}
	reads := id != dsm.ByMount && s.rng.IntN(2) == 0
	prog := &simProgram{id: id, found: make(map[dsm.PageIndex]bool)}
	n.enter("attach", func(ctx context.Context) error {
		t, f, err := n.attachAs(ctx, id, true)
		if err != nil {
			return err
		}
		if reads {
			if prog.reads, prog.shown, err = n.attachAs(ctx, id, false); err != nil {
				t.Detach()
				t.area.Close(false)
				return errors.Join(err, f.Close())
			}
		}
		prog.at, prog.memory = t, f
		return nil
	}, func() {
		var source pages.Source = prog
		if compare {
			source = nil
		}
		prog.untrack = prog.at.Track(source, 0, n.sim.fullSize())
		n.attached = append(n.attached, prog)
	})
}

// attachToRead has one more program map the published bytes of a versioned area.
func (n *simNode) attachToRead() {
	if len(n.reading) > 1 {
		return
	}
	prog := &simProgram{id: n.sim.lastProgram}
	n.enter("attach to read", func(ctx context.Context) (err error) {
		prog.reads, prog.shown, err = n.attachAs(ctx, prog.id, false)
		return err
	}, func() { n.reading = append(n.reading, prog) })
}

// attachAs opens the area, and has a process attach it.
func (n *simNode) attachAs(ctx context.Context, id int, write bool) (*Attachment, *os.File, error) {
	a, err := n.node.Open(ctx, simArea, false)
	if err != nil {
		return nil, nil, err
	}
	t, f, err := a.Attach(ctx, id, write)
	if err != nil {
		a.Close(false)
	}
	return t, f, err
}

// enter does one open. snapshot is what was published before it began.
func (n *simNode) enter(what string, call func(ctx context.Context) error, done func()) {
	first := !n.isOpen()
	began := n.acked()
	n.entering = n.ask(what, call, func(err error) {
		n.entering = nil
		if err != nil {
			return
		}
		if first { // the kernel keeps nothing over an open that is the first
			n.kernel.finishNotices()
			n.kernel.forget()
		}
		done()
		n.sees(began, what, false, nil)
	})
}

// Scan is that of a pages.Source.
func (p *simProgram) Scan(stored, _ func(off, n int64)) error {
	for _, i := range slices.Sorted(maps.Keys(p.found)) {
		if p.found[i] {
			stored(int64(i)*dsm.PageSize, dsm.PageSize)
		}
	}
	clear(p.found)
	return nil
}

// Disarm is that of a pages.Source.
func (p *simProgram) Disarm() error { return nil }

// Arm is that of a pages.Source.
func (p *simProgram) Arm() error { return nil }

// leaveAttached ends an attached program, and what it asks for. Its process may go on to read.
func (n *simNode) leaveAttached(prog *simProgram) {
	if n.entering != nil {
		return
	}
	killed := false
	if m := n.marking; m != nil && m.prog == prog {
		if killed = n.writer == nil && n.sim.rng.IntN(2) == 0; killed {
			n.marking = nil
		} else if !n.endMark() {
			return
		}
	}
	n.giveUpFor(prog)
	n.attached = slices.DeleteFunc(n.attached, func(o *simProgram) bool { return o == prog })
	if prog.reads != nil {
		n.reading = append(n.reading, prog)
	}
	n.lastClose()
	prog.untrack()
	if killed || n.sim.whole && n.sim.rng.IntN(2) == 0 { // the daemon goes on, and the program too
		at, area := prog.at, n.area
		if killed {
			at.Killed()
		} else {
			at.Released()
		}
		n.publishReleased(func() {
			at.Detach()
			area.Close(false)
			if prog.reads == nil {
				n.closeMemory(prog)
			}
		})
		return
	}
	if n.sim.rng.IntN(2) == 0 {
		prog.at.Released()
		n.sim.rest()
	}
	prog.at.Detach()
	n.area.Close(false)
	if prog.reads == nil {
		n.closeMemory(prog)
	}
}

// publishReleased publishes what a program has left, and closes the area then.
func (n *simNode) publishReleased(closes func()) {
	area := n.area
	n.ask("release", func(ctx context.Context) error {
		_, err := area.PublishReleased(ctx)
		return err
	}, func(error) { closes() })
}

// leaveReading ends a process that has only read lately.
func (n *simNode) leaveReading(prog *simProgram) {
	if n.entering != nil {
		return
	}
	n.reading = slices.DeleteFunc(n.reading, func(o *simProgram) bool { return o == prog })
	n.giveUpFor(prog)
	n.lastClose()
	prog.reads.Detach()
	n.area.Close(false)
	n.closeMemory(prog)
}

func (n *simNode) closeMemory(prog *simProgram) {
	for _, f := range []*os.File{prog.memory, prog.shown} {
		if f == nil {
			continue
		}
		if err := f.Close(); err != nil {
			n.sim.t.Fatal(err)
		}
	}
}

// leaveWriter closes the handle for writing.
func (n *simNode) leaveWriter() {
	if n.writer == nil || n.entering != nil || len(n.kernel.past) > 0 || n.kernel.change != nil {
		return
	}
	n.giveUpFor(n.writer)
	n.kernel.harvest(1) // the kernel delivers every store before RELEASE
	n.writer = nil
	n.lastClose()
	if area := n.area; n.sim.whole && n.sim.rng.IntN(2) == 0 {
		area.Released()
		n.publishReleased(area.CloseReleased)
		return
	}
	n.area.Close(true)
}

// leaveAll closes all, or gives up what is about to open.
func (n *simNode) leaveAll() {
	if n.entering != nil {
		n.entering.giveUp()
		n.sim.rest()
	}
	for _, prog := range slices.Clone(n.attached) {
		n.leaveAttached(prog)
	}
	for _, prog := range slices.Clone(n.reading) {
		n.leaveReading(prog)
	}
	n.leaveWriter()
	if n.reader && n.entering == nil {
		n.reader = false
		n.lastClose()
		n.area.Close(false)
	}
}

// giveUpFor gives up what the program asks for, and if its process has ended what that does.
func (n *simNode) giveUpFor(prog *simProgram) {
	for _, q := range n.sim.requests {
		if q.by == prog || q.reader == prog && !slices.Contains(n.attached, prog) && !slices.Contains(n.reading, prog) {
			q.giveUp()
		}
	}
	n.sim.rest()
}

// lastClose gives up what programs still ask for when the last of them closes the area: nothing outlives its handle.
func (n *simNode) lastClose() {
	if n.isOpen() {
		return
	}
	n.closes++
	n.reopens = false // the next open acquires
	n.sim.pinned = slices.DeleteFunc(n.sim.pinned, func(p pinnedVersion) bool {
		if p.n == n {
			p.area.UnpinVersion(p.version)
		}
		return p.n == n
	})
	for p, r := range n.kernel.reading {
		if r.send != nil {
			delete(n.kernel.reading, p)
		}
	}
	for _, q := range n.sim.requests {
		if q.n == n && q.what != "inspect" {
			q.giveUp()
		}
	}
	n.sim.rest()
}

// isOpen reports whether a program of the node has the area open.
func (n *simNode) isOpen() bool {
	return n.reader || n.writer != nil || len(n.attached)+len(n.reading) > 0
}

// programs returns the programs of the node that store.
func (n *simNode) programs() []*simProgram {
	if n.writer == nil {
		return n.attached
	}
	return append([]*simProgram{n.writer}, n.attached...)
}

// aProgram is one of them, nil if there is none.
func (n *simNode) aProgram() *simProgram {
	all := n.programs()
	if len(all) == 0 {
		return nil
	}
	return all[n.sim.rng.IntN(len(all))]
}

// memory returns the bytes of page p that a program loads from, or stores into; nil if it has to wait.
func (n *simNode) memory(prog *simProgram, p dsm.PageIndex, store bool) []byte {
	if prog.at == nil {
		if n.kernel.past[p] || n.kernel.locked(p) {
			return nil
		}
		c := n.kernel.fault(p)
		if c == nil {
			return nil
		}
		c.dirty = c.dirty || store
		return c.data[:]
	}
	if int64(p)*dsm.PageSize >= n.ino.Size || !n.here(p) || !n.hasMemory(p) {
		return nil
	}
	if store {
		prog.found[p] = true
	}
	if d := prog.at.draft; d != nil {
		return d.mem.Page(p)
	}
	return n.area.mu.mem.Working(p)
}

// stores returns the bytes of page p that a program of the node stores into, nil if it has to wait or there is none; and whether
// it is one that has attached.
func (n *simNode) stores(p dsm.PageIndex) (b []byte, attached bool) {
	prog := n.aProgram()
	if prog == nil {
		return nil, false
	}
	return n.memory(prog, p, true), prog.at != nil
}

// sync is msync by a program, nil for one that reads.
func (n *simNode) sync(prog *simProgram) {
	call := func(ctx context.Context) error {
		err := n.area.Sync(ctx, prog != nil)
		if prog == nil && err != nil && strings.Contains(err.Error(), "user.dsm.staleness") {
			return nil // it has published, and may not bring updates
		}
		return err
	}
	if prog != nil && !n.endMark() {
		return
	}
	if prog != nil && prog.at != nil {
		call = prog.at.Sync
	}
	done := func() {} // who only reads does not publish a version
	if prog != nil || !n.sim.whole {
		done = n.acks()
	}
	n.inCall(prog, "sync", call, done)
}

// acquire acquires, for a program, nil for one that reads.
func (n *simNode) acquire(prog *simProgram) {
	call := func(ctx context.Context) error { return n.area.Acquire(ctx, prog != nil) }
	if prog == nil && len(n.reading) > 0 {
		call = n.reading[n.sim.rng.IntN(len(n.reading))].reads.Acquire
	}
	if prog != nil && prog.at != nil {
		call = prog.at.Acquire
	}
	n.inCall(prog, "acquire", call, func() {})
}

// inCall has a program call something that acquires.
func (n *simNode) inCall(prog *simProgram, what string, call func(ctx context.Context) error, done func()) {
	if !n.isOpen() {
		return
	}
	if prog != nil {
		prog.syncing++
	}
	began := n.acked()
	n.ask(what, call, func(err error) {
		if prog != nil {
			prog.syncing--
		}
		if err == nil {
			done()
			n.sees(began, what, prog != nil, prog.ownMemory())
		}
	}).by = prog
}

// anAcquire is a program of which a call acquires; ok is false if the one that was drawn is between a load and a store.
func (n *simNode) anAcquire(storing bool) (prog *simProgram, ok bool) {
	if storing {
		prog = n.aProgram()
	}
	return prog, prog == nil || prog.temporaries == nil
}

// publish publishes, as an interval does.
func (n *simNode) publish() {
	if !n.isOpen() || !n.endMark() {
		return
	}
	ack := n.acks()
	call := n.area.Publish
	if n.publishes++; n.publishes%2 == 0 {
		call = n.publishNow
	}
	n.ask("publish", call, func(err error) {
		if err == nil {
			ack()
		}
	})
}

// publishNow publishes as the goroutine does that reads what attached programs ask for.
func (n *simNode) publishNow(ctx context.Context) error {
	done := make(chan error, 1)
	if !n.area.PublishNow(time.Hour, func(err error) { done <- err }) {
		return n.area.Publish(ctx)
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return &errs.Error{Op: "publish", Kind: errs.Timeout, Err: ctx.Err()} // the program goes on, and the publish too
	}
}

// wait waits for anything newer than what the node has, by a program, nil for one that reads.
func (n *simNode) wait(prog *simProgram) {
	if !n.isOpen() {
		return
	}
	v := n.area.Version() + 1
	call := func(ctx context.Context) error { return n.area.Wait(ctx, v, prog != nil) }
	if prog != nil && prog.at != nil {
		call = func(ctx context.Context) error { return prog.at.Wait(ctx, v) }
	}
	n.inCall(prog, "wait", call, func() {})
}

// inspect asks the homes what they know.
func (n *simNode) inspect() {
	n.ask("inspect", func(ctx context.Context) error {
		_, err := n.node.Inspect(ctx, simArea)
		return err
	}, nil)
}

// overdue is after how long fs lets a goroutine take over a fault.
const overdue = 20 * time.Millisecond

// waitFor has an attached program fault on a page that is not here.
func (n *simNode) waitFor(p dsm.PageIndex) {
	if n.faulting[p] {
		return
	}
	n.faulting[p] = true
	off := int64(p) * dsm.PageSize
	a := n.area
	n.ask("fault", func(ctx context.Context) error {
		came := make(chan struct{}, 2)
		there := func() {
			select {
			case came <- struct{}{}:
			default:
			}
		}
		if a.BeginFault(off, there) {
			select {
			case <-came:
				return nil
			case <-time.After(overdue):
			case <-ctx.Done():
			}
		}
		if err := a.Fault(ctx, off, there); !errs.Is(err, errs.NotExist) { // past the end
			return err
		}
		return nil
	}, func(error) { delete(n.faulting, p) })
}

// evict has a node of an area on demand give up pages, whether it is short of room or not.
func (n *simNode) evict() {
	set := make(map[dsm.ExtentIndex]dsm.PageSet)
	for _, p := range n.sim.hotPages() {
		if n.sim.rng.IntN(3) > 0 {
			continue
		}
		e, i := p.Extent()
		s := set[e]
		s.Add(i)
		set[e] = s
	}
	n.area.step(func() {
		for _, e := range []dsm.ExtentIndex{0, 1, 2, 3} {
			n.area.evictLocked(e, set[e], n.sim.rng.IntN(2) == 0)
		}
	})
}

// here reports whether page p is here for an attached program, which waits for it if not.
func (n *simNode) here(p dsm.PageIndex) (ok bool) {
	if !n.sim.bubble {
		return n.bring(p)
	}
	off := int64(p) * dsm.PageSize
	// No step may come between the look and a store: it could wake those who evict, and the page is not protected from them
	// here as it is in the memory of a program.
	n.sim.rest()
	if ok = n.hasPage(off); !ok {
		n.waitFor(p)
		n.sim.rest()
		ok = n.hasPage(off)
	}
	return ok
}

// hasMemory reports whether there is memory for page p: else programs get SIGBUS.
func (n *simNode) hasMemory(p dsm.PageIndex) bool {
	return n.area.mu.mem != nil && min(int64(p+1)*dsm.PageSize, n.ino.Size) <= n.area.mu.mem.Size()
}

// hasUpTo is the end of what there is memory for.
func (n *simNode) hasUpTo() int64 {
	if n.area.mu.mem == nil {
		return 0
	}
	return min(n.area.mu.mem.Size(), n.ino.Size)
}

// hasPage reports whether the page at off is here.
func (n *simNode) hasPage(off int64) bool {
	n.area.mu.Lock()
	defer n.area.mu.Unlock()
	return n.area.presentLocked(off, dsm.PageSize)
}

// page brings page p to the node, at rest, and returns what the working copy and the page cache
// have of it.
func (n *simNode) page(p dsm.PageIndex) (working []byte, cached *cachedPage) {
	for range 10 { // to make room for one page, another may leave; and the kernel may be told to drop the page that it has just read
		n.kernel.fault(p)
		n.sim.calm()
		if c := n.kernel.cache[p]; n.here(p) && c != nil {
			return n.area.mu.mem.Working(p), c
		}
		n.sim.calm()
	}
	n.sim.t.Fatalf("node %d: page %d does not stay", n.i, p)
	return nil, nil
}
