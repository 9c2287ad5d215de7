package locks

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// Cluster is what the locks of a node need of the catalog. When a command returns, the node has
// handled its events.
type Cluster interface {
	AskLock(ctx context.Context, ino dsm.Ino, r Request) error
	// SurrenderLocks ends the delegation of that term.
	SurrenderLocks(ctx context.Context, ino dsm.Ino, term uint64, granted []Lock, waiting []Request) error
	CancelLock(ctx context.Context, ino dsm.Ino, ticket uint64) error
	// LockStanding returns the file's state for this node, as of the last command that this node
	// has applied.
	LockStanding(ino dsm.Ino) Standing
	// GrantedLocks returns what the book has of the locks of this node's programs, as of the same command. LockedFiles returns the files of which it has some.
	GrantedLocks(ino dsm.Ino) []Lock
	LockedFiles() []dsm.Ino
	// DelegatedLocks returns the files that are delegated to this node, as of the same command.
	DelegatedLocks() []dsm.Ino
	// MayGrant reports whether it is certain that the cluster still counts on this node.
	MayGrant() bool
	// ShowLife asks the leader, and returns when this node has applied all that was committed before.
	ShowLife(ctx context.Context) error
}

// Config is what a Node needs.
type Config struct {
	Self    dsm.NodeID
	Cluster Cluster
	Log     *slog.Logger
	// Patience bounds how long a command may take.
	Patience time.Duration
	// First is the number after which requests are numbered: above those of any daemon before.
	First uint64
	// Resuming says that programs had locks when the daemon before was killed: Resume follows for each, and then Resumed. Until then no file is given up.
	Resuming bool
}

// Node keeps the locks of one node's programs. Its methods may be called by any goroutine.
type Node struct {
	cfg   Config
	life  context.Context // ends with Close
	end   context.CancelFunc
	tasks sync.WaitGroup

	dropped sync.Map     // the files that are dropped, for who has not the lock
	drops   atomic.Int64 // how many they are

	mu struct {
		lockrank.Mutex
		files    map[dsm.Ino]*file
		local    set // of the delegated files
		asked    map[uint64]*waiting
		last     uint64              // ticket
		resuming bool                // see Config
		resumed  map[Owner][]resumed // while resuming
		closed   bool
	}
}

// file is what a node knows about the locks of one file. Node.mu guards all of it, whichever of its methods is called.
type file struct {
	delegated    bool
	used         bool   // a program has asked for a lock since the delegation began
	term         uint64 // the delegation's
	stale        bool   // no program has acquired the area since the delegation began
	surrendering bool
	yielded      bool          // the book decides, until it has renewed the delegation
	dropped      bool          // the locks were dropped, and programs do not know
	releases     int           // calls under way for programs that have closed the file
	undoing      []*Lock       // given up, but not yet released: see undoLocked
	abandoned    []*waiting    // requests that nobody waits for, but that may still be granted: see abandonLocked
	again        map[Owner]int // commands under way that ask again for an owner: see repeatLocked
	// owners have locks, or may have some: true if one was granted, and false if one was asked for.
	owners  map[Owner]bool
	changed chan struct{} // closed at the next change; nil if nobody waits for one
}

// waiting is a request that has no answer yet.
type waiting struct {
	ino       dsm.Ino
	req       Request
	local     bool // in the local table
	entered   bool // it waits in the book
	owed      bool // it is to be asked again when the file has been surrendered
	asking    int  // commands that ask again, under way
	abandoned bool // nobody waits for the answer
	stale     bool // the area must be acquired before the program goes on
	others    bool // this node has heard of locks of others since it asked; final when it is answered
	term      uint64
	done      chan Answer
}

// unasked reports whether the request is to be asked again, or is being asked. Until that is over it cannot be cancelled: the
// cancellation might overtake it.
func (w *waiting) unasked() bool { return w.owed || w.asking > 0 }

// NewNode returns a Node without any locks.
func NewNode(cfg Config) *Node {
	n := &Node{cfg: cfg}
	n.life, n.end = context.WithCancel(context.Background())
	n.mu.Init("locks.Node")
	n.mu.files = make(map[dsm.Ino]*file)
	n.mu.asked = make(map[uint64]*waiting)
	n.mu.local.init()
	n.mu.last, n.mu.resuming, n.mu.resumed = cfg.First, cfg.Resuming, make(map[Owner][]resumed)
	return n
}

// Close ends all waiting.
func (n *Node) Close() {
	n.end()
	n.mu.Lock()
	n.mu.closed = true
	n.mu.Unlock()
	n.tasks.Wait()
}

// runLocked runs f in the background, unless the node is closed.
func (n *Node) runLocked(f func()) {
	if !n.mu.closed {
		n.tasks.Go(f)
	}
}

// patient returns the context for a command that no program waits for.
func (n *Node) patient() (context.Context, context.CancelFunc) {
	return context.WithTimeout(n.life, n.cfg.Patience)
}

func (n *Node) fileLocked(ino dsm.Ino) *file {
	f := n.mu.files[ino]
	if f == nil {
		f = &file{owners: make(map[Owner]bool)}
		n.mu.files[ino] = f
	}
	return f
}

// tidyLocked forgets the file if there is nothing left to remember about it.
func (n *Node) tidyLocked(ino dsm.Ino) {
	f := n.mu.files[ino]
	if f == nil || f.delegated || f.releases > 0 || len(f.undoing) > 0 || len(f.abandoned) > 0 || len(f.again) > 0 || f.changed != nil || len(f.owners) > 0 {
		return
	}
	delete(n.mu.files, ino)
}

func (f *file) hear() <-chan struct{} {
	if f.changed == nil {
		f.changed = make(chan struct{})
	}
	return f.changed
}

func (f *file) ring() {
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

// Owner returns the owner with the kernel's number id on this node.
func (n *Node) Owner(id uint64, flock bool) Owner {
	return Owner{Node: n.cfg.Self, ID: id, Flock: flock}
}

// HasLocks reports whether the owner may have locks of the file.
func (n *Node) HasLocks(ino dsm.Ino, o Owner) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	f := n.mu.files[ino]
	if f == nil {
		return false
	}
	_, ok := f.owners[o]
	return ok
}

// Granted returns the locks that the owner has of a file.
func (n *Node) Granted(ino dsm.Ino, o Owner) []Lock {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := n.cfg.Cluster.GrantedLocks(ino)
	if t := n.mu.local.tables[ino]; t != nil {
		all = t.granted
	}
	var its table
	for _, l := range all {
		if l.Owner == o {
			its.granted = append(its.granted, l)
		}
	}
	if f := n.mu.files[ino]; f != nil {
		for _, l := range f.undoing {
			if l.Owner == o {
				its.place(*l)
			}
		}
	}
	return its.granted
}

// Releasing says that a program has closed the file and that its locks are about to be released.
// Until done is called, other programs of this node that ask for a lock wait: on a local filesystem
// they would not see these locks any more.
func (n *Node) Releasing(ino dsm.Ino) (done func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fileLocked(ino).releases++
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		f := n.mu.files[ino]
		f.releases--
		f.ring()
		n.tidyLocked(ino)
	}
}

// Opening says that a program of this node is about to open the file, so that the area will be
// acquired. Who opens it calls acquired after that, and nobody has to do it again for the first lock
// of a delegation that began with the open.
func (n *Node) Opening(ino dsm.Ino) (acquired func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f := n.mu.files[ino]
	if f == nil || !f.delegated || !f.stale || n.mu.resuming { // what is opened again is not acquired
		return func() {}
	}
	term := f.term
	return func() { n.acquired(ino, term) }
}

// Figures returns the number of files delegated to this node and of requests that wait.
func (n *Node) Figures() (delegated, waiting int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, f := range n.mu.files {
		if f.delegated {
			delegated++
		}
	}
	return delegated, len(n.mu.asked)
}

// over says that the file is not delegated any more.
func (f *file) over() { f.delegated, f.surrendering, f.yielded = false, false, false }

// surrenderLocked gives up a delegation. Until that is done the file's local table does not change.
func (n *Node) surrenderLocked(ino dsm.Ino) {
	f := n.mu.files[ino]
	if f.surrendering || n.mu.resuming {
		return
	}
	f.surrendering = true
	term := f.term
	var granted []Lock
	var queue []Request
	if t := n.mu.local.tables[ino]; t != nil {
		granted, queue = slices.Clone(t.granted), slices.Clone(t.queue)
	}
	n.runLocked(func() {
		n.insist("surrender", func(ctx context.Context) error { return n.cfg.Cluster.SurrenderLocks(ctx, ino, term, granted, queue) })
	})
}

// surrenderWaitsLocked surrenders the files that programs of this node wait for, because other
// programs of this node wait in the book: only the book, which then sees all of these waits, can
// find a circle among them.
func (n *Node) surrenderWaitsLocked() {
	for _, ino := range slices.Sorted(maps.Keys(n.mu.local.tables)) {
		if len(n.mu.local.tables[ino].queue) > 0 {
			n.surrenderLocked(ino)
		}
	}
}

// insist repeats a command until it succeeds or the node is closed.
func (n *Node) insist(what string, command func(ctx context.Context) error) {
	for try := 0; n.life.Err() == nil; try++ {
		ctx, cancel := n.patient()
		err := command(ctx)
		cancel()
		if err == nil || errs.Is(err, errs.Closed) || errs.Is(err, errs.NotExist) {
			return
		}
		n.cfg.Log.Warn("locks: "+what, "err", err)
		wait := time.NewTimer(time.Second)
		select {
		case <-wait.C:
		case <-n.life.Done():
			wait.Stop()
		}
	}
}
