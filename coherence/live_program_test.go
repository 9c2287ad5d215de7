package coherence

import (
	"context"
	"os"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/pages"
)

// openReader opens the area for reading, if the node has it not open so.
func (n *liveNode) openReader() {
	if n.reader || n.entering != nil {
		return
	}
	n.enter("open to read", func(ctx context.Context) error {
		_, err := n.node.Open(ctx, simArea, false)
		return err
	}, func() { n.reader = true })
}

// openWriter opens the area for writing.
func (n *liveNode) openWriter() {
	if n.writer || n.entering != nil {
		return
	}
	n.enter("open to write", func(ctx context.Context) error {
		_, err := n.node.Open(ctx, simArea, true)
		return err
	}, func() { n.writer = true })
}

// attach has a program map the working copy.
func (n *liveNode) attach() {
	if n.attached || n.entering != nil {
		return
	}
	compare := n.cluster.rng.IntN(3) == 0
	var t *Attachment
	n.enter("attach", func(ctx context.Context) error {
		a, err := n.node.Open(ctx, simArea, false)
		if err != nil {
			return err
		}
		var f *os.File
		if t, f, err = a.Attach(ctx, 0, true); err != nil {
			a.Close(false)
			return err
		}
		return f.Close()
	}, func() {
		n.attached = true
		n.found = make(map[dsm.PageIndex]bool)
		var source pages.Source = n
		if compare {
			source = nil
		}
		n.attachment, n.untrack = t, t.Track(source, 0, simSize)
	})
}

// enter does one open. snapshot is what was published before it began.
func (n *liveNode) enter(what string, call func(ctx context.Context) error, done func()) {
	first := !n.reader && !n.writer && !n.attached
	began := n.acked()
	n.entering = n.ask(what, call, func(err error) {
		n.entering = nil
		if err != nil {
			return
		}
		if first { // the kernel keeps nothing over an open that is the first
			n.kernel.finishNotices()
			clear(n.kernel.cache)
		}
		done()
		n.sees(began, what, false)
	})
}

// Scan is that of a pages.Source: the program is the node's.
func (n *liveNode) Scan(stored, _ func(off, n int64)) error {
	for _, p := range hot {
		if n.found[p] {
			stored(int64(p)*dsm.PageSize, dsm.PageSize)
		}
	}
	clear(n.found)
	return nil
}

// Disarm is that of a pages.Source.
func (n *liveNode) Disarm() error { return nil }

// Arm is that of a pages.Source.
func (n *liveNode) Arm() error { return nil }

// leaveAttached ends the attached program.
func (n *liveNode) leaveAttached() {
	if !n.attached || n.entering != nil {
		return
	}
	n.attached = false
	n.lastClose()
	n.untrack()
	n.attachment.Detach()
	n.area.Close(false)
}

// leaveWriter closes the handle for writing.
func (n *liveNode) leaveWriter() {
	if !n.writer || n.entering != nil || len(n.kernel.past) > 0 {
		return
	}
	n.kernel.harvest(1) // the kernel delivers every store before RELEASE
	n.writer = false
	n.lastClose()
	n.area.Close(true)
}

// leaveAll closes all, or gives up what is about to open.
func (n *liveNode) leaveAll() {
	if n.entering != nil {
		n.entering.giveUp()
		n.cluster.rest()
	}
	n.leaveAttached()
	n.leaveWriter()
	if n.reader && n.entering == nil {
		n.reader = false
		n.lastClose()
		n.area.Close(false)
	}
}

// lastClose gives up what programs still ask for when the last of them closes the area: nothing outlives its handle.
func (n *liveNode) lastClose() {
	if n.isOpen() {
		return
	}
	for _, q := range n.cluster.requests {
		if q.n == n && q.what != "inspect" {
			q.giveUp()
		}
	}
	n.cluster.rest()
}

// isOpen reports whether a program of the node has the area open.
func (n *liveNode) isOpen() bool { return n.reader || n.writer || n.attached }

// sync is msync by a program that stores, or that reads.
func (n *liveNode) sync(storing bool) {
	if !n.isOpen() {
		return
	}
	began, mine := n.acked(), n.delivered()
	n.inCall(storing, "sync", n.area.Sync, func() {
		n.cluster.ack(mine)
		n.sees(began, "sync", storing)
	})
}

// mayStore reports whether a program of the node stores.
func (n *liveNode) mayStore() bool { return n.writer || n.attached }

// inCall has a program call something that acquires.
func (n *liveNode) inCall(storing bool, what string, call func(ctx context.Context, storing bool) error, done func()) {
	n.ask(what, func(ctx context.Context) error { return call(ctx, storing) }, func(err error) {
		if err == nil {
			done()
		}
	})
}

// publish publishes, as an interval does.
func (n *liveNode) publish() {
	if !n.isOpen() {
		return
	}
	mine := n.delivered()
	n.ask("publish", n.area.Publish, func(err error) {
		if err == nil {
			n.cluster.ack(mine)
		}
	})
}

// acquire acquires, for a program that stores, or that reads.
func (n *liveNode) acquire(storing bool) {
	if !n.isOpen() {
		return
	}
	began := n.acked()
	n.inCall(storing, "acquire", n.area.Acquire, func() { n.sees(began, "acquire", storing) })
}

// wait waits for anything newer than what the node has.
func (n *liveNode) wait() {
	if n.isOpen() {
		v := n.area.Version()
		storing := n.mayStore() && n.cluster.rng.IntN(2) == 0
		n.ask("wait", func(ctx context.Context) error { return n.area.Wait(ctx, v+1, storing) }, nil)
	}
}

// inspect asks the homes what they know.
func (n *liveNode) inspect() {
	n.ask("inspect", func(ctx context.Context) error {
		_, err := n.node.Inspect(ctx, simArea)
		return err
	}, nil)
}

// overdue is after how long fs lets a goroutine take over a fault.
const overdue = 20 * time.Millisecond

// waitFor has an attached program fault on a page that is not here.
func (n *liveNode) waitFor(p dsm.PageIndex) {
	if n.faulting[p] {
		return
	}
	n.faulting[p] = true
	off := int64(p) * dsm.PageSize
	n.ask("fault", func(ctx context.Context) error {
		came := make(chan struct{}, 2)
		there := func() {
			select {
			case came <- struct{}{}:
			default:
			}
		}
		if n.area.BeginFault(off, there) {
			select {
			case <-came:
				return nil
			case <-time.After(overdue):
			}
		}
		return n.area.Fault(ctx, off, there)
	}, func(error) { delete(n.faulting, p) })
}
