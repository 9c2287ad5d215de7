package head

import (
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/dsmfs/dsmfs/internal/lockrank"
	"golang.org/x/sys/unix"
)

// Keeper has the life lines of Pages: a thread that does nothing else and lives as long as the
// daemon. mu guards its list.
type Keeper struct {
	tid  uint32 // 0: this kernel has no robust futexes, and programs look at their sockets
	end  chan struct{}
	done chan struct{}

	mu struct {
		lockrank.Mutex
		list robustList
	}
}

// link and robustList are the kernel's struct robust_list and robust_list_head. The kernel reads them when the
// thread ends, so they are right at any moment.
type link struct{ next atomic.Pointer[link] }

type robustList struct {
	first   link
	offset  int64 // from a link to its futex
	pending uintptr
}

// waiters in a futex's word makes the kernel wake somebody.
const waiters = 0x80000000

// NewKeeper starts the thread.
func NewKeeper() *Keeper {
	k := &Keeper{end: make(chan struct{}), done: make(chan struct{})}
	k.mu.Init("head.Keeper")
	k.mu.list.first.next.Store(&k.mu.list.first)
	k.mu.list.offset = int64(os.Getpagesize())
	ready := make(chan uint32)
	go k.live(ready)
	k.tid = <-ready
	return k
}

// live is the thread. It is not given back to the runtime, which has no list of this kind.
func (k *Keeper) live(ready chan<- uint32) {
	runtime.LockOSThread()
	defer close(k.done)
	tid := uint32(unix.Gettid())
	_, _, e := unix.RawSyscall(unix.SYS_SET_ROBUST_LIST, uintptr(unsafe.Pointer(&k.mu.list)), unsafe.Sizeof(k.mu.list), 0)
	if e != 0 {
		tid = 0
	}
	ready <- tid
	<-k.end
	_, _, _ = unix.RawSyscall(unix.SYS_SET_ROBUST_LIST, 0, unsafe.Sizeof(k.mu.list), 0)
}

func (k *Keeper) link(p *Pages) {
	if k.tid == 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	atomic.StoreUint32(p.life(), k.tid|waiters)
	first := &k.mu.list.first
	p.link().next.Store(first.next.Load())
	first.next.Store(p.link())
}

func (k *Keeper) drop(p *Pages) {
	if k.tid == 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for at := &k.mu.list.first; at.next.Load() != &k.mu.list.first; at = at.next.Load() {
		if at.next.Load() == p.link() {
			at.next.Store(p.link().next.Load())
			return
		}
	}
}

// Close ends the thread. All Pages are closed, or have been ended.
func (k *Keeper) Close() {
	close(k.end)
	<-k.done
}
