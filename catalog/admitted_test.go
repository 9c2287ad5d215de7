package catalog

import (
	"context"
	"fmt"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// joins has a node join through another. Nothing of raft reaches it before the door is opened. It returns when the leader has the member.
func joins(t *testing.T, lead, via *node) (x *node, open func(), joined <-chan error) {
	t.Helper()
	x = start(t, "late")
	open = x.streams.shutDoor()
	t.Cleanup(open)
	done := make(chan error, 1)
	go func() { done <- x.Join(patient(t), via.self.Addr) }()
	lead.sees(t, "a node that joins", func(v *dsm.View) bool {
		_, ok := v.Member(x.self.ID)
		return ok
	})
	return x, open, done
}

// TestNodeThatCatchesUpGivesSignsOfLife: the log comes to a node later than a lease after it was admitted. It has asked a node that does not lead.
func TestNodeThatCatchesUpGivesSignsOfLife(t *testing.T) {
	nodes := cluster(t, 3)
	lead := leaderOf(t, nodes)
	via := nodes[0]
	if via == lead {
		via = nodes[1]
	}
	x, open, joined := joins(t, lead, via)
	ctx, cancel := context.WithTimeout(t.Context(), 2*DefaultLease)
	defer cancel()
	if err := lead.news.until(ctx, lead.life, func() bool { return isOut(x.self.ID)(lead.Current()) }); err == nil {
		t.Error("it was evicted")
	}
	if x.Current().Epoch != 0 {
		t.Error("the log has come before")
	}
	open()
	if err := <-joined; err != nil {
		t.Error(err)
	}
}

// cut is the Caller of a node whose connections break behind its requests to join, so many times. Each time nobody is reached at the next try.
type cut struct {
	Caller
	left    *int
	refused bool
	admits  func() // called when an answer was lost
}

func (c *cut) Call(ctx context.Context, addr string, req any) (any, error) {
	if _, join := req.(*wire.Join); !join {
		return c.Caller.Call(ctx, addr, req)
	}
	if c.refused {
		c.refused = false
		return nil, errs.E(errs.Unavailable, "connect", "connection refused")
	}
	reply, err := c.Caller.Call(ctx, addr, req)
	if *c.left == 0 || err != nil {
		return reply, err
	}
	*c.left--
	c.refused = true
	c.admits()
	return nil, errs.E(errs.Unavailable, "call", "%w", errs.ErrUnanswered)
}

// TestAnswerToJoinIsLost: the connection breaks after the node was admitted, more than once. It asks again, through a leader or another, and is a member once.
func TestAnswerToJoinIsLost(t *testing.T) {
	nodes := cluster(t, 3)
	for i, via := range nodes {
		x, left := start(t, fmt.Sprint("x", i)), 3
		x.via.use(&cut{Caller: x.net, left: &left, admits: func() {
			if m, ok := leaderOf(t, nodes).Current().Member(x.self.ID); !ok || m.Inc != x.self.Inc || m.Gone {
				t.Errorf("it was not admitted: %+v", m)
			}
		}})
		if err := x.Join(patient(t), via.self.Addr); err != nil || left > 0 {
			t.Errorf("%v; %d answers were not lost", err, left)
		}
		if v := x.Current(); len(v.Members) != len(nodes)+i+1 {
			t.Errorf("members %+v", v.Members)
		}
	}
}

// TestEvictedBehindALostAnswer: by the time that the node asks again it was put out. It hears so, and a new incarnation may join.
func TestEvictedBehindALostAnswer(t *testing.T) {
	nodes := cluster(t, 3)
	lead := leaderOf(t, nodes)
	x, left := start(t, "x"), 1
	t.Cleanup(x.streams.shutDoor())
	x.via.use(&cut{Caller: x.net, left: &left, admits: func() {
		lead.sees(t, "a node that is silent", isOut(x.self.ID))
	}})
	if err := x.Join(patient(t), lead.self.Addr); !errs.Is(err, errs.Evicted) {
		t.Errorf("%v, want that it was evicted", err)
	}
}

// TestEvictedWhileItJoins: the node hears so, and does not wait for a log that does not come.
func TestEvictedWhileItJoins(t *testing.T) {
	nodes := cluster(t, 3)
	lead := leaderOf(t, nodes)
	x, _, joined := joins(t, lead, lead)
	x.via.use(mute{})
	lead.sees(t, "a node that is silent while it joins", isOut(x.self.ID))
	x.via.use(x.net)
	if err := <-joined; !errs.Is(err, errs.Evicted) {
		t.Errorf("%v, want that it was evicted", err)
	}
}

// deaf is the Caller of a node of which one address answers nothing more once it has admitted the node. Who asks it then gives up.
type deaf struct {
	Caller
	addr   string
	dead   bool
	giveUp func()
}

func (c *deaf) Call(ctx context.Context, addr string, req any) (any, error) {
	if _, join := req.(*wire.Join); !join || addr != c.addr {
		return c.Caller.Call(ctx, addr, req)
	}
	if c.dead {
		c.giveUp()
		return nil, errs.E(errs.Unavailable, "connect", "connection refused")
	}
	c.dead = true
	if _, err := c.Caller.Call(ctx, addr, req); err != nil {
		return nil, err
	}
	return nil, errs.E(errs.Unavailable, "call", "%w", errs.ErrUnanswered)
}

// TestEvictedBeforeTheNextAddress: the node that admits this one dies, and by the time that another one is asked this one was put out.
func TestEvictedBeforeTheNextAddress(t *testing.T) {
	nodes := cluster(t, 3)
	lead := leaderOf(t, nodes)
	var via *node
	for _, n := range nodes {
		if n != lead {
			via = n
		}
	}
	x := start(t, "x")
	t.Cleanup(x.streams.shutDoor())
	ctx, cancel := context.WithCancel(patient(t))
	defer cancel()
	x.via.use(&deaf{Caller: x.net, addr: via.self.Addr, giveUp: cancel})
	if err := x.Join(ctx, via.self.Addr); err == nil {
		t.Fatal("it has joined")
	}
	lead.sees(t, "a node that is silent", isOut(x.self.ID))
	if err := x.Join(patient(t), lead.self.Addr); !errs.Is(err, errs.Evicted) {
		t.Errorf("%v, want that it was evicted", err)
	}
}
