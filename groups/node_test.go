package groups

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// cluster is nodes that hand each other their messages at once.
type cluster struct {
	t     testing.TB
	nodes []*wired
	view  atomic.Pointer[dsm.View]
}

type wired struct {
	*Node
	daemon atomic.Pointer[Node] // the same, for who sends meanwhile
	c      *cluster
	id     dsm.NodeID
}

// starts begins with a new daemon.
func (w *wired) starts() {
	w.Node = NewNode(Config{Self: w.id, Sender: w, Home: func(v *dsm.View, _ dsm.AreaID) dsm.NodeID { return v.Slots[0].Primary }})
	w.daemon.Store(w.Node)
}

func (w *wired) Send(to dsm.NodeID, m any, _ [][]byte, _ bool) {
	if int(to) <= len(w.c.nodes) && here(w.c.view.Load(), to) {
		if n := w.c.nodes[to-1].daemon.Load(); !n.HandleNow(w.id, m) {
			n.Handle(w.id, m)
		}
	}
}

func newCluster(t testing.TB, nodes int) *cluster {
	c, v := &cluster{t: t}, &dsm.View{Epoch: 1}
	c.view.Store(v)
	v.Slots[0].Primary = 1
	for i := range nodes {
		w := &wired{c: c, id: dsm.NodeID(i + 1)}
		w.starts()
		c.nodes = append(c.nodes, w)
		v.Members = append(v.Members, dsm.Member{ID: w.id, Name: string(rune('a' + i))})
	}
	for _, w := range c.nodes {
		w.ViewChanged(v)
	}
	return c
}

// gone takes a node out.
func (c *cluster) gone(id dsm.NodeID) { c.setGone(id, true) }

func (c *cluster) setGone(id dsm.NodeID, gone bool) {
	v := *c.view.Load()
	v.Epoch++
	v.Members = append([]dsm.Member(nil), v.Members...)
	v.Members[id-1].Gone = gone
	c.view.Store(&v)
	for _, w := range c.nodes {
		w.ViewChanged(&v)
	}
}

// join has a program on each of the nodes join, all at once.
func (c *cluster) join(size int, on ...int) []*Member {
	c.t.Helper()
	type joined struct {
		m   *Member
		err error
	}
	all := make([]chan joined, len(on))
	for i, node := range on {
		all[i] = make(chan joined, 1)
		go func() {
			m, err := c.nodes[node].Join(c.t.Context(), 9, size)
			all[i] <- joined{m, err}
		}()
	}
	members := make([]*Member, len(on))
	for i := range all {
		j := <-all[i]
		if j.err != nil {
			c.t.Fatal(j.err)
		}
		members[i] = j.m
	}
	return members
}

// wants checks the kind and text of an error.
func wants(t *testing.T, err error, k errs.Kind, text string) {
	t.Helper()
	if !errs.Is(err, k) || !strings.Contains(err.Error(), text) {
		t.Errorf("%v, want %v with %q", err, k, text)
	}
}

// ended is a context whose time is over.
func ended(t *testing.T) context.Context {
	ctx, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	t.Cleanup(cancel)
	return ctx
}

func TestJoin(t *testing.T) {
	c := newCluster(t, 3)
	_, err := c.nodes[1].Join(ended(t), 9, 3)
	wants(t, err, errs.Timeout, "1 of 3 came in time")
	_, err = c.nodes[0].Join(t.Context(), 9, 0)
	wants(t, err, errs.Invalid, "1 to 256")
	members := c.join(3, 0, 1, 1)
	ranks := map[int]bool{}
	for _, m := range members {
		ranks[m.Rank()] = true
	}
	if len(ranks) != 3 || !ranks[0] || !ranks[1] || !ranks[2] {
		t.Errorf("ranks %v", ranks)
	}
	_, err = c.nodes[2].Join(t.Context(), 9, 2)
	wants(t, err, errs.Invalid, "the group has size 3, not 2")
	_, err = c.nodes[2].Join(ended(t), 9, 3)
	wants(t, err, errs.Timeout, "no rank is free")
	members[2].Leave()
	members[2].Leave()
	if _, err := members[2].Add(t.Context(), "x", 1); err == nil {
		t.Error("who has left adds")
	}
	again := c.join(3, 2)[0]
	if again.Rank() != members[2].Rank() {
		t.Errorf("rank %d, want the free one, %d", again.Rank(), members[2].Rank())
	}
	for _, m := range append(members[:2], again) {
		m.Leave()
	}
	for i, w := range c.nodes {
		if len(w.mu.locals)+len(w.mu.coordinators)+len(w.mu.parked) > 0 {
			t.Errorf("node %d keeps %v %v", i, w.mu.locals, w.mu.coordinators)
		}
	}
}

// TestMissing: a barrier ends without a member that is gone, also with the node that coordinates,
// and says so; one that is waited for no longer is met all the same.
func TestMissing(t *testing.T) {
	c := newCluster(t, 3)
	members := c.join(3, 0, 1, 2)
	_, err := members[1].Barrier(ended(t), 1)
	wants(t, err, errs.Timeout, "number 1")
	wants(t, second(members[1].Barrier(t.Context(), 2)), errs.Invalid, "barrier 1 is not over")
	over := make(chan Result, 2)
	for _, m := range members[1:] {
		go func() {
			r, err := m.Barrier(t.Context(), 1)
			if err != nil {
				t.Error(err)
			}
			over <- r
		}()
	}
	c.gone(1)
	for range 2 {
		if r := <-over; len(r.Missing) != 1 || r.Missing[0] != members[0].Rank() || len(r.Members) != 2 {
			t.Errorf("%+v", r)
		}
	}
	wants(t, second(members[0].Barrier(t.Context(), 1)), errs.StaleGen, "it may join again")
	wants(t, second(members[1].Barrier(t.Context(), 3)), errs.Invalid, "has arrived at 1")
}

// TestJoinOnANodeThatWasEvicted waits until the node is a member of the cluster again.
func TestJoinOnANodeThatWasEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2)
		members := c.join(2, 0, 1)
		c.gone(1)
		wants(t, second(members[0].Barrier(t.Context(), 1)), errs.StaleGen, "it may join again")
		wants(t, second(c.nodes[0].Join(ended(t), 9, 2)), errs.Timeout, "no member of the cluster")
		joined := make(chan error, 1)
		go func() { joined <- second(c.nodes[0].Join(t.Context(), 9, 2)) }()
		synctest.Wait()
		c.setGone(1, false)
		if err := <-joined; err != nil {
			t.Error(err)
		}
	})
}

func second[T any](_ T, err error) error { return err }

func TestCounter(t *testing.T) {
	c := newCluster(t, 2)
	members := c.join(2, 0, 1)
	sum := int64(0)
	for i, delta := range []int64{1, 5, -3, 0, 1 << 40} {
		sum += delta
		if v, err := members[i%2].Add(t.Context(), "n", delta); err != nil || v != sum {
			t.Errorf("%d, %v, want %d", v, err, sum)
		}
	}
	if v, err := members[0].Add(t.Context(), "other", 7); err != nil || v != 7 {
		t.Errorf("%d, %v", v, err)
	}
	_, err := members[0].Add(t.Context(), "", 1)
	wants(t, err, errs.Invalid, "1 to 255")
	c.gone(1) // which coordinated, and was a member: the other has seen both
	if v, err := members[1].Add(t.Context(), "n", 1); err != nil || v < 4 {
		t.Errorf("%d, %v", v, err)
	}
}

func TestTick(t *testing.T) {
	c := newCluster(t, 2)
	members := c.join(2, 0, 1)
	for i := range uint64(3) {
		if k, err := members[0].Tick(t.Context(), i+1, 3); err != nil || k.Ahead != i+1 {
			t.Errorf("%+v, %v", k, err)
		}
	}
	_, err := members[0].Tick(ended(t), 4, 3)
	wants(t, err, errs.Timeout, "more than 3 ticks behind")
	if _, err := members[1].Tick(t.Context(), 1, 3); err != nil {
		t.Error(err)
	}
	if _, err := members[0].Tick(t.Context(), 4, 3); err != nil {
		t.Error(err)
	}
	var text []string
	for _, s := range c.nodes[0].Stats() {
		if s.Value != "0" {
			text = append(text, s.Name+" "+s.Value)
		}
	}
	if got := strings.Join(text, ", "); !strings.Contains(got, "group_members 1, groups_coordinated 1, group_ticks_ahead_1 1, group_ticks_ahead_2 1, group_ticks_ahead_4 3") {
		t.Error(got)
	}
}

func TestList(t *testing.T) {
	c := newCluster(t, 2)
	if l := c.nodes[0].List(); len(l) != 0 {
		t.Error(l)
	}
	members := c.join(2, 0, 1)
	if l := c.nodes[0].List(); len(l) != 1 || !strings.HasPrefix(l[0], "9 size=2 members=2 round=0 ranks=") {
		t.Error(l)
	}
	_, _ = members[0].Barrier(ended(t), 1)
	if l := c.nodes[0].List(); !strings.Contains(l[0], " awaited=") || !strings.Contains(l[0], " since=") {
		t.Error(l)
	}
	members[1].Leave()
	if l := c.nodes[0].List(); !strings.Contains(l[0], "members=1 round=1") || !strings.Contains(l[0], "-") {
		t.Error(l)
	}
}
