package fs

import (
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// toldOf is called before the kernel is told that the inode is at p. It returns under which number. If ok is false
// the answer is ESTALE, which is not so for the last try.
func (b *bridge) toldOf(r *request, i dsm.Inode, p place, who func(*request) teller) (n nodeID, ok bool) {
	if i.Kind != dsm.KindDir {
		b.walIndexes.told(i, p)
		return nodeID(i.Ino), true
	}
	if n, ok := b.aliases.known(i.Ino, p); ok {
		return n, true
	}
	by := who(r)
	limit := time.NewTimer(b.aliases.limit)
	defer limit.Stop()
	for {
		t := b.aliases.tell(i.Ino, p, by)
		if t.begun {
			b.background.run(func() { b.leave(t.leave) })
		}
		if t.leave == nil {
			if !t.sure && by == firstTry {
				b.look(r, t.node, p, nil)
			}
			return t.node, true
		}
		select {
		case <-t.leave.done:
			if t.leave.ok {
				continue
			}
		case <-limit.C:
		case <-r.Done():
		}
		if by == firstTry {
			b.look(r, t.node, p, t.leave.done)
		}
		return 0, false
	}
}

// leave makes the kernel forget where a directory was.
func (b *bridge) leave(l *leaving) {
	p := l.from
	if !l.named {
		p.name = "/" // of no entry: the lock of the directory is what matters
	}
	l.ok = b.notify.forget(p)
	close(l.done)
}

// look has the child look at a directory that has been moved to p, once after is closed. The thread may be looking up once more then.
func (b *bridge) look(r *request, n nodeID, p place, after <-chan struct{}) {
	b.retries.set(r.tid)
	walked := b.walks.begin(r.tid)
	b.background.run(func() {
		defer walked()
		if after != nil {
			<-after
		}
		b.walk(n, p)
	})
}

// tellerOf returns who looks up a name.
func (b *bridge) tellerOf(r *request) teller {
	switch {
	case b.harvest.IsChild(r.tid): // it has no locks, and cannot look while it has
		return theChild
	case r.tid == 0 || b.retries.has(r.tid) || !b.walksTwice(r): // 0: nobody knows
		return lastTry
	}
	return firstTry
}

// makerOf returns who has made a directory. A call that made one would make it once more at ESTALE.
func makerOf(*request) teller { return lastTry }
