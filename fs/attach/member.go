package attach

import (
	"context"
	"encoding/binary"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/groups"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// Groups lets programs join groups.
type Groups interface {
	// Join returns when the program has a rank in the group that the file names.
	Join(ctx context.Context, group dsm.AreaID, size int) (*groups.Member, error)
}

// membership is a group that a program has joined. It ends with LEAVE or with the connection.
type membership struct {
	id uint64
	*groups.Member
	turn chan struct{} // has a token while a ROUND runs
}

// within returns the context of a request that waits at most so many milliseconds, 0 for no limit.
func within(ctx context.Context, ms uint64) (context.Context, context.CancelFunc) {
	if ms == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Duration(min(ms, maxWaitMillis))*time.Millisecond)
}

// together serves the requests of a program that acts together with others.
func (a *conn) together(q *request) (reply, error) {
	ctx, cancel := within(a.ctx, q.arg[1])
	defer cancel()
	if q.op == opJoin {
		return a.join(ctx, q)
	}
	a.mu.Lock()
	m := a.mu.members[q.attachment]
	if m != nil && q.op == opLeave {
		delete(a.mu.members, m.id)
	}
	a.mu.Unlock()
	if m == nil {
		return reply{}, &errs.Error{Op: "group", Err: unix.ENOTCONN}
	}
	switch q.op {
	case opLeave:
		m.leave(a)
		return reply{}, nil
	case opBarrier:
		r, err := m.Barrier(ctx, q.arg[0])
		return met(r), err
	case opCount:
		v, err := m.Add(ctx, q.payload, int64(q.arg[0]))
		return reply{arg: [4]uint64{uint64(v)}}, err
	case opAccumulate:
		return reply{}, a.accumulate(m, q)
	case opTick:
		k, err := m.Tick(ctx, q.arg[0], q.arg[2])
		return reply{arg: [4]uint64{k.Ticks, k.Ahead}}, err
	default:
		r, err := a.round(ctx, m, q)
		return met(r), err
	}
}

// isArrival reports whether a request is a BARRIER without a time limit.
func (q *request) isArrival() bool { return q.op == opBarrier && q.arg[1] == 0 }

// arrive serves a BARRIER without a time limit in the goroutines that are awake anyway: this one takes
// the arrival, and the one that learns of the end sends the answer. With two more for each program
// a barrier of four nodes took 623 us in place of 475, on two processors.
//
// The request counts until its answer is sent. If the barrier is over at once and the program reads no
// answers, the goroutine of the connection waits for it: then no more of its requests are read. So if rest is not nil, that goroutine calls
// it. now: the caller is the loop. Then taken is false, and nothing has been done, if it would have to wait.
func (a *conn) arrive(q *request, now bool) (taken bool, rest func()) {
	var r groups.Result
	var failed error
	late := func() {
		a.reply(q, met(r), failed)
		a.endWait()
	}
	var second atomic.Bool // of the end and the return of Arrive: the second of them sends an answer that must wait
	done := func(result groups.Result, err error) {
		r, failed = result, err
		switch {
		case replyNow(a.conn, a.packet(q, met(r), failed)):
			a.endWait()
		case second.Swap(true): // the program reads no answers, or is gone
			go late()
		}
	}
	err := error(&errs.Error{Op: "group", Err: unix.ENOTCONN})
	a.mu.Lock()
	m := a.mu.members[q.attachment]
	a.mu.Unlock()
	switch taken = true; {
	case m == nil:
	case now:
		taken, err = m.ArriveNow(q.arg[0], done)
	default:
		err = m.Arrive(q.arg[0], done)
	}
	switch {
	case !taken:
		return false, nil
	case err != nil:
		failed = err
	case !second.Swap(true):
		return true, nil
	}
	return true, late
}

// join serves JOIN. Whoever may write the file that names a group may join it.
func (a *conn) join(ctx context.Context, q *request) (reply, error) {
	if a.s.cfg.Groups == nil {
		return reply{}, errs.E(errs.Unsupported, "join", "this node has no groups")
	}
	if q.arg[0] > math.MaxInt32 {
		return reply{}, errs.E(errs.Invalid, "join", "a group of %d members", q.arg[0])
	}
	i, err := a.s.file(ctx, &a.who, q.payload, dsm.MayWrite)
	if err != nil {
		return reply{}, err
	}
	if err := a.s.attached(a.user); err != nil {
		return reply{}, err
	}
	m, err := a.s.cfg.Groups.Join(ctx, i.Area(), int(q.arg[0]))
	if err != nil {
		a.s.endAttachment(a.user)
		return reply{}, err
	}
	a.mu.Lock()
	a.mu.last++
	x := &membership{a.mu.last, m, make(chan struct{}, 1)}
	a.mu.members[x.id] = x
	a.mu.Unlock()
	return reply{attachment: x.id, arg: [4]uint64{uint64(m.Rank()), q.arg[0], m.First(), m.Ticks()}}, nil
}

// leave ends the membership.
func (x *membership) leave(a *conn) {
	x.Member.Leave()
	a.s.endAttachment(a.user)
}

// leaveAll ends the memberships of a connection that has ended.
func (a *conn) leaveAll() {
	a.mu.Lock()
	list := a.mu.members
	a.mu.members = nil
	a.mu.Unlock()
	for _, m := range list {
		m.leave(a)
	}
}

// met is the reply to BARRIER and ROUND: the payload has a bit for each rank that is missing, and is
// empty if none is.
func met(r groups.Result) reply {
	out := reply{arg: [4]uint64{r.Number, uint64(len(r.Members))}}
	if len(r.Missing) > 0 {
		bits := make([]byte, slices.Max(r.Missing)/8+1)
		for _, rank := range r.Missing {
			bits[rank/8] |= 1 << (rank % 8)
		}
		out.payload = string(bits)
	}
	return out
}

// maxRoundAreas bounds the areas of a round.
const maxRoundAreas = maxPayload / 8

// round serves ROUND.
func (a *conn) round(ctx context.Context, m *membership, q *request) (groups.Result, error) {
	if len(q.payload)%8 != 0 || len(q.payload) > 8*maxRoundAreas {
		return groups.Result{}, errs.E(errs.Invalid, "round", "%d bytes: want the numbers of at most %d areas, of 8 bytes each", len(q.payload), maxRoundAreas)
	}
	var wanted []dsm.Ino
	for rest := []byte(q.payload); len(rest) > 0; rest = rest[8:] {
		wanted = append(wanted, dsm.Ino(binary.LittleEndian.Uint64(rest)))
	}
	slices.Sort(wanted)
	if len(slices.Compact(slices.Clone(wanted))) != len(wanted) {
		return groups.Result{}, errs.E(errs.Invalid, "round", "an area is named twice")
	}
	select {
	case m.turn <- struct{}{}:
		defer func() { <-m.turn }()
	case <-ctx.Done():
		return groups.Result{}, errs.E(errs.Timeout, "round", "an earlier call of this member is not over")
	}
	areas := make(map[dsm.AreaID]groups.Area)
	attached := a.s.attachmentsOf(a.who.pid, wanted)
	for _, ino := range wanted {
		if x := attached[ino]; x != nil && (x.write || x.adds.Load()) {
			areas[dsm.AreaID(ino)] = roundArea{x}
			continue
		}
		if err := a.mayRound(ctx, ino); err != nil {
			return groups.Result{}, err
		}
		areas[dsm.AreaID(ino)] = a.s.cfg.Mount.Rounds(ino)
	}
	return m.Meet(ctx, q.arg[0], areas, a.s.cfg.Timeout)
}

// mayRound returns why the program may not put together an area that it has not attached to store or to accumulate.
func (a *conn) mayRound(ctx context.Context, ino dsm.Ino) error {
	ctx, cancel := context.WithTimeout(ctx, a.s.cfg.Timeout)
	defer cancel()
	_, err := a.s.openFile(ctx, &a.who, ino, dsm.MayWrite)
	return err
}

// roundArea is an area that a program has attached to store or to accumulate, as a round needs it.
type roundArea struct{ *attachment }

func (x roundArea) Contribute(ctx context.Context, id dsm.RoundID) error {
	return x.area.Contribute(ctx, id)
}

func (x roundArea) AbandonRound(id dsm.RoundID) { x.area.AbandonRound(id) }

func (x roundArea) FinishRound(ctx context.Context, id dsm.RoundID, nodes []dsm.NodeID, writers int) error {
	return x.at.FinishRound(ctx, id, nodes, writers)
}

// attachmentsOf returns what a program has attached of some areas, by any of its connections, for writing if it has. The areas are sorted.
func (s *Server) attachmentsOf(pid int, wanted []dsm.Ino) map[dsm.Ino]*attachment {
	var conns []*conn
	s.mu.Lock()
	for c := range s.mu.conns {
		if c.who.pid == pid {
			conns = append(conns, c)
		}
	}
	s.mu.Unlock()
	found := make(map[dsm.Ino]*attachment)
	for _, c := range conns {
		c.attached(wanted, found)
	}
	return found
}

func (a *conn) attached(wanted []dsm.Ino, found map[dsm.Ino]*attachment) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, x := range a.mu.attachments {
		if _, ok := slices.BinarySearch(wanted, x.file); ok && (found[x.file] == nil || x.write && !found[x.file].write) {
			found[x.file] = x
		}
	}
}
