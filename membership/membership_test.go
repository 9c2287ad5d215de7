package membership

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// memberlist's Shutdown does not wait for a probe under way, which ends by its
// own timeout.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).probeNode"))
}

func mustAddr(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// gossiper is a Membership in a test's network.
type gossiper struct {
	*Membership
	port *port
	t    testing.TB

	mu     sync.Mutex
	events []string // "2 alive"
}

// start starts node id at the i-th address. It is closed with the test.
func start(t testing.TB, n *network, id dsm.NodeID, i int, seeds ...string) *gossiper {
	t.Helper()
	g := &gossiper{port: n.listen(i), t: t}
	m, err := Start(Config{
		Self: id, Name: fmt.Sprint("node", uint64(id)), Net: g.port,
		Log:   slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
		Seeds: func() []string { return seeds },
		OnChange: func(p Peer, s State) {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.events = append(g.events, fmt.Sprint(uint64(p.ID), " ", s))
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	g.Membership = m
	t.Cleanup(func() { g.stop() })
	return g
}

// stop closes the node and waits until memberlist's own goroutines, for which
// its Shutdown does not wait, have ended.
func (g *gossiper) stop() {
	g.Close()
	time.Sleep(10 * time.Second) // of the bubble's time
}

// cluster starts n nodes that know each other.
func cluster(t testing.TB, net *network, n int) []*gossiper {
	t.Helper()
	var seeds []string
	for i := range n {
		seeds = append(seeds, fmt.Sprintf("10.0.0.%d:7000", i+1))
	}
	var out []*gossiper
	for i := range n {
		g := start(t, net, dsm.NodeID(i+1), i+1, seeds...)
		if i > 0 {
			if err := g.Join(seeds[:1]); err != nil {
				t.Fatal(err)
			}
		}
		out = append(out, g)
	}
	within(t, 5*time.Second, "all nodes to know each other", func() bool {
		for _, g := range out {
			if g.count(Alive) != n-1 {
				return false
			}
		}
		return true
	})
	return out
}

func (g *gossiper) count(s State) int {
	n := 0
	for _, p := range g.Peers() {
		if p.State == s {
			n++
		}
	}
	return n
}

func (g *gossiper) state(id dsm.NodeID) State {
	for _, p := range g.Peers() {
		if p.ID == id {
			return p.State
		}
	}
	return 255
}

// seen returns the changes that OnChange was told of since the last call.
func (g *gossiper) seen() []string {
	synctest.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	e := g.events
	g.events = nil
	return e
}

// within waits, in the bubble's time, until cond is true. It returns how long that took.
func within(t testing.TB, limit time.Duration, what string, cond func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for !cond() {
		if time.Since(began) > limit {
			t.Fatalf("waited %v for %s", limit, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(began)
}

func TestJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newNetwork()
		nodes := cluster(t, net, 4)
		want := []Peer{{ID: 1, Name: "node1", Addr: "10.0.0.1:7000"}, {ID: 2, Name: "node2", Addr: "10.0.0.2:7000"}, {ID: 4, Name: "node4", Addr: "10.0.0.4:7000"}}
		got := nodes[2].Peers()
		for i := range got {
			got[i].Since = time.Time{}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("node 3 sees %+v", got)
		}
		e := nodes[2].seen()
		slices.Sort(e)
		if !slices.Equal(e, []string{"1 alive", "2 alive", "4 alive"}) {
			t.Fatalf("node 3 was told %v", e)
		}
		time.Sleep(2 * time.Minute)
		for _, g := range nodes {
			if e := g.seen(); g != nodes[2] && len(e) != 3 || g == nodes[2] && len(e) != 0 {
				t.Errorf("node %v was told %v in a quiet cluster", g.cfg.Self, e)
			}
		}
	})
}

func TestJoinFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := start(t, newNetwork(), 1, 1)
		if err := g.Join([]string{"10.0.0.9:7000"}); !errs.Is(err, errs.Unavailable) {
			t.Fatalf("%v, want unavailable", err)
		}
	})
}

// A crash is suspected first and dead within 5 s.
func TestSuspicion(t *testing.T) {
	for _, n := range []int{2, 3, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nodes := cluster(t, newNetwork(), n)
				for _, g := range nodes {
					g.seen()
				}
				victim := nodes[n-1]
				victim.Close()
				for _, g := range nodes[:n-1] {
					within(t, 6*time.Second, "death to be known", func() bool { return g.state(victim.cfg.Self) == Dead })
				}
				suspected := false
				for _, g := range nodes[:n-1] {
					e := g.seen()
					dead, suspect := fmt.Sprint(n, " dead"), fmt.Sprint(n, " suspect")
					if e[len(e)-1] != dead {
						t.Errorf("node %v was told %v", g.cfg.Self, e)
					}
					suspected = suspected || e[0] == suspect
				}
				if !suspected {
					t.Error("nobody was told of the suspicion")
				}
			})
		})
	}
}

// A peer that only pauses is suspected and then alive, never dead.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newNetwork()
		nodes := cluster(t, net, 2)
		nodes[0].seen()
		net.part(nodes[1].port, 1)
		within(t, 5*time.Second, "suspicion", func() bool { return nodes[0].state(2) == Suspect })
		net.part(nodes[1].port, 0)
		within(t, 5*time.Second, "life", func() bool { return nodes[0].state(2) == Alive })
		if e := nodes[0].seen(); !slices.Equal(e, []string{"2 suspect", "2 alive"}) {
			t.Fatalf("told %v", e)
		}
	})
}

// After a partition that outlasts memberlist's memory, the sides find each other
// again by the seeds.
func TestPartitionHeals(t *testing.T) {
	for _, lasts := range []time.Duration{20 * time.Second, 10 * time.Minute} {
		t.Run(lasts.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := newNetwork()
				nodes := cluster(t, net, 4)
				net.part(nodes[2].port, 1)
				net.part(nodes[3].port, 1)
				time.Sleep(lasts)
				if a, b := nodes[0].count(Alive), nodes[3].count(Alive); a != 1 || b != 1 {
					t.Fatalf("parted, the sides see %d and %d others", a, b)
				}
				net.part(nodes[2].port, 0)
				net.part(nodes[3].port, 0)
				took := within(t, 20*time.Second, "the sides to meet", func() bool {
					for _, g := range nodes {
						if g.count(Alive) != 3 {
							return false
						}
					}
					return true
				})
				t.Logf("healed after %v", took)
			})
		})
	}
}

// A node that leaves has left, and is not taken for dead.
func TestLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := cluster(t, newNetwork(), 3)
		for _, g := range nodes {
			g.seen()
		}
		began := time.Now()
		if err := nodes[2].Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d > 2*time.Second {
			t.Errorf("leaving took %v", d)
		}
		nodes[2].Close()
		if err := nodes[2].Leave(t.Context()); err != nil {
			t.Errorf("leave after close: %v", err)
		}
		time.Sleep(10 * time.Second)
		for _, g := range nodes[:2] {
			// The good-bye may be read after the news of the death: see table.leaving.
			if e := g.seen(); !slices.Equal(e, []string{"3 left"}) && !slices.Equal(e, []string{"3 dead", "3 left"}) {
				t.Errorf("node %v was told %v", g.cfg.Self, e)
			}
		}
		// It is forgotten in the end.
		time.Sleep(2 * remember)
		if got := nodes[0].Peers(); len(got) != 1 {
			t.Errorf("peers %+v", got)
		}
	})
}

// A node that restarts at the same address is a new peer, and the old one is
// suspect at once and then dead.
func TestRestartAtTheSameAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newNetwork()
		nodes := cluster(t, net, 3)
		nodes[0].seen()
		nodes[2].Close()
		again := start(t, net, 33, 3)
		if err := again.Join([]string{nodes[1].port.addr}); err != nil {
			t.Fatal(err)
		}
		within(t, time.Second, "the new one to be seen", func() bool { return nodes[0].state(33) == Alive })
		if s := nodes[0].state(3); s != Suspect {
			t.Errorf("the old one is %v", s)
		}
		within(t, 6*time.Second, "the old one to die", func() bool { return nodes[0].state(3) == Dead })
		time.Sleep(time.Minute)
		if s := nodes[0].state(33); s != Alive {
			t.Errorf("the new one is %v", s)
		}
		if got, want := nodes[0].seen(), []string{"3 suspect", "33 alive", "3 dead"}; !slices.Equal(got, want) {
			t.Errorf("told %v, want %v", got, want)
		}
	})
}

// Close and Leave in any order and twice.
func TestCloseTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := start(t, newNetwork(), 1, 1)
		for range 2 {
			if err := g.Leave(t.Context()); err != nil {
				t.Error(err)
			}
			if err := g.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestStartRefuses(t *testing.T) {
	n := newNetwork()
	long := make([]byte, maxName+1)
	for name, c := range map[string]Config{
		"no id":       {Net: n.listen(1)},
		"a long name": {Self: 1, Name: string(long), Net: n.listen(2)},
	} {
		if _, err := Start(c); !errs.Is(err, errs.Invalid) {
			t.Errorf("%s: %v, want invalid", name, err)
		}
	}
	bad := n.listen(3)
	bad.addr = "nowhere"
	if _, err := Start(Config{Self: 1, Net: bad}); err == nil {
		t.Error("an address without a port is accepted")
	}
}

func FuzzMeta(f *testing.F) {
	b, err := encodeMeta("name", "host:1")
	if err != nil {
		f.Fatal(err)
	}
	f.Add("0000000000000007", b)
	f.Add("x", []byte{metaVersion, 255})
	f.Fuzz(func(t *testing.T, node string, meta []byte) {
		p, err := decodePeer(node, meta)
		if err != nil {
			return
		}
		again, err := encodeMeta(p.Name, p.Addr)
		if err != nil {
			return // longer than we say ourselves, and harmless
		}
		if string(again) != string(meta) || p.ID.String() != node {
			t.Fatalf("%q %q became %+v", node, meta, p)
		}
	})
}
