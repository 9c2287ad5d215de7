package groups

import (
	"slices"
	"strings"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// slowSender keeps its caller until it may go on, and notes what was sent.
type slowSender struct {
	begun, free chan struct{}
	sent        []any
}

func (s *slowSender) Send(_ dsm.NodeID, m any, _ [][]byte, _ bool) {
	select {
	case s.begun <- struct{}{}:
	default:
	}
	<-s.free
	s.sent = append(s.sent, m)
}

func startAdding(t *testing.T, m *Member, name string) error {
	t.Helper()
	_, err := m.n.begin(m, first(m, name), func() (bool, error) { return false, nil }, func(error) {})
	return err
}

func first(m *Member, name string) func() (bool, error) {
	begin, _ := m.addition(name, 1, new(uint64), new(int64))
	return begin
}

// TestOneReportIsOwed: while one is sent, all that comes goes into the next.
func TestOneReportIsOwed(t *testing.T) {
	c := newCluster(t, 2)
	m := c.join(1, 1)[0]
	s := &slowSender{begun: make(chan struct{}, 1), free: make(chan struct{})}
	m.n.cfg.Sender = s
	over := make(chan error)
	go func() { over <- startAdding(t, m, "0") }()
	<-s.begun
	for range maxAdds - 1 {
		if err := startAdding(t, m, "x"); err != nil {
			t.Fatal(err)
		}
	}
	m.n.Handle(1, &wire.GroupCall{Group: 9, Reign: 1})
	if err := startAdding(t, m, "x"); !errs.Is(err, errs.WouldBlock) {
		t.Error(err)
	}
	close(s.free)
	if err := <-over; err != nil {
		t.Error(err)
	}
	if len(s.sent) != 2 {
		t.Fatalf("%d reports of %d additions", len(s.sent), maxAdds)
	}
	if r, ok := s.sent[1].(*wire.GroupReport); !ok || len(r.Seats) != 1 || len(r.Seats[0].Adds) != maxAdds || r.Known == nil || r.Seq != m.group.seq {
		t.Errorf("%+v", s.sent[1])
	}
}

// countingSender counts the bytes of messages.
type countingSender struct {
	t            *testing.T
	total, worst int
}

func (s *countingSender) Send(_ dsm.NodeID, m any, _ [][]byte, _ bool) {
	b, err := wire.Append(nil, m, 0, false, 0)
	if err != nil {
		s.t.Error(err)
	}
	s.total, s.worst = s.total+len(b), max(s.worst, len(b))
}

// TestAdditionsWithoutAnAnswer take a bounded room on the way to a coordinator that reads nothing, however many programs add.
func TestAdditionsWithoutAnAnswer(t *testing.T) {
	for _, length := range []int{1, maxName} {
		c := newCluster(t, 2)
		members := c.join(16, make16(1)...)
		s := &countingSender{t: t}
		members[0].n.cfg.Sender = s
		added, refused := 0, 0
		for range maxAdds {
			for _, m := range members {
				err := startAdding(t, m, strings.Repeat("x", length))
				switch {
				case err == nil:
					added++
				case errs.Is(err, errs.WouldBlock) && strings.Contains(err.Error(), "bytes of additions"):
					refused++
				default:
					t.Fatal(err)
				}
			}
		}
		t.Logf("names of %d bytes: %d additions, %d refused, largest report %d, all %d", length, added, refused, s.worst, s.total)
		if s.worst > 2*maxAdding || s.total > 8<<20 || refused == 0 {
			t.Errorf("largest report %d, all %d, %d refused", s.worst, s.total, refused)
		}
		members[0].n.cfg.Sender = c.nodes[1]
		c.nodes[1].SessionReset(1)
		if _, err := members[3].Add(t.Context(), "again", 1); err != nil || members[0].group.adding != 0 {
			t.Errorf("%v, %d bytes wait for an answer", err, members[0].group.adding)
		}
	}
}

func make16(node int) (list []int) {
	for range 16 {
		list = append(list, node)
	}
	return list
}

// TestManyOnANode: what the members of a node say while a report is on its way goes into the next one, so a barrier costs as much for each of many
// as for each of few. A report that is dropped is made good.
func TestManyOnANode(t *testing.T) {
	h := &chosen{sim: newSim(t, 1, 2)}
	h.join(slices.Repeat([]int{1}, MaxSize)...)
	for number := uint64(1); number <= 3; number++ {
		h.seats = 0
		for _, p := range h.progs {
			p.next, p.round = number, false
			p.meet()
			if number == 2 && p == h.progs[5] {
				h.net[[2]int{1, 0}] = nil
				h.nodes[1].SessionReset(1)
			}
		}
		h.pass()
		for _, p := range h.progs {
			if p.number != number {
				t.Fatalf("a program is at %d, not %d", p.number, number)
			}
		}
		if h.seats > 4*MaxSize {
			t.Errorf("barrier %d: reports of %d members, %d in all", number, MaxSize, h.seats)
		}
	}
}

// TestWhoLeavesAddsNothingMore: what a member that ends had not been answered takes no room any more.
func TestWhoLeavesAddsNothingMore(t *testing.T) {
	c := newCluster(t, 2)
	members := c.join(2, 1, 1)
	members[0].n.cfg.Sender = &countingSender{t: t}
	for _, m := range members {
		if err := startAdding(t, m, "x"); err != nil {
			t.Fatal(err)
		}
	}
	l := members[0].group
	if members[0].Leave(); l.adding != addBytes("x") {
		t.Errorf("%d bytes count as under way", l.adding)
	}
}

// TestAnswersInAnyOrder: an addition is settled when all before it are answered, too: until then the coordinator keeps their answers.
func TestAnswersInAnyOrder(t *testing.T) {
	c := newCluster(t, 2)
	m := c.join(1, 1)[0]
	m.n.cfg.Sender = &countingSender{t: t}
	for range 3 {
		if err := startAdding(t, m, "x"); err != nil {
			t.Fatal(err)
		}
	}
	for _, a := range []struct{ number, settled uint64 }{{3, 0}, {1, 1}, {2, 3}} {
		m.n.step(func() { m.answeredLocked(wire.GroupSum{Seat: m.seat.ID, Number: a.number}) })
		if m.seat.Settled != a.settled {
			t.Errorf("after the answer to %d all are settled up to %d, want %d", a.number, m.seat.Settled, a.settled)
		}
	}
}
