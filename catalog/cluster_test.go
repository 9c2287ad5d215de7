package catalog

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/hold"
	"github.com/dsmfs/dsmfs/internal/transport"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/locks"
)

// patience bounds everything in a test that waits. Nothing is asserted of how
// long things take.
const patience = 60 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func patient(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// node is a catalog on real sockets.
type node struct {
	dropsFor atomic.Pointer[func(dsm.Ino)] // called when somebody waits for the kernel to drop what was truncated of a file
	*Catalog
	net      *transport.Transport
	observer *recorder
	streams  *ears
	warned   chan string // what the catalog warned of
	stopped  sync.Once
	via      *callers
	yields   atomic.Pointer[yields] // nil: none
	mute     atomic.Bool            // asked to yield, it says nothing
	silent   atomic.Pointer[silences]
	slow     atomic.Bool // it fills no backups yet
}

// silences is Config.Silences.
type silences map[dsm.NodeID]time.Duration

func (n *node) silences() map[dsm.NodeID]time.Duration {
	if s := n.silent.Load(); s != nil {
		return *s
	}
	return nil
}

// yields is Config.Yield.
type yields func(ino dsm.Ino, term uint64) (locks.Yield, bool)

func (n *node) yieldLocks(ino dsm.Ino, term uint64) (y locks.Yield, ok bool) {
	if f := n.yields.Load(); f != nil {
		return (*f)(ino, term)
	}
	return y, false
}

// callers is the Caller of a node. A test may replace what is behind it while the node runs.
type callers struct{ to atomic.Pointer[Caller] }

func (c *callers) use(to Caller) { c.to.Store(&to) }

func (c *callers) Call(ctx context.Context, addr string, req any) (any, error) {
	return (*c.to.Load()).Call(ctx, addr, req)
}

func (c *callers) Tell(ctx context.Context, addr string, req any) (<-chan error, func()) {
	return (*c.to.Load()).Tell(ctx, addr, req)
}

func (c *callers) Ask(limit time.Duration, addr string, req any, done func(reply any, err error)) bool {
	return (*c.to.Load()).Ask(limit, addr, req, done)
}

// warnings is the catalog's log, which hands warnings out too. Those of raft, which
// logs with attributes, it does not.
type warnings struct {
	slog.Handler
	to chan string
}

func (w warnings) Enabled(context.Context, slog.Level) bool { return true }

func (w warnings) Handle(ctx context.Context, r slog.Record) error {
	if r.Level == slog.LevelWarn {
		select {
		case w.to <- r.Message:
		default:
		}
	}
	if !w.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return w.Handler.Handle(ctx, r)
}

// recorder is an Observer that keeps what it is told, and plays the data plane:
// it wakes a goroutine that reports the slots that come to the node.
type recorder struct {
	mu      sync.Mutex
	changed []areaChange
	removed []dsm.Ino
	epochs  []dsm.Epoch
	resets  int
	views   chan struct{}
	first   atomic.Pointer[func()] // called before a change is taken in
}

func (r *recorder) AreaChanged(before, after dsm.Inode) {
	if f := r.first.Load(); f != nil {
		(*f)()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changed = append(r.changed, areaChange{before, after})
}

func (r *recorder) AreaRemoved(ino dsm.Ino) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.removed = append(r.removed, ino)
}

func (r *recorder) ViewChanged(v *dsm.View) {
	r.mu.Lock()
	r.epochs = append(r.epochs, v.Epoch)
	r.mu.Unlock()
	r.wake()
}

// LocksChanged is for nobody.
func (r *recorder) LocksChanged([]locks.Event) {}

func (r *recorder) Reset() {
	r.mu.Lock()
	r.resets++
	r.mu.Unlock()
	r.wake()
}

// check checks that the epochs came in order.
func (r *recorder) check(t testing.TB) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.IsSorted(r.epochs) {
		t.Errorf("views came in the order %v", r.epochs)
	}
}

func (r *recorder) wake() {
	select {
	case r.views <- struct{}{}:
	default:
	}
}

func testLog(t testing.TB, name string) *slog.Logger {
	if os.Getenv("CATALOG_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("node", name)
}

// start starts a node that knows nothing yet. Its slots are handed over as soon
// as they come.
func start(t testing.TB, name string) *node {
	t.Helper()
	return startAt(t, name, "127.0.0.1:0")
}

// startAt starts the node at an address that it must have.
func startAt(t testing.TB, name, listen string) *node {
	t.Helper()
	return startHeld(t, name, listen, dsm.NodeID(rand.Uint64()|1), nil)
}

// startHeld starts the node with what is held.
func startHeld(t testing.TB, name, listen string, id dsm.NodeID, held *hold.Memory) *node {
	t.Helper()
	n := &node{observer: &recorder{views: make(chan struct{}, 1)}, warned: make(chan string, 64), via: new(callers)}
	var err error
	inc := uint64(0)
	if held != nil {
		inc = held.Word(hold.Inc).Load()
	}
	ready := make(chan struct{})
	n.net, err = transport.Listen(transport.Config{
		Self: id, Listen: listen, Log: slog.New(slog.DiscardHandler),
		OnNow: func(_ dsm.NodeID, req any) (any, bool) {
			<-ready
			if _, ok := req.(*wire.YieldLocks); ok && n.mute.Load() {
				return nil, true
			}
			return n.OnNow(req)
		},
		OnCall: func(ctx context.Context, from dsm.NodeID, req any) (any, error) {
			<-ready
			return n.OnCall(ctx, from, req)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	n.via.use(n.net)
	n.streams = newEars(n.net.RaftLayer())
	belongs := func(id dsm.ClusterID) {
		if held != nil {
			held.Word(hold.Cluster).Store(uint64(id))
		}
		n.net.SetCluster(id)
	}
	n.Catalog, err = New(Config{
		Self:   dsm.Member{ID: id, Name: name, Addr: n.net.Addr(), Budget: 2 << 30, Held: held != nil, Inc: inc},
		Caller: n.via, Streams: n.streams, Observer: n.observer, OnCluster: belongs, Yield: n.yieldLocks, Silences: n.silences, Held: held, Shrunk: n.kernelDrops,
		Log: slog.New(warnings{testLog(t, name).Handler(), n.warned}),
	})
	if err != nil {
		t.Fatal(err)
	}
	n.grants.quiet = 0 // leases come and go with every change
	close(ready)
	stop := make(chan struct{})
	var tasks sync.WaitGroup
	tasks.Go(func() { n.handOver(stop) })
	t.Cleanup(func() {
		close(stop)
		n.stop()
		tasks.Wait()
		if err := n.mu.state.check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		n.observer.check(t)
	})
	return n
}

// stop stops the node as a crash would: nobody is told.
func (n *node) stop() {
	n.stopped.Do(func() {
		n.net.Close()
		n.Catalog.Close()
	})
}

// handOver plays the data plane.
func (n *node) handOver(stop <-chan struct{}) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	context.AfterFunc(n.life, cancel)
	for {
		v := n.Current()
		var slots, back []dsm.Slot
		for i, h := range v.Slots {
			if h.Primary == n.self.ID && h.Source != 0 && !h.Failed(v) {
				slots = append(slots, dsm.Slot(i))
			}
			if h.Source == n.self.ID && h.Failed(v) {
				back = append(back, dsm.Slot(i))
			}
		}
		if len(back) > 0 && n.HandoverFailed(ctx, back, nil, v.Epoch) == nil {
			continue
		}
		if len(slots) > 0 && n.SlotsReady(ctx, slots, v.Epoch) == nil {
			continue
		}
		filled := false
		for _, r := range fillings(v) {
			tell := n.BackupInSync
			if !r.InSync {
				tell = n.BackupLags
			}
			if r.from == n.self.ID && !n.slow.Load() && tell(ctx, r.Node, r.Slots, v.Epoch) == nil {
				filled = true
			}
		}
		if filled {
			continue
		}
		select {
		case <-n.observer.views:
		case <-stop:
			return
		case <-n.life.Done():
			return
		}
	}
}

// cluster starts n nodes that are members of one cluster.
func cluster(t testing.TB, n int) []*node {
	t.Helper()
	ctx := patient(t)
	var nodes []*node
	for i := range n {
		x := start(t, fmt.Sprintf("n%d", i))
		if i == 0 {
			if err := x.Bootstrap(ctx, dsm.Inode{Perm: 0o755}); err != nil {
				t.Fatal(err)
			}
		} else if err := x.Join(ctx, nodes[i/2].self.Addr); err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, x)
	}
	settle(t, nodes)
	return nodes
}

// settle waits until the slots are balanced, the voters appointed and every
// node knows it.
func settle(t testing.TB, nodes []*node) {
	t.Helper()
	ctx := patient(t)
	for _, n := range nodes {
		err := n.news.until(ctx, n.life, func() bool {
			v := n.Current()
			voters, moving := 0, 0
			for _, m := range v.Members {
				if m.Voter {
					voters++
				}
			}
			for _, h := range v.Slots {
				if h.Source != 0 {
					moving++
				}
			}
			return len(v.Members) == len(nodes) && voters == voterCount(len(nodes)) && moving == 0
		})
		if err != nil {
			t.Fatalf("%v: %+v", err, n.Current().Members)
		}
	}
}

func leaderOf(t testing.TB, nodes []*node) *node {
	t.Helper()
	ctx := patient(t)
	for {
		for _, n := range nodes {
			if n.leads() != 0 {
				return n
			}
		}
		select {
		case <-nodes[0].news.hear():
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			t.Fatal("no leader")
		}
	}
}

var file = dsm.Inode{Kind: dsm.KindFile, Perm: 0o644}

// same checks that the nodes have the same state.
func same(t testing.TB, nodes []*node) {
	t.Helper()
	ctx := patient(t)
	var last uint64
	for _, n := range nodes {
		if err := n.sync(ctx); err != nil {
			t.Fatal(err)
		}
		last = max(last, n.progress.index.Load())
	}
	for {
		images := make([]*image, len(nodes))
		still := true
		for i, n := range nodes {
			ok(t, n.WaitApplied(ctx, dsm.Generation(last), 0))
			n.mu.RLock()
			images[i] = n.mu.state.image()
			n.mu.RUnlock()
			still = still && images[i].Applied == images[0].Applied
			last = max(last, images[i].Applied)
		}
		if !still {
			continue // something was applied meanwhile
		}
		want := mustEncode(t, images[0])
		for i, img := range images {
			if !bytes.Equal(mustEncode(t, img), want) {
				t.Errorf("nodes 0 and %d differ", i)
			}
		}
		return
	}
}

// kernelDrops is Config.Shrunk.
func (n *node) kernelDrops(_ context.Context, ino dsm.Ino) {
	if f := n.dropsFor.Load(); f != nil {
		(*f)(ino)
	}
}
