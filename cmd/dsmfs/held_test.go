package main

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/coherence"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/hold"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// musts returns a function that ends a test at an error.
func musts(t *testing.T) func(error) {
	return func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
}

// following returns a node that follows a daemon which was killed, and has not resumed yet. It is not the home of anything: its data plane sees view, and sends what it has
// to say to the channel.
func following(t *testing.T, view *dsm.View) (*node, <-chan any) {
	t.Helper()
	mem, err := hold.Create()
	must := musts(t)
	must(err)
	mem.Word(hold.Node).Store(1)
	must(mem.SetText(hold.Key, string(make([]byte, ed25519.SeedSize))))
	must(mem.SetText(hold.Listen, "127.0.0.1:0"))
	log := slog.New(slog.DiscardHandler)
	n := &node{log: log, built: make(chan struct{}), resumed: make(chan struct{}), unfollowed: make(chan struct{}), leftovers: newLeftovers()}
	n.told.init()
	n.cfg = nodeConfig{mountConfig: mountConfig{insecure: true, memory: 1 << 20}, log: log, held: &held{mem: mem, resuming: true}}
	must(n.listen(t.Context()))
	must(n.build(t.Context()))
	t.Cleanup(func() {
		if !n.isResumed() {
			close(n.resumed) // messages wait for it
		}
		if err := n.stop(t.Context(), nil); err != nil {
			t.Error(err)
		}
	})
	said := make(chan any, 100)
	n.data.Close()
	n.data = coherence.New(coherence.Config{Self: 1, View: seen{View: &n.cats, v: view}, Sender: says(said), Log: log})
	return n, said
}

// seen is a View.
type seen struct {
	coherence.View
	v *dsm.View
}

func (s seen) Current() *dsm.View { return s.v }

func (seen) MayServe() bool { return true }

// says is a Sender.
type says chan any

func (s says) Send(_ dsm.NodeID, m any, _ [][]byte, _ bool) { s <- m }

func (s says) SendShared(_ dsm.NodeID, m any, p *wire.Shared, _ bool) {
	p.Release()
	s <- m
}

func (says) Flush(dsm.NodeID) {}

// quiet is how long a node is watched that is to say nothing.
const quiet = 100 * time.Millisecond

// TestSnapshotBeforeTheNodeIsBack: the cluster sends a snapshot of its state, because the node was away for long. In that the node hands slots over, of which it has nothing any
// more. It must not say that it has sent all of them.
func TestSnapshotBeforeTheNodeIsBack(t *testing.T) {
	v := &dsm.View{Epoch: 3, Members: []dsm.Member{{ID: 1}, {ID: 2}}}
	for i := range v.Slots {
		v.Slots[i] = dsm.SlotHome{Primary: 2, Source: 1, Epoch: 3}
	}
	n, said := following(t, v)
	n.Reset()
	select {
	case m := <-said:
		t.Fatalf("%T before it is back", m)
	case <-time.After(quiet):
	}
	close(n.resumed)
	n.Reset()
	if _, ok := (<-said).(*wire.HandoverDone); !ok {
		t.Error("once it is back the node does not hand over")
	}
}

// TestNothingIsHandledBeforeTheNodeHasResumed: an area of which something is left is known before it has that. A message that is handled at once would find an area that has nothing.
func TestNothingIsHandledBeforeTheNodeHasResumed(t *testing.T) {
	n, _ := following(t, new(dsm.View))
	handles := func() bool {
		t.Helper()
		handled, err := n.onFrameNow(2, &wire.Frame{Msg: &wire.GroupState{Group: 5, Generation: 1}})
		if err != nil {
			t.Fatal(err)
		}
		return handled
	}
	if handles() {
		t.Error("handled before")
	}
	close(n.resumed)
	if !handles() {
		t.Error("not handled after that")
	}
}

// TestNobodyJoinsBeforeTheNodeHasResumed: what a daemon takes over depends on whether its node is alone.
func TestNobodyJoinsBeforeTheNodeHasResumed(t *testing.T) {
	n, _ := following(t, new(dsm.View))
	ask := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), quiet)
		defer cancel()
		_, err := n.onCall(ctx, 2, &wire.Join{})
		return err
	}
	if err := ask(); !errs.Is(err, errs.Closed) {
		t.Errorf("before: %v", err)
	}
	close(n.resumed)
	if err := ask(); !errs.Is(err, errs.NotLeader) {
		t.Errorf("after that: %v", err)
	}
}

// TestMembersAreKeptForTheNextDaemon: also of those who came with a snapshot, and as many as there is room for.
func TestMembersAreKeptForTheNextDaemon(t *testing.T) {
	n, _ := following(t, new(dsm.View))
	mem := n.cfg.held.mem
	v := &dsm.View{Members: []dsm.Member{{ID: 1, Addr: "self"}, {ID: 2, Addr: "b:1"}, {ID: 3, Addr: "c:1", Gone: true}, {ID: 4, Addr: "d:1"}}}
	n.noteMembers(v)
	if got := strings.Fields(mem.Text(hold.Members)); !slices.Equal(got, []string{"b:1", "d:1"}) || mem.Word(hold.Others).Load() != 1 {
		t.Errorf("%q", got)
	}
	for i := range 1000 {
		v.Members = append(v.Members, dsm.Member{ID: dsm.NodeID(10 + i), Addr: fmt.Sprint("node", i, ":1")})
	}
	n.noteMembers(v)
	if got := strings.Fields(mem.Text(hold.Members)); len(got) < 100 || got[99] != "node97:1" || mem.Word(hold.Refused).Load() != 0 {
		t.Errorf("%d of 1002 members: %q", len(got), got)
	}
}

// another starts a node without a mount, of a cluster of its own.
func another(t *testing.T) *node {
	t.Helper()
	other, err := startNode(t.Context(), nodeConfig{
		mountConfig: mountConfig{noMount: true, insecure: true, memory: 1 << 20, listen: "127.0.0.1:0", state: t.TempDir(), name: "other", timeout: time.Minute},
		log:         slog.New(slog.DiscardHandler), level: new(slog.LevelVar),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // nobody takes its slots
		_ = other.stop(ctx, nil)
	})
	return other
}

// TestJoinsItsOwnClusterAgain: a daemon that follows one whose node was joining again joins the same cluster, and no other that has the addresses of its members now.
func TestJoinsItsOwnClusterAgain(t *testing.T) {
	for _, same := range []bool{false, true} {
		other := another(t)
		n, _ := following(t, new(dsm.View))
		is := other.cats.Current().Cluster
		if !same {
			is += 2
		}
		n.belongs(is)
		n.net.SetCluster(0) // the daemon has just begun
		musts(t)(n.cfg.held.mem.ReplaceText(hold.Members, other.self.Addr+"\n"))
		err := n.resumeAnew(t.Context())
		if _, joined := other.cats.Current().Member(n.self.ID); joined != same || same != (err == nil) {
			t.Errorf("the same cluster %v: joined %v, %v", same, joined, err)
		}
	}
}

// TestSnapshotBringsMembers: a daemon that has loaded a snapshot may never hear of the members in it in another way.
func TestSnapshotBringsMembers(t *testing.T) {
	other := another(t)
	n, _ := following(t, new(dsm.View))
	if err := n.cats.last().Join(t.Context(), other.self.Addr); err != nil {
		t.Fatal(err)
	}
	if got := n.cfg.held.mem.Text(hold.Members); got != "" {
		t.Errorf("%q, while what comes may be old", got)
	}
	n.Reset()
	if got := strings.TrimSpace(n.cfg.held.mem.Text(hold.Members)); got != other.self.Addr {
		t.Errorf("%q, want %s", got, other.self.Addr)
	}
}
