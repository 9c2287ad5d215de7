package fs

import (
	"context"
	"syscall"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/lockrank"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// notifier tells the kernel what other nodes changed. Each area has its own worker while there is
// something to tell, so that an area whose page is being read from a slow node does not delay
// others. Workers hold no lock while they talk to the kernel, and the handlers of READ, WRITE and
// SETATTR never wait for them.
type notifier struct {
	b      *bridge
	server kernelCache
	// locksFirst says that the kernel has the lock of a directory before it says that it does not know a name there.
	locksFirst bool
}

// kernelCache is the part of fuse.Server that sends notifications; tests replace it.
type kernelCache interface {
	InodeNotify(node uint64, off int64, length int64) fuse.Status
	EntryNotify(parent uint64, name string) fuse.Status
	InodeNotifyStoreCache(node uint64, offset int64, data []byte) fuse.Status
}

// noticeWorker is the worker of one area.
type noticeWorker struct {
	mu struct {
		lockrank.Mutex
		running bool
		again   bool          // kicked while it was running
		attr    bool          // the attributes changed on another node
		asked   chan struct{} // closed when the attributes have been refreshed; nil if nobody waits
		under   chan struct{} // closed when the notice under way is done; nil if none is
	}
}

// kick makes the area's worker look for notices.
func (n *notifier) kick(a *openArea) {
	if a.current() == nil {
		return // open will kick again
	}
	s := &a.notices
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.running {
		s.mu.again = true
		return
	}
	s.mu.running = true
	n.b.background.run(func() { n.run(a) })
}

// attrChanged makes the area's worker refresh what the kernel knows about the inode.
func (n *notifier) attrChanged(a *openArea) {
	a.sizeChanges.Add(1)
	a.notices.mu.Lock()
	a.notices.mu.attr = true
	a.notices.mu.Unlock()
	n.kick(a)
}

// drop makes the kernel drop all pages of an area.
func (n *notifier) drop(a *openArea) {
	n.log(a, "invalidate", n.server.InodeNotify(uint64(a.id), 0, 0))
}

func (n *notifier) run(a *openArea) {
	s := &a.notices
	area := a.current()
	for {
		s.mu.Lock()
		attr, asked := s.mu.attr, s.mu.asked
		s.mu.attr, s.mu.again, s.mu.asked = false, false, nil
		s.mu.Unlock()
		if attr {
			n.refresh(a)
		}
		if asked != nil {
			close(asked)
		}
		for n.deliverNext(a, area) {
		}
		s.mu.Lock()
		if !s.mu.again && !s.mu.attr {
			s.mu.running = false
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
	}
}

// deliverNext tells the kernel the next notice; ok is false if there is none.
func (n *notifier) deliverNext(a *openArea, area Area) (ok bool) {
	under := make(chan struct{})
	a.notices.setUnder(under) // before the notice is taken: see delivered
	defer close(under)
	defer a.notices.setUnder(nil)
	notice, ok := area.NextNotice()
	if !ok {
		return false
	}
	n.deliver(a, notice)
	area.NoticeDone(notice)
	return true
}

func (n *notifier) deliver(a *openArea, notice Notice) {
	node := uint64(a.id)
	if notice.Data == nil {
		n.log(a, "invalidate", n.server.InodeNotify(node, notice.Off, notice.Len))
		n.b.count.invalidated.Add(1)
		return
	}
	a.kernelPages.Store(true)
	n.log(a, "store", n.server.InodeNotifyStoreCache(node, notice.Off, notice.Data))
	a.kernelPages.Store(true) // again: the first open of the mount may have come in between
	n.b.count.stored.Add(1)
	// A store past the end makes the file longer for this kernel. If a truncation overtook the
	// store, take that back: a READ there then returns less.
	if size, _ := a.noted(); notice.Off+int64(len(notice.Data)) > size && !a.sizeStale() {
		n.log(a, "invalidate", n.server.InodeNotify(node, size, 0))
	}
}

// refresh asks for the inode and drops what became wrong by a change on another node. A shrink that
// was followed by a growth shows only in the generation.
func (n *notifier) refresh(a *openArea) {
	ctx, cancel := n.b.lasting()
	defer cancel()
	oldSize, _ := a.noted()
	changes := a.sizeChanges.Load() // before asking: of those from now on the answer may say nothing
	inode, err := n.b.cfg.Names.Getattr(ctx, dsm.Ino(a.id))
	if err != nil {
		n.b.log.Debug("cannot refresh attributes", "area", a.id, "err", err)
		return
	}
	a.note(inode)
	a.sizeHeard.Store(changes) // only now: until then a write(2) must not go by what was noted before
	n.b.intervals.changed(a)
	if uint64(inode.Gen) > a.kernelGen.Load() || inode.Size < oldSize {
		// All of it: meanwhile the area may have been smaller than it is now.
		ended := a.current().KernelDrops()
		n.drop(a)
		ended()
		a.kernelGen.Store(uint64(inode.Gen))
	}
	if inode.Size == a.kernelSize.Load() || n.b.cfg.Mountpoint == "" {
		return
	}
	told := !a.direct.on.Load() // otherwise the next stat will ask; mappings end where the memfd does
	if told {
		if err := n.b.harvest.Stat(ctx, a); err != nil {
			n.b.log.Debug("the kernel is not made to ask for the size", "area", a.id, "err", err)
			told = false
		}
	}
	if !told {
		n.log(a, "invalidate attributes", n.server.InodeNotify(uint64(a.id), -1, 0))
		return
	}
	a.kernelSize.Store(inode.Size)
}

// sizeLimit is how long a stat waits until the kernel has been told of a size.
const sizeLimit = 2 * time.Second

// tellSize returns when the kernel knows how long the area is, or after sizeLimit. The answer to a
// GETATTR does not always achieve that: if it meets a notification for the inode, the program sees
// the new size but the inode keeps the old one, and the program gets SIGBUS for memory that it has
// just been told of (K37). So the area's worker, which sends all notifications, makes the harvest
// child ask between two of them.
func (n *notifier) tellSize(ctx context.Context, a *openArea) {
	if a.handles() == 0 {
		return // nobody has it mapped, and there is no worker
	}
	ctx, cancel := context.WithTimeout(ctx, sizeLimit)
	defer cancel()
	s := &a.notices
	s.mu.Lock()
	if s.mu.asked == nil {
		s.mu.asked = make(chan struct{})
	}
	asked := s.mu.asked
	a.sizeChanges.Add(1)
	s.mu.attr = true // set together with asked, or the worker might answer without asking
	s.mu.Unlock()
	n.kick(a)
	select {
	case <-asked:
	case <-ctx.Done():
	}
}

// log reports what the kernel refused. ENOENT means an inode that the kernel has forgotten.
func (n *notifier) log(a *openArea, what string, st fuse.Status) {
	if st.Ok() || st == fuse.ENOENT || st == fuse.Status(syscall.ENODEV) {
		return
	}
	n.b.log.Debug("the kernel refused a notification", "what", what, "area", a.id, "errno", st.String())
}

// forget makes the kernel drop a name, if it has it. It waits for the lock of the directory; ok says that it has had it.
func (n *notifier) forget(p place) (ok bool) {
	st := n.server.EntryNotify(uint64(p.dir), p.name)
	if ok = st.Ok() || st == fuse.ENOENT && n.locksFirst; !ok && st != fuse.ENOENT {
		n.b.log.Debug("the kernel refused a notification", "what", "forget a name", "dir", p.dir, "name", p.name, "errno", st.String())
	}
	return ok
}

func (s *noticeWorker) setUnder(c chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.under = c
}

// delivered returns when the notice that may be under way now has been delivered. Later ones may be
// under way by then.
func (s *noticeWorker) delivered(ctx context.Context) error {
	s.mu.Lock()
	under := s.mu.under
	s.mu.Unlock()
	if under == nil {
		return nil
	}
	select {
	case <-under:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
