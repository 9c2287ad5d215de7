package locks

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// Cluster is the catalog as a node's locks need it. When a command returns, the node has been told of
// its events.
type Cluster interface {
	AskLock(ctx context.Context, ino dsm.Ino, r Request) error
	SurrenderLocks(ctx context.Context, ino dsm.Ino, held []Lock, waiting []Request) error
	CancelLock(ctx context.Context, ino dsm.Ino, ticket uint64) error
	// LockStanding is what this node has applied.
	LockStanding(ino dsm.Ino) Standing
	// MayGrant reports whether the leader has answered this node within GrantFor.
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
}

// Node is the locks of one node's programs. Its methods may be called by any goroutine.
type Node struct {
	cfg   Config
	life  context.Context // ends with Close
	end   context.CancelFunc
	tasks sync.WaitGroup

	mu struct {
		lockrank.Mutex
		files  map[dsm.Ino]*file
		local  set // of the delegated files
		asked  map[uint64]*waiting
		last   uint64 // ticket
		timer  *time.Timer
		closed bool
	}
}

// file is what a node knows of the locks of one file.
type file struct {
	delegated    bool
	term         uint64 // counts the delegations
	stale        bool   // nobody has acquired the area since it was delegated
	surrendering bool
	lost         bool // the locks were dropped, and programs do not know
	releases     int  // under way, by programs that have closed the file
	// owners have locks, or may have some.
	owners  map[Owner]struct{}
	changed chan struct{} // closed at a change, if anybody waits for one
}

// waiting is a request that is not answered.
type waiting struct {
	ino       dsm.Ino
	req       Request
	local     bool // in the local table
	entered   bool // it waits in the book
	abandoned bool // nobody waits for the answer
	stale     bool // the area must be acquired before the program goes on
	term      uint64
	done      chan Answer
}

// NewNode returns the locks of a node whose programs have none.
func NewNode(cfg Config) *Node {
	n := &Node{cfg: cfg}
	n.life, n.end = context.WithCancel(context.Background())
	n.mu.Init("locks.Node")
	n.mu.files = make(map[dsm.Ino]*file)
	n.mu.asked = make(map[uint64]*waiting)
	n.mu.local.init()
	return n
}

// Close ends all waiting.
func (n *Node) Close() {
	n.end()
	n.mu.Lock()
	n.mu.closed = true
	if n.mu.timer != nil {
		n.mu.timer.Stop()
	}
	n.mu.Unlock()
	n.tasks.Wait()
}

// run does something in the background, unless the node is closed.
func (n *Node) runLocked(f func()) {
	if !n.mu.closed {
		n.tasks.Go(f)
	}
}

// patient returns a context for a command that somebody other than a program waits for.
func (n *Node) patient() (context.Context, context.CancelFunc) {
	return context.WithTimeout(n.life, n.cfg.Patience)
}

func (n *Node) fileLocked(ino dsm.Ino) *file {
	f := n.mu.files[ino]
	if f == nil {
		f = &file{owners: make(map[Owner]struct{})}
		n.mu.files[ino] = f
		n.keepAliveLocked()
	}
	return f
}

// tidyLocked forgets the file if there is nothing to know of it.
func (n *Node) tidyLocked(ino dsm.Ino) {
	f := n.mu.files[ino]
	if f == nil || f.delegated || f.releases > 0 || f.changed != nil || len(f.owners) > 0 {
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

// Owner returns the owner that the kernel of this node calls id.
func (n *Node) Owner(id uint64, flock bool) Owner {
	return Owner{Node: n.cfg.Self, ID: id, Flock: flock}
}

// Holds reports whether the owner may have locks of the file.
func (n *Node) Holds(ino dsm.Ino, o Owner) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	f := n.mu.files[ino]
	if f == nil {
		return false
	}
	_, ok := f.owners[o]
	return ok
}

// Releasing says that a program has closed the file and locks of it are about to go. Until
// the returned function is called others of this node wait, as they would not see these locks on a local filesystem.
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

// Figures counts what there is: files delegated to this node, and requests that wait.
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

// renewEvery is how often a node that has locks shows the leader a sign of life.
const renewEvery = time.Second

// keepAliveLocked shows the leader signs of life as long as there is anything to lose.
func (n *Node) keepAliveLocked() {
	if n.mu.closed || len(n.mu.files) == 0 {
		return
	}
	if n.mu.timer == nil {
		n.mu.timer = time.AfterFunc(renewEvery, n.renew)
		return
	}
	n.mu.timer.Reset(renewEvery)
}

func (n *Node) renew() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.mu.files) == 0 {
		n.mu.timer = nil
		return
	}
	n.runLocked(func() {
		ctx, cancel := context.WithTimeout(n.life, renewEvery)
		err := n.cfg.Cluster.ShowLife(ctx)
		cancel()
		if err != nil && n.life.Err() == nil {
			n.cfg.Log.Debug("no sign of life from the leader", "err", err)
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		n.keepAliveLocked()
	})
}

// surrenderLocked gives a delegation up. Until that is done nothing changes in the file's local table.
func (n *Node) surrenderLocked(ino dsm.Ino) {
	f := n.mu.files[ino]
	if f.surrendering {
		return
	}
	f.surrendering = true
	var held []Lock
	var queue []Request
	if t := n.mu.local.tables[ino]; t != nil {
		held, queue = slices.Clone(t.held), slices.Clone(t.queue)
	}
	n.runLocked(func() {
		n.insist("surrender", func(ctx context.Context) error { return n.cfg.Cluster.SurrenderLocks(ctx, ino, held, queue) })
	})
}

// surrenderWaitsLocked surrenders the files that programs of this node wait for while others of them wait
// in the book: only one who sees both finds a circle of them.
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
