package groups

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// Sender queues messages to other nodes: see coherence.Sender.
type Sender interface {
	Send(to dsm.NodeID, m any, payload [][]byte, more bool)
}

// Config is what a Node needs.
type Config struct {
	Self   dsm.NodeID
	Sender Sender
	Log    *slog.Logger // nil: nothing is logged
	// Home is the node that a view has for the first extent of a file.
	Home func(v *dsm.View, group dsm.AreaID) dsm.NodeID
	// few is how many members a node may have and report each thing at once; 0 means the usual.
	few int
	// Now is the clock that people are shown; nil means time.Now.
	Now func() time.Time
}

// Node is the part of one node in all groups: its programs are members of some and it coordinates
// some.
type Node struct {
	cfg    Config
	clocks clocks

	mu struct {
		lockrank.Mutex
		view         *dsm.View
		lives        uint64    // of the groups that this node has coordinated
		replaced     dsm.Epoch // the last view that took a group from this node
		seq          uint64    // of reports
		locals       map[dsm.AreaID]*local
		coordinators map[dsm.AreaID]*coordinator
		parked       map[parkedKey]parked
		parks        uint64    // numbers them
		inbox        []message // of this node to itself
		outbox       []message
		stakes       map[stake]int // how many members of this node have something in a round
		abandoned    []func()      // to be called with no lock held
		admitted     chan struct{} // closed when this node is a member of the cluster again; nil: nobody waits
		sending      bool          // a goroutine sends what is in outbox
		closed       bool
	}
}

// waiter is a program that waits. When ready has returned true, or an error, or the member is none any more,
// done is called, with no lock held.
type waiter struct {
	member *Member
	ready  func() (bool, error)
	done   func(error)
	err    error
}

// NewNode returns a Node without groups. It starts no goroutine.
func NewNode(cfg Config) *Node {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.few == 0 {
		cfg.few = few
	}
	n := &Node{cfg: cfg}
	n.mu.Init("groups.Node")
	n.clocks.mu.Init("groups.clocks")
	n.mu.view = new(dsm.View)
	n.mu.parked = make(map[parkedKey]parked)
	n.mu.locals = make(map[dsm.AreaID]*local)
	n.mu.coordinators = make(map[dsm.AreaID]*coordinator)
	n.mu.stakes = make(map[stake]int)
	return n
}

var errEvicted = errs.E(errs.StaleGen, "group", "this node was put out of the cluster, and the group goes on without this member: it may join again")

// Close ends all memberships.
func (n *Node) Close() {
	n.step(func() {
		n.mu.closed = true
		n.admitLocked()
		n.loseAllLocked(errs.E(errs.Closed, "group", "the node ends"))
	})
}

func (n *Node) loseAllLocked(err error) {
	for _, l := range n.mu.locals {
		for _, m := range l.inOrder() {
			m.endLocked(err)
		}
		n.reportLocked(l)
	}
}

// step runs f under the lock, and then what f has made: messages of this node to itself, messages
// to others, the end of rounds that are given up, and the waking of programs.
func (n *Node) step(f func()) {
	n.mu.Lock()
	f()
	n.settleLocked(false)
}

// settleLocked handles the messages of this node to itself, releases the lock, gives rounds up, wakes programs and
// sends messages. One goroutine sends at a time, so that they leave in the order of the steps. soon: the caller must not be delayed, as
// giving up a round may do.
func (n *Node) settleLocked(soon bool) {
	for len(n.mu.inbox) > 0 {
		m := n.mu.inbox[0]
		n.mu.inbox = n.mu.inbox[1:]
		n.handleLocked(n.cfg.Self, m.msg)
	}
	var woken []*waiter
	for id, l := range n.mu.locals {
		if len(l.waiters) > 0 {
			woken = append(woken, l.wakened()...)
		}
		if len(l.seats) == 0 && l.heard >= l.seq {
			delete(n.mu.locals, id)
		}
	}
	abandoned := n.mu.abandoned
	n.mu.abandoned = nil
	if soon && len(abandoned) > 0 {
		go func(abandoned []func(), woken []*waiter) {
			call(abandoned)
			wake(woken)
		}(abandoned, woken)
		abandoned, woken = nil, nil
	}
	if n.mu.sending || len(n.mu.outbox) == 0 {
		n.mu.Unlock()
		call(abandoned)
		wake(woken)
		return
	}
	n.mu.sending = true
	for len(n.mu.outbox) > 0 {
		out := n.mu.outbox
		n.mu.outbox = nil
		for i := range out {
			if due, ok := out[i].msg.(*dueReport); ok {
				out[i].msg = n.madeLocked(due)
			}
		}
		n.mu.Unlock()
		for _, m := range out {
			n.cfg.Sender.Send(m.to, m.msg, nil, false)
		}
		call(abandoned)
		wake(woken)
		woken, abandoned = nil, nil
		n.mu.Lock()
	}
	n.mu.sending = false
	n.mu.Unlock()
}

// wakened takes out the waiters whose wait is over.
func (l *local) wakened() (woken []*waiter) {
	l.waiters = slices.DeleteFunc(l.waiters, func(w *waiter) bool {
		over := true
		if w.err = w.member.ended; w.err == nil {
			over, w.err = w.ready()
		}
		if !over && w.err == nil {
			return false
		}
		woken = append(woken, w)
		return true
	})
	return woken
}

func call(list []func()) {
	for _, f := range list {
		f()
	}
}

func wake(list []*waiter) {
	for _, w := range list {
		w.done(w.err)
	}
}

// begin has a member begin something; done is called when it is ready, perhaps before begin returns.
// first reports whether there is something new to report. It and ready run under the lock. With an
// error nothing has begun, and done is not called.
func (n *Node) begin(m *Member, first, ready func() (bool, error), done func(error)) (*waiter, error) {
	n.mu.Lock()
	return n.beginLocked(m, first, ready, done, false)
}

// beginLocked is begin by a caller that has the lock, which it releases. soon is that of settleLocked.
func (n *Node) beginLocked(m *Member, first, ready func() (bool, error), done func(error), soon bool) (*waiter, error) {
	w := &waiter{member: m, ready: ready, done: done}
	if m.ended != nil {
		defer n.mu.Unlock()
		return nil, m.ended
	}
	news, err := first()
	if err != nil {
		defer n.mu.Unlock()
		return nil, err
	}
	if news {
		n.reportLocked(m.group)
	}
	m.group.waiters = append(m.group.waiters, w)
	n.settleLocked(soon)
	return w, nil
}

// giveUp ends a wait, and returns false if it was over.
func (n *Node) giveUp(w *waiter) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := w.member.group
	i := slices.Index(l.waiters, w)
	if i >= 0 {
		l.waiters = slices.Delete(l.waiters, i, i+1)
	}
	return i >= 0
}

// call begins something and waits until it is ready.
func (n *Node) call(ctx context.Context, m *Member, first, ready func() (bool, error)) error {
	over := make(chan error, 1)
	w, err := n.begin(m, first, ready, func(err error) { over <- err })
	if err != nil {
		return err
	}
	select {
	case err := <-over:
		return err
	case <-ctx.Done():
	}
	switch {
	case !n.giveUp(w):
		return <-over
	case ctx.Err() == context.DeadlineExceeded:
		return errs.E(errs.Timeout, "group", "")
	}
	return errs.E(errs.Interrupted, "group", "")
}

// Join makes a program a member of a group, and returns when it has a rank: when the group is
// complete, or one of its members has gone. On a node that was evicted it first waits until that has joined again.
func (n *Node) Join(ctx context.Context, group dsm.AreaID, size int) (*Member, error) {
	if size < 1 || size > MaxSize {
		return nil, errs.E(errs.Invalid, "join", "a group has 1 to %d members, not %d", MaxSize, size)
	}
	if err := n.awaitAdmission(ctx); err != nil {
		return nil, err
	}
	m := n.newMember(group, size)
	err := n.call(ctx, m, m.applyLocked, m.hasRankLocked)
	if err == nil {
		return m, nil
	}
	n.step(func() {
		if m.ended != nil {
			return
		}
		if errs.Is(err, errs.Timeout) {
			err = n.lackingLocked(m)
		}
		m.endLocked(err)
		n.reportLocked(m.group)
	})
	return nil, err
}

// awaitAdmission waits while the node is no member of the cluster, as one that was evicted is not until it has joined again.
func (n *Node) awaitAdmission(ctx context.Context) error {
	n.mu.Lock()
	if n.mu.closed || here(n.mu.view, n.cfg.Self) {
		n.mu.Unlock()
		return nil
	}
	if n.mu.admitted == nil {
		n.mu.admitted = make(chan struct{})
	}
	admitted := n.mu.admitted
	n.mu.Unlock()
	select {
	case <-admitted:
		return nil
	case <-ctx.Done():
	}
	if ctx.Err() == context.DeadlineExceeded {
		return errs.E(errs.Timeout, "join", "this node is no member of the cluster now")
	}
	return errs.E(errs.Interrupted, "join", "")
}

// admitLocked wakes who waits for admission.
func (n *Node) admitLocked() {
	if n.mu.admitted != nil {
		close(n.mu.admitted)
		n.mu.admitted = nil
	}
}

// newMember returns a program that has not yet applied for a rank.
func (n *Node) newMember(group dsm.AreaID, size int) *Member {
	m := &Member{n: n, seat: wire.GroupSeat{ID: rand.Uint64() | 1, Size: size}, sums: make(map[uint64]*int64)}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.mu.closed:
		m.ended = errs.E(errs.Closed, "join", "the node ends")
	case !here(n.mu.view, n.cfg.Self):
		m.ended = errEvicted
	}
	if m.ended != nil {
		return m
	}
	m.group = n.mu.locals[group]
	if m.group == nil {
		m.group = newLocal(group)
		m.group.few = n.cfg.few
		m.group.coordinator = n.coordinatorLocked(group)
		n.mu.locals[group] = m.group
	}
	m.group.seats[m.seat.ID] = m
	m.group.sorted = nil
	return m
}

// reportLocked tells the coordinator what there is to say.
func (n *Node) reportLocked(l *local) { n.tellLocked(l, false) }

// dueReport stands in the outbox for a report, which is made when it is sent: it says all that there is to say then, so a node owes another one
// report of a group at most.
type dueReport struct {
	local *local
	known bool
	reign dsm.Epoch
}

// few is how many members of a node make a report so large that the next one waits until the coordinator has heard of the last, and has all that
// came meanwhile: else a barrier of members on one node would cost the square of their number. 256 took 100 ms of processor time.
const few = 16

func (n *Node) tellLocked(l *local, known bool) {
	if !known && l.reign != 0 && len(l.seats) > n.cfg.few && l.acked < l.seq {
		l.owing = true
		return
	}
	n.mu.seq++
	l.seq = n.mu.seq
	if l.coordinator == n.cfg.Self {
		n.postLocked(l.coordinator, l.report(l.seq, n.mu.view.Epoch, known))
		return
	}
	for _, m := range n.mu.outbox {
		if due, ok := m.msg.(*dueReport); ok && due.local == l && m.to == l.coordinator {
			due.known = known || due.known && due.reign == l.reign
			due.reign = l.reign
			return
		}
	}
	n.postLocked(l.coordinator, &dueReport{l, known, l.reign})
}

// madeLocked makes a report that is sent now.
func (n *Node) madeLocked(due *dueReport) *wire.GroupReport {
	return due.local.report(due.local.seq, n.mu.view.Epoch, due.known && due.reign == due.local.reign)
}

func (n *Node) postLocked(to dsm.NodeID, msg any) {
	switch to {
	case n.cfg.Self:
		n.mu.inbox = append(n.mu.inbox, message{to, msg})
	case 0: // nobody is there
	default:
		n.mu.outbox = append(n.mu.outbox, message{to, msg})
	}
}

// here reports whether a node is a member of the cluster, and not gone.
func here(v *dsm.View, id dsm.NodeID) bool {
	m, ok := v.Member(id)
	return ok && !m.Gone
}

// followed reports whether another daemon of a member has followed the one that it had in the view old. It knows nothing of any group.
func followed(old, v *dsm.View, id dsm.NodeID) bool {
	was, member := old.Member(id)
	is, _ := v.Member(id)
	return member && was.Since != is.Since
}

// coordinatorLocked returns the coordinator of a group: the home of its file, or, if that is gone,
// the node that comes first in an order of the group's own.
func (n *Node) coordinatorLocked(group dsm.AreaID) dsm.NodeID {
	v := n.mu.view
	if home := n.cfg.Home(v, group); here(v, home) {
		return home
	}
	var first dsm.NodeID
	best := uint64(0)
	for _, m := range v.Members {
		h := (uint64(m.ID) ^ uint64(group)*0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9
		if h ^= h >> 32; !m.Gone && (first == 0 || cmp.Compare(h, best) > 0) {
			first, best = m.ID, h
		}
	}
	return first
}
