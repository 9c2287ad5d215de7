package catalog

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/hold"
	"github.com/dsmfs/dsmfs/internal/lockrank"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/locks"
)

// Caller makes requests of the node at addr: host:port, or id@host:port if only that node may
// answer. Errors of the called node arrive with their errs.Kind.
type Caller interface {
	Call(ctx context.Context, addr string, req any) (any, error)
	// Tell makes a request of which only a failure is answered: it comes by the channel, until forget
	// is called. ctx bounds the sending. That there is no connection yet is a failure.
	Tell(ctx context.Context, addr string, req any) (failed <-chan error, forget func())
	// Ask makes a request and calls done once, with the answer or, after the limit at the latest, with why there is
	// none. done must not wait. Where there is no connection yet, Ask returns false and does not call done.
	Ask(limit time.Duration, addr string, req any, done func(reply any, err error)) bool
}

// Observer is told what the log changes, in its order, by the goroutine that applies it, with no
// lock of the catalog held. Nothing counts as applied on this node before the Observer has been
// told of it. The Observer must not call methods of the catalog that wait.
type Observer interface {
	// AreaChanged says that the size, spec or layout changed.
	AreaChanged(before, after dsm.Inode)
	// AreaRemoved says that the area is gone: it has no name, and no node claims it.
	AreaRemoved(ino dsm.Ino)
	// ViewChanged says that v is now the view. This node may not be in it.
	ViewChanged(v *dsm.View)
	// LocksChanged reports events about locks.
	LocksChanged(events []locks.Event)
	// Reset says that everything may have changed.
	Reset()
}

// Config is what a catalog needs.
type Config struct {
	Self     dsm.Member // Voter and Leaving are ignored
	Caller   Caller
	Streams  Streams // closed by the catalog
	Observer Observer
	// Yield asks this node to give up the delegation of a file's locks: locks.Node.Yield.
	Yield func(ino dsm.Ino, term uint64) (locks.Yield, bool)
	// Orphaned is told of a file that this node has made and claims, but for which nobody waits any more: somebody must give up the claim. If it is nil, the
	// catalog does.
	Orphaned func(ino dsm.Ino)
	// Shrunk returns when the kernel of this node has dropped what shrinks of a file on other nodes have truncated, or ctx ends. nil: it need not.
	Shrunk func(ctx context.Context, ino dsm.Ino)
	// OnCluster is told to which cluster this node belongs, before the cluster sends it the log. It
	// may be called more than once. If the node is held, the cluster is to be in hold.Cluster from then on.
	OnCluster func(dsm.ClusterID)
	// Lease is the lease of the members of the cluster that this node may begin; 0 means DefaultLease.
	Lease time.Duration
	// Silences returns for how long members may have been out of reach on the data lane: transport.Silences. nil: nobody ever is.
	Silences func() map[dsm.NodeID]time.Duration
	// Trust is that of the cluster which Bootstrap makes; nil: it does not encrypt.
	Trust *dsm.Trust
	// Held, if not nil, has what the daemon that was killed before this one has left, and gets what this one leaves: see held.go.
	Held *hold.Memory
	Log  *slog.Logger
}

// Catalog is this node's replica of the catalog. Its methods may be called
// from any goroutine.
type Catalog struct {
	self     dsm.Member
	caller   Caller
	observer Observer
	belong   func(dsm.ClusterID)
	first    *dsm.Trust
	yield    func(ino dsm.Ino, term uint64) (locks.Yield, bool)
	orphaned func(ino dsm.Ino)
	shrunk   func(ctx context.Context, ino dsm.Ino)
	silences func() map[dsm.NodeID]time.Duration
	log      *slog.Logger
	// yieldTime is the constant, except in a test.
	yieldTime atomic.Int64

	raft   *raft.Raft
	trans  raftTransport
	rpcs   chan raft.RPC // what raft is asked
	layer  *layer
	logs   *logStore
	life   context.Context // ends with Close
	end    context.CancelFunc
	tasks  sync.WaitGroup
	closed sync.Once

	mu struct {
		lockrank.RWMutex
		state *state
	}
	view       atomic.Pointer[dsm.View]
	joining    atomic.Bool // Join is asking to be admitted
	unanswered atomic.Bool // an answer to a Join of this node was lost: it may be a member
	away       atomic.Bool // this daemon follows one that was killed, and is not back yet
	// admitted is what the leader has said that has made this node a member; nil: none has. It names nobody if that was a daemon before.
	admitted atomic.Pointer[wire.Joined]
	leaving  atomic.Bool   // Leave was called
	begins   time.Duration // the lease of a cluster that this node begins
	doubt    chan struct{} // rung when the leader did not take a request: see renew
	leavers  atomic.Int64  // nodes for which serveLeave is running
	progress progress
	calls    calls
	rounds   rounds
	lease    lease
	grants   grants
	reign    reign
	signs    signs
	met      met
	heir     heir
	// news rings when the view, the voters or the leader change.
	news bell
	push pushers
	snap snapshots
}

const (
	// electionTimeout is how long raft waits for a leader before it elects another, and up to twice that. Usually a voter has stood for
	// election before: see succeed.go.
	electionTimeout = time.Second
	// heartbeat is the shortest time between two heartbeats to a follower; the longest is twice
	// that. A heartbeat is a message, its answer and some wake-ups on both nodes, which is most of
	// what an idle cluster does. See pace.
	heartbeat = 125 * time.Millisecond
	// leaderLease is how long a leader goes on without hearing from a majority. It is shorter than
	// electionTimeout, see Bootstrap.
	leaderLease = 500 * time.Millisecond
	// commitTimeout bounds when a follower learns that an entry is committed if the push that says
	// so does not arrive. An idle leader sends one message to each follower this often.
	commitTimeout = 500 * time.Millisecond
	// rpcTimeout bounds a message of raft, and waits for a dead node.
	rpcTimeout = 2 * time.Second
	// maxBatch is the most entries in one message.
	maxBatch = 256
	// trailingLogs is how many entries before a snapshot are kept for slow followers.
	trailingLogs = 1024
)

// New starts the replica. It knows nothing until Bootstrap or Join.
func New(cfg Config) (_ *Catalog, err error) {
	c := &Catalog{
		self: cfg.Self, caller: cfg.Caller, observer: cfg.Observer, belong: cfg.OnCluster, first: cfg.Trust, yield: cfg.Yield, silences: cfg.Silences, log: cfg.Log,
		logs: newLogStore(),
	}
	c.layer = newLayer(cfg.Streams, cfg.Self, c.isHeld)
	c.yieldTime.Store(int64(yieldTime))
	if c.begins = cfg.Lease; c.begins == 0 {
		c.begins = DefaultLease
	}
	c.shrunk = cfg.Shrunk
	if c.orphaned = cfg.Orphaned; c.orphaned == nil {
		c.orphaned = c.giveUpClaim
	}
	c.life, c.end = context.WithCancel(context.Background())
	c.mu.Init("catalog.Catalog")
	c.mu.state = newState()
	c.view.Store(c.mu.state.view)
	c.progress.init()
	c.calls.init(cfg.Held, cfg.Self.Inc)
	c.rounds.init()
	c.lease.init()
	c.grants.init()
	c.reign.init(c.life)
	c.signs.init()
	c.met.init()
	c.heir.init()
	c.news.init()
	c.push.init()

	rlog := raftLog{cfg.Log.With("part", "raft"), "raft"}
	c.rpcs = make(chan raft.RPC)
	c.trans = raftTransport{raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: c.layer, MaxPool: 4, Timeout: rpcTimeout, Logger: rlog, MsgpackUseNewTimeFormat: true,
	}), c.rpcs}
	conf := raft.DefaultConfig()
	conf.LocalID = serverOf(c.self).raftID()
	conf.Logger = rlog
	conf.HeartbeatTimeout = electionTimeout
	conf.ElectionTimeout = electionTimeout
	conf.LeaderLeaseTimeout = leaderLease
	conf.CommitTimeout = commitTimeout
	conf.MaxAppendEntries = maxBatch
	conf.BatchApplyCh = true
	conf.ShutdownOnRemove = false
	conf.TrailingLogs = trailingLogs
	conf.SnapshotInterval = time.Hour // the type snapshots decides
	conf.NoLegacyTelemetry = true
	snaps := newSnapStore(c.logs.restored, c.logs.keep)
	var r *raft.Raft
	if cfg.Held != nil {
		c.away.Store(cfg.Held.Word(hold.Cluster).Load() != 0)
		err = c.logs.resume(cfg.Held, snaps)
	}
	if err == nil {
		r, err = raft.NewRaft(conf, fsm{c}, c.logs, c.logs, snaps, c.trans)
	}
	if err != nil {
		c.end()
		c.trans.Close()
		return nil, errs.E(errs.Other, "start catalog", "%w", err)
	}
	c.raft = r
	c.snap.due, c.doubt = make(chan struct{}, 1), make(chan struct{}, 1)
	c.tasks.Go(func() { hearEarly(c.life, c.trans.NetworkTransport.Consumer(), c.rpcs, c.logs, conf.LocalID) })
	c.tasks.Go(c.watchLeader)
	c.tasks.Go(c.takeSnapshots)
	c.tasks.Go(c.decideAbandoned)
	c.tasks.Go(c.renew)
	c.tasks.Go(c.watchSilence)
	return c, nil
}

// Close stops the replica. To leave the cluster in good order call Leave before. Calls under way
// end with errs.Closed.
func (c *Catalog) Close() {
	c.closed.Do(func() {
		c.end()
		down := c.raft.Shutdown()
		c.layer.Close()
		if err := down.Error(); err != nil {
			c.log.Debug("raft shutdown", "err", err)
		}
		c.tasks.Wait()
	})
}

// Leader returns the node that leads the catalog as far as this node knows, or 0.
func (c *Catalog) Leader() dsm.NodeID {
	id, _ := c.leader()
	return id
}

// leader returns the leader and its address, or 0.
func (c *Catalog) leader() (dsm.NodeID, string) {
	a, _ := c.raft.LeaderWithID()
	if a == "" {
		return 0, ""
	}
	s, err := parseServer(a)
	if err != nil {
		return 0, ""
	}
	return s.id, s.addr
}

// gaveUp returns the error of a wait that ended because ctx or the catalog ended.
func gaveUp(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return errs.E(errs.Timeout, "", "the catalog did not answer in time: %w", err)
	}
	return errs.E(errs.Closed, "", "")
}

// named adds the name of the operation to an error of the catalog.
func named(op string, err error) error {
	if e, ok := err.(*errs.Error); ok && e.Op == "" {
		e.Op = op
	}
	return err
}
