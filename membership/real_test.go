package membership

import (
	"fmt"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/transport"
)

// realNode is a Membership over the sockets of a Transport.
func realNode(t testing.TB, id dsm.NodeID, change func(Peer, State)) (*Membership, *transport.Transport) {
	t.Helper()
	tr, err := transport.Listen(transport.Config{Self: id, Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	tr.SetCluster(7)
	m, err := Start(Config{Self: id, Name: fmt.Sprint("node", uint64(id)), Net: tr.Gossip(), OnChange: change})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.Close()
		tr.Close()
	})
	return m, tr
}

// Over real sockets: join, a node of another cluster that stays outside, a
// crash, and a leave.
func TestRealSockets(t *testing.T) {
	changes := make(chan string, 100)
	a, ta := realNode(t, 1, func(p Peer, s State) { changes <- fmt.Sprint(uint64(p.ID), " ", s) })
	want := func(what string, onTheWay ...string) {
		t.Helper()
		for {
			select {
			case got := <-changes:
				if got == what {
					return
				}
				if got[2:] != "suspect" && !slices.Contains(onTheWay, got) {
					t.Fatalf("told %q, want %q", got, what)
				}
			case <-time.After(30 * time.Second):
				t.Fatalf("not told %q", what)
			}
		}
	}
	b, tb := realNode(t, 2, nil)
	if err := b.Join([]string{ta.Addr()}); err != nil {
		t.Fatal(err)
	}
	want("2 alive")
	c, _ := realNode(t, 3, nil)
	if err := c.Join([]string{tb.Addr()}); err != nil {
		t.Fatal(err)
	}
	want("3 alive")
	if p := a.Peers(); len(p) != 2 || p[0].Addr != tb.Addr() || p[0].Name != "node2" {
		t.Fatalf("peers %+v", p)
	}

	d, td := realNode(t, 4, nil)
	td.SetCluster(8)
	if err := d.Join([]string{ta.Addr()}); err == nil {
		t.Fatal("a node of another cluster joined")
	}

	b.Close()
	tb.Close()
	want("2 dead")
	if err := c.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	want("3 left", "3 dead") // the good-bye may be read second
}

// BenchmarkIdle reports which part of a core one idle node of three costs.
func BenchmarkIdle(b *testing.B) {
	_, first := realNode(b, 1, nil)
	for id := range dsm.NodeID(2) {
		m, _ := realNode(b, id+2, nil)
		if err := m.Join([]string{first.Addr()}); err != nil {
			b.Fatal(err)
		}
	}
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	runtime.GC()
	began, before := time.Now(), used()
	b.ResetTimer()
	for range b.N {
		time.Sleep(time.Second)
	}
	b.ReportMetric(100*float64(used()-before)/float64(time.Since(began))/3, "%core/node")
}
