package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dsmfs/dsmfs/catalog"
	"github.com/dsmfs/dsmfs/coherence"
	"github.com/dsmfs/dsmfs/fs"
	"github.com/dsmfs/dsmfs/groups"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/hold"
	"github.com/dsmfs/dsmfs/internal/transport"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/locks"
	"github.com/dsmfs/dsmfs/membership"
	"github.com/dsmfs/dsmfs/pages"
)

// nodeConfig is what a node needs.
type nodeConfig struct {
	mountConfig // state is absolute
	log         *slog.Logger
	level       *slog.LevelVar
	held        *held
}

// node is a running node: its parts, in the order in which they are started. Where two parts need
// each other, they call each other through the node.
type node struct {
	cfg       nodeConfig
	log       *slog.Logger
	self      dsm.Member
	net       *transport.Transport
	told      told
	cats      catalogs
	serving   atomic.Pointer[catalog.Catalog] // answers other nodes: that of cats, or the next one
	rejoins   rejoins
	scrubs    scrubs
	data      *coherence.Node
	locks     *locks.Node
	groups    *groups.Node
	member    bool // of a cluster
	locksLost bool // that programs had when the daemon before was killed
	// lost is why no other daemon follows; unfollowed is closed then.
	lost       atomic.Pointer[string]
	unfollowed chan struct{}
	gossip     *membership.Membership
	fs         *fs.FS
	mounted    atomic.Pointer[fs.FS] // fs, for goroutines that may be there before it

	leftovers *leftovers

	// built is closed when cat and data exist: requests that arrive earlier wait for it.
	built chan struct{}
	// resumed is closed when the data plane may act: what an earlier daemon was the home of has gone to others.
	resumed chan struct{}
}

// startNode starts a node and returns when its mount is usable. If a part fails, the parts started
// before are stopped again.
func startNode(ctx context.Context, cfg nodeConfig) (*node, error) {
	n := &node{cfg: cfg, log: cfg.log, built: make(chan struct{}), resumed: make(chan struct{}), unfollowed: make(chan struct{}), leftovers: newLeftovers()}
	n.told.init()
	n.rejoins.recoveries, n.scrubs.orders = make(chan recovery), make(chan chan error)
	if cfg.held == nil || !cfg.held.resuming {
		close(n.resumed)
	}
	for _, part := range []func(context.Context) error{n.listen, n.build, n.enter, n.startGossip, n.mount, n.startRejoins, n.startScrubs} {
		if err := part(ctx); err != nil {
			if cfg.held != nil && cfg.held.resuming {
				return nil, err // everything stays as it is for the next one
			}
			ctx, cancel := context.WithTimeout(context.Background(), leaveLimit/4)
			defer cancel()
			if serr := n.stop(ctx, nil); serr != nil {
				n.log.Warn("after the failed start", "err", serr)
			}
			return nil, err
		}
	}
	return n, nil
}

// listen opens the port of the node and gives the node its identity.
func (n *node) listen(context.Context) error {
	n.self = dsm.Member{ID: dsm.NodeID(rand.Uint64() | 1), Budget: int64(n.cfg.memory), Held: n.cfg.held != nil}
	seed, err := n.cfg.held.identify(&n.self, &n.cfg.listen)
	if err != nil {
		return err
	}
	n.net, err = transport.Listen(transport.Config{
		Held: n.cfg.held != nil, Heir: n.cfg.held != nil && n.cfg.held.resuming, Seed: seed,
		Secure: !n.cfg.insecure, OnEnroll: n.onEnroll,
		Self: n.self.ID, Listen: n.cfg.listen, Advertise: n.cfg.advertise, Log: n.log.With("part", "transport"),
		OnFrame: n.onFrame, OnFrameNow: n.onFrameNow, OnReset: n.onReset, OnNow: n.onNow, OnCall: n.onCall,
	})
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fail(exitListen, "--listen %s: another program has the port; --listen 127.0.0.1:0 takes a free one: %w", n.cfg.listen, err)
	case err != nil:
		return fail(exitListen, "--listen %s: %w", n.cfg.listen, err)
	}
	known, err := n.cfg.held.believed()
	if err != nil {
		return err
	}
	if known != nil {
		n.net.SetTrust(known)
	}
	n.self.Addr, n.self.Key = n.net.Addr(), n.net.Key()
	if n.self.Name, err = nodeName(n.cfg.name, n.self.Addr); err != nil {
		return err
	}
	return n.cfg.held.listening(n.net.ListenAddr())
}

// isResumed reports whether the data plane may act.
func (n *node) isResumed() bool {
	select {
	case <-n.resumed:
		return true
	default:
		return false
	}
}

// reopened says that what programs had open is open again.
func (n *node) reopened() {
	n.data.Resumed()
	if n.locksLost {
		n.cfg.held.joined()
	}
	ctx, cancel := context.WithTimeout(context.Background(), max(n.cfg.timeout, joinLimit))
	defer cancel()
	if err := n.locks.Resumed(ctx); err != nil {
		n.log.Error("locks that no program has any more are not given up", "err", err)
	}
}

// nodeName returns the chosen name of the node, or that of the machine. It must be unique in a
// cluster, so further nodes of a machine have their port in it.
func nodeName(chosen, addr string) (string, error) {
	if chosen != "" {
		return chosen, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("no name for the node, give one with --name: %w", err)
	}
	if _, port, err := net.SplitHostPort(addr); err == nil && port != defaultPort {
		host += "-" + port
	}
	return host, nil
}

// build makes the catalog and the data plane, which need each other.
func (n *node) build(context.Context) error {
	first, err := n.firstTrust()
	if err != nil {
		return err
	}
	cat, err := n.newCatalog(n.self, n, first, n.cfg.held.memory())
	if err != nil {
		return err
	}
	n.cats.start(cat)
	store, err := n.cfg.held.store(int64(n.cfg.memory))
	if err != nil {
		return err
	}
	n.data = coherence.New(coherence.Config{
		Self: n.self.ID, View: &n.cats, Sender: n.net, Log: n.log.With("part", "coherence"), Memory: int64(n.cfg.memory),
		UnderWay: (withMargin(int64(n.cfg.memory)) - int64(n.cfg.memory)) / underWayPart, Taken: boundHeap(int64(n.cfg.memory)), Store: store,
		First: n.cfg.held.firstNumber(), Unheld: n.unheld, MayEnd: n.cfg.hold != holdOn, RoundPatience: n.cfg.timeout,
		LocksLost: func(id dsm.AreaID) bool { return n.locks.Dropped(dsm.Ino(id)) },
	})
	pages.KeepIdle(int64(n.cfg.memory) / idlePart)
	n.locks = locks.NewNode(locks.Config{Self: n.self.ID, Cluster: &n.cats, Log: n.log.With("part", "locks"), Patience: n.cfg.timeout,
		First: n.cfg.held.firstNumber(), Resuming: n.cfg.held != nil && n.cfg.held.resuming})
	n.groups = groups.NewNode(groups.Config{Self: n.self.ID, Sender: n.net, Log: n.log.With("part", "groups"), Home: homeOf, MayTell: n.cats.MayGrant})
	close(n.built)
	return nil
}

// newCatalog makes a catalog that knows nothing yet, and that answers other nodes from now on.
func (n *node) newCatalog(self dsm.Member, o catalog.Observer, first *dsm.Trust, held *hold.Memory) (*catalog.Catalog, error) {
	cat, err := catalog.New(catalog.Config{
		Self: self, Caller: n.net, Streams: n.net.ReopenRaft(), Observer: o, OnCluster: n.belongs, Yield: n.yieldLocks,
		Orphaned: n.orphaned, Shrunk: n.shrunk, Silences: n.net.Silences, Lease: n.cfg.lease, Trust: first, Held: held, Log: n.log.With("part", "catalog"),
	})
	if err == nil {
		n.serving.Store(cat)
	}
	return cat, err
}

// belongs says to which cluster the node belongs. A daemon that follows this one joins no other.
func (n *node) belongs(id dsm.ClusterID) {
	if h := n.cfg.held; h != nil {
		h.mem.Word(hold.Cluster).Store(uint64(id))
	}
	n.net.SetCluster(id)
}

// enter joins the cluster of the first node that answers, or makes one.
func (n *node) enter(ctx context.Context) error {
	if n.cfg.held != nil && n.cfg.held.resuming {
		return n.resume(ctx)
	}
	if len(n.cfg.join) == 0 {
		root := dsm.Inode{Perm: 0o755, UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
		if err := n.cats.last().Bootstrap(ctx, root); err != nil {
			return fmt.Errorf("start a cluster: %w", err)
		}
		n.member = true
		return nil
	}
	e, said := entry{cat: n.cats.last()}, false
	for began := time.Now(); ; {
		silent, err := n.enterBy(ctx, &e)
		if err == nil || !silent || time.Since(began) > joinAgain {
			return err
		}
		if !said {
			said = true
			n.log.Warn("nobody answers yet", "err", err)
		}
		if !sleep(ctx, joinPause) {
			return err
		}
	}
}

// enterBy tries each node to join. silent says that none has answered, as while another daemon follows there.
func (n *node) enterBy(ctx context.Context, e *entry) (silent bool, _ error) {
	var failed []error
	for _, addr := range n.cfg.join {
		// Each gets an equal part of the time.
		try, cancel := context.WithTimeout(ctx, joinLimit/time.Duration(len(n.cfg.join)))
		err := n.enroll(try, addr)
		if err == nil {
			err = n.join(try, e, addr)
		}
		cancel()
		if err == nil {
			n.member = true
			return false, nil
		}
		k := errs.KindOf(err)
		silent = k == errs.Unavailable || k == errs.Timeout
		if silent && !isLoopback(addr) {
			err = fmt.Errorf("%w (a node takes those of other machines only if it was mounted with --listen :PORT)", err)
		}
		failed = append(failed, fmt.Errorf("--join %s: %w", addr, err))
		if ctx.Err() != nil || !silent {
			break // it answered: the others belong to the same cluster
		}
	}
	return silent, withCode(exitJoin, errors.Join(failed...))
}

// entry is a catalog that is to join, as the first one of its node.
type entry struct {
	cat *catalog.Catalog
	g   *gate // its observer, if others were evicted before it
}

// join joins through the node at addr. A node that is so slow that it is evicted before it has the log joins once more.
func (n *node) join(ctx context.Context, e *entry, addr string) error {
	for {
		err := e.cat.Join(ctx, addr)
		switch {
		case err == nil && e.g != nil:
			n.take(ctx, e.g, e.cat)
			return nil
		case !errs.Is(err, errs.Evicted) || ctx.Err() != nil:
			return err
		}
		n.log.Warn("evicted from the cluster before this node was ready: joining once more")
		e.cat.Close()
		e.g = &gate{n: n}
		if e.cat, err = n.nextCatalog(e.g); err != nil {
			return err
		}
	}
}

// mount makes everything visible.
func (n *node) mount(context.Context) error {
	tracking, reason, err := n.cfg.trackingMode()
	if err != nil {
		return err
	}
	point := n.cfg.point
	if n.cfg.noMount {
		point = ""
	}
	attach, device, files, descriptors := filepath.Join(n.cfg.state, attachFile), 0, []dsm.Ino(nil), hold.Descriptors(nil)
	if h := n.cfg.held; h != nil {
		device, descriptors = h.device, h.files
		if h.resuming {
			files = n.cats.last().Claimed()
		}
	}
	n.fs, err = fs.Mount(fs.Config{
		Held: n.cfg.held.memory(), Device: device, ClaimedFiles: files, Descriptors: descriptors,
		Mountpoint: point, Source: fmt.Sprintf("dsmfs:%s/%s", n.cats.Current().Cluster, n.self.Name), Names: &n.cats, Areas: areas{n}, Locks: n.locks, Groups: programGroups{n}, Info: info{n}, Log: n.log.With("part", "fs"),
		HarvestArgv: []string{selfPath, harvestVerbName}, GuardArgv: []string{selfPath, guardVerbName}, FaultTimeout: n.cfg.timeout, UnmountTimeout: n.cfg.unmount,
		AttachSocket: attach, Tracking: tracking, TrackingReason: reason,
		Unheld: n.unheld, MayEnd: n.cfg.hold != holdOn, PassthroughOff: n.cfg.passthroughOff(), Resumed: n.reopened, LocksLost: n.locksLost,
	})
	switch {
	case errs.Is(err, errs.Busy):
		return withCode(exitBusy, err)
	case errs.Is(err, errs.Unsupported), errs.Is(err, errs.Permission):
		return withCode(exitMachine, err)
	case err != nil:
		return withCode(exitPoint, err)
	}
	n.mounted.Store(n.fs)
	n.data.SetPageCache(n.fs)
	return nil
}

// stop takes the node down in the reverse order: publish, unmount, hand the slots over, leave,
// close. When ctx ends, or at a second signal, it goes on without the steps that need other nodes.
// The error says what was not done; everything is closed in any case.
func (n *node) stop(ctx context.Context, again <-chan os.Signal) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case s := <-again:
			n.log.Warn("told to end again: leaving without order", "signal", s.String())
			cancel()
		case <-ctx.Done():
		}
	}()
	var failed []error
	note := func(what string, err error) {
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", what, err))
		}
	}
	if n.fs != nil {
		note("publish", n.fs.PublishAll(ctx))
		note("unmount", n.fs.Unmount(ctx, true)) // also waits for programs that were told to end, and publishes what they store
	}
	if n.groups != nil {
		n.groups.Close()
	}
	n.scrubs.stop()
	evicted := n.rejoins.stop(n)
	if n.member && !evicted {
		note("leave the cluster", n.cats.last().Leave(ctx))
	}
	if n.gossip != nil {
		note("end the gossip", n.stopGossip(ctx))
	}
	if n.locks != nil {
		n.locks.Close()
	}
	if cat := n.serving.Load(); cat != nil {
		cat.Close()
	}
	if n.net != nil {
		note("close the port", n.net.Close())
	}
	if n.data != nil {
		n.data.Close()
	}
	return errors.Join(failed...)
}

// onFrame, onReset, onTold and onCall pass on what comes in from other nodes.
func (n *node) onFrame(from dsm.NodeID, f *wire.Frame) error {
	<-n.resumed
	if groups.Handles(f.Msg) {
		n.groups.Handle(from, f.Msg)
		return nil
	}
	return n.data.HandleFrame(from, f)
}

func (n *node) onFrameNow(from dsm.NodeID, f *wire.Frame) (handled bool, err error) {
	select {
	case <-n.built:
	default:
		return false, nil
	}
	switch {
	case !n.isResumed(): // an area may be there, and not have what it had
		return false, nil
	case groups.Handles(f.Msg):
		return n.groups.HandleNow(from, f.Msg), nil
	}
	return n.data.HandleNow(from, f.Msg, f.Payload)
}

func (n *node) onReset(peer dsm.NodeID) {
	<-n.resumed
	n.data.SessionReset(peer)
	n.groups.SessionReset(peer)
}

func (n *node) onNow(_ dsm.NodeID, req any) (reply any, handled bool) {
	select {
	case <-n.built:
		return n.serving.Load().OnNow(req)
	default:
		return nil, false
	}
}

func (n *node) onCall(ctx context.Context, from dsm.NodeID, req any) (any, error) {
	select {
	case <-n.built:
	case <-ctx.Done():
		return nil, errs.E(errs.Closed, "call", "")
	}
	if reply, ok := answerConflicts(n.data, req); ok {
		return reply, nil
	}
	switch req.(type) {
	case *wire.GroupList:
		return &wire.GroupListed{Lines: n.groups.List()}, nil
	case *wire.Join: // with another member, what is to be resumed would be something else
		select {
		case <-n.resumed:
		case <-ctx.Done():
			return nil, errs.E(errs.Closed, "call", "")
		}
	}
	return n.serving.Load().OnCall(ctx, from, req)
}
