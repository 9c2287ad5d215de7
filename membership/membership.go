package membership

import (
	"context"
	"log"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

const (
	// gossipInterval is how often a node looks for news to repeat; see spread.
	gossipInterval = time.Second
	rejoinInterval = 5 * time.Second
	rejoinAtOnce   = 3 // one that answers knows all others
	streamTimeout  = 2 * time.Second
	leaveTimeout   = 2 * time.Second // if the context has no deadline
)

// Config is what a Membership needs.
type Config struct {
	Self dsm.NodeID
	Name string // for people
	Net  Net    // closed by Close
	Log  *slog.Logger
	// Seeds returns the addresses at which nodes should be. It may be nil.
	Seeds func() []string
	// OnChange is called for every change, in order, from one goroutine. It may be nil.
	OnChange func(Peer, State)
}

// Membership is this node's part of the gossip.
type Membership struct {
	cfg    Config
	list   *memberlist.Memberlist
	table  *table
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	leaving chan struct{} // closed when the news that this node leaves is ready to be sent

	// mu orders Leave and Close: memberlist panics if it is told to leave after its shutdown. mu is
	// held while a Leave waits.
	mu struct {
		lockrank.Mutex
		closed bool
	}
}

// Start begins to gossip. The node is alone until it joins others or others join it.
func Start(cfg Config) (*Membership, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Self == 0 {
		return nil, errs.E(errs.Invalid, "gossip", "the node has no id")
	}
	meta, err := encodeMeta(cfg.Name, cfg.Net.Addr())
	if err != nil {
		return nil, err
	}
	m := &Membership{cfg: cfg, table: newTable(cfg.Self), leaving: make(chan struct{})}
	m.mu.Init("membership.Membership")
	m.ctx, m.cancel = context.WithCancel(context.Background())
	carrier := newCarrier(cfg.Net)
	d := &delegate{self: cfg.Self, meta: meta, table: m.table, left: sync.OnceFunc(func() { close(m.leaving) })}

	c := memberlist.DefaultLANConfig()
	c.Name = cfg.Self.String()
	c.Transport = carrier
	c.Delegate, c.Events, c.Alive, c.Ping = d, d, d, d
	c.Logger = log.New(&logLines{log: cfg.Log, table: m.table}, "", 0)
	c.UDPBufferSize = maxPacket
	c.TCPTimeout = streamTimeout
	c.ProbeInterval, c.ProbeTimeout = 500*time.Millisecond, 250*time.Millisecond
	c.GossipInterval = gossipInterval
	c.SuspicionMult, c.SuspicionMaxTimeoutMult = 3, 2
	c.EnableCompression = false // packets are small
	if m.list, err = memberlist.Create(c); err != nil {
		_ = carrier.Shutdown() // its errors would be about the net, which is being given up
		return nil, errs.E(errs.Other, "gossip", "%w", err)
	}
	m.wg.Go(m.announce)
	m.wg.Go(m.rejoin)
	return m, nil
}

// Join exchanges state with the nodes at the addresses. It fails if none of them answers.
func (m *Membership) Join(addrs []string) error {
	if _, err := m.list.Join(addrs); err != nil {
		return errs.E(errs.Unavailable, "join gossip", "%w", err)
	}
	return nil
}

// Peers returns all other nodes, ordered by id. Dead nodes and those that left stay in the list for
// some minutes.
func (m *Membership) Peers() []Peer { return m.table.list() }

// Leave says goodbye to the others, so that they do not take this node's silence for a failure. It
// waits until the message has been passed on, or until the deadline of ctx. After Close it does
// nothing.
func (m *Membership) Leave(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.closed {
		return nil
	}
	timeout := leaveTimeout
	if d, ok := ctx.Deadline(); ok {
		timeout = max(time.Until(d), time.Millisecond) // 0 would mean for ever
	}
	for id, at := range m.table.reachable() {
		_ = m.list.SendToAddress(memberlist.Address{Addr: string(at), Name: id.String()}, goodbyeOf(m.cfg.Self)) // if it is dropped, the peer only does not learn the reason
	}
	m.wg.Go(func() {
		select {
		case <-m.leaving: // pings before that carry no news of it
		case <-m.ctx.Done():
			return
		}
		for range leaveRounds {
			m.spread()
		}
	})
	if err := m.list.Leave(timeout); err != nil {
		return errs.E(errs.Timeout, "leave gossip", "%w", err)
	}
	return nil
}

// Close ends the gossip and waits for OnChange. Without a Leave before, it looks to the others like
// a crash. It may be called again.
func (m *Membership) Close() error {
	m.mu.Lock()
	closed := m.mu.closed
	m.mu.closed = true
	m.mu.Unlock()
	if closed {
		return nil
	}
	m.cancel()
	m.table.close()
	err := m.list.Shutdown()
	m.wg.Wait()
	return err
}

// announce calls OnChange for the changes.
func (m *Membership) announce() {
	for {
		select {
		case <-m.table.wake:
		case <-m.ctx.Done():
			return
		}
		changes := m.table.take()
		if len(changes) > 0 {
			m.wg.Go(m.spread)
		}
		for _, p := range changes {
			m.cfg.Log.Info("peer", "state", p.State, "id", p.ID, "name", p.Name, "addr", p.Addr)
			if m.cfg.OnChange != nil {
				m.cfg.OnChange(p, p.State)
			}
		}
	}
}

const (
	// spreadTo is how many peers get news at once. They pass it on.
	spreadTo = 3
	// leaveRounds times spreadTo is at least as often as memberlist repeats, in a cluster of up to
	// 999 nodes, the news that a node leaves. After that many its Leave returns.
	leaveRounds = 4
)

// spread passes news on at once, to some peers. memberlist has no call for that, but it adds its
// news to every datagram that it sends; so the peers are pinged. The ticker of the gossip, which
// wakes every idle node, is then needed only for news that was dropped. spread returns when all have
// answered or have had the time to.
func (m *Membership) spread() {
	peers := m.table.reachable()
	ids := slices.Collect(maps.Keys(peers))
	rand.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	var pings sync.WaitGroup
	for _, id := range ids[:min(len(ids), spreadTo)] {
		pings.Go(func() {
			_, _ = m.list.Ping(id.String(), peers[id]) // probes find out who does not answer
		})
	}
	pings.Wait()
}

// rejoin joins seeds at which there is no living peer.
func (m *Membership) rejoin() {
	tick := time.NewTicker(rejoinInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-m.ctx.Done():
			return
		}
		for _, addr := range m.missing() {
			if m.ctx.Err() != nil {
				return
			}
			if err := m.Join([]string{addr}); err != nil {
				m.cfg.Log.Debug("join again", "addr", addr, "err", err)
			}
		}
	}
}

// missing returns a few of the seeds at which there is no living peer.
func (m *Membership) missing() []string {
	if m.cfg.Seeds == nil {
		return nil
	}
	have := map[string]bool{m.cfg.Net.Addr(): true}
	for _, p := range m.table.list() {
		if p.State < Dead {
			have[p.Addr] = true
		}
	}
	var out []string
	for _, addr := range m.cfg.Seeds() {
		if !have[addr] {
			have[addr] = true
			out = append(out, addr)
		}
	}
	rand.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out[:min(len(out), rejoinAtOnce)]
}
