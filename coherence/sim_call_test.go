package coherence

import (
	"bytes"
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// request is a call under way.
type request struct {
	n      *simNode
	by     *simProgram // nil: it does not matter
	what   string
	cancel context.CancelFunc
	gaveUp bool        // cancel was called
	firm   bool        // it is not given up
	synced bool        // a program of the node has synced for it
	reader *simProgram // the process that ends a round by what it has attached to read
	own    bool        // it has synced for it
	over   atomic.Bool
	err    error
	finish func(err error) // by the goroutine of the test, when the call has returned
}

// ask starts a call. finish, if not nil, is called with its error, which is nil or that of a call that was given up.
func (n *simNode) ask(what string, call func(ctx context.Context) error, finish func(err error)) *request {
	ctx, cancel := context.WithCancel(context.Background())
	q := &request{n: n, what: what, cancel: cancel, finish: finish}
	n.sim.requests = append(n.sim.requests, q)
	go func() {
		q.err = call(ctx)
		q.over.Store(true)
	}()
	return q
}

// giveUp ends a call as a signal or a deadline does.
func (q *request) giveUp() {
	if q.firm {
		return
	}
	q.gaveUp = true
	q.cancel()
}

// freePast frees what is to be freed past the end, and was asked for first.
func (n *simNode) freePast() bool {
	n.sim.mu.Lock()
	if len(n.frees) == 0 || n.dead {
		n.sim.mu.Unlock()
		return false
	}
	f := n.frees[0]
	n.frees = n.frees[1:]
	n.sim.mu.Unlock()
	f()
	return true
}

// rest lets everything run that waits for nothing, and finishes the calls that have returned.
func (s *sim) rest() {
	for _, n := range s.nodes {
		for !n.busy && n.freePast() {
		}
	}
	for s.bubble {
		synctest.Wait()
		i := 0
		for ; i < len(s.requests) && !s.requests[i].over.Load(); i++ {
		}
		if i == len(s.requests) {
			return
		}
		q := s.requests[i]
		s.requests = append(s.requests[:i:i], s.requests[i+1:]...)
		q.cancel()
		if q.n.dead {
			continue
		}
		short := errs.Is(q.err, errs.NoSpace) && (q.n.starved.Load() || q.what == "take" && slices.ContainsFunc(s.nodes, func(n *simNode) bool { return n.starved.Load() }))
		if q.what == "take" && errs.Is(q.err, errs.Timeout) { // the owner could not publish in time
			q.gaveUp = true
		}
		if q.what == "attach" && (errs.Is(q.err, errs.Busy) || errs.Is(q.err, errs.Unsupported)) { // the mount, or programs, have it already
			q.gaveUp, q.err = true, errs.E(errs.Timeout, "", "%w", q.err)
		}
		if s.whole && (errs.Is(q.err, errs.Access) || errs.Is(q.err, errs.Busy)) && (slices.Contains([]string{"open to write", "attach", "take"}, q.what) || (q.n.held != nil || q.n.evicted) && slices.Contains([]string{"sync", "publish", "release"}, q.what)) { // it was ousted
			q.gaveUp, q.err = true, errs.E(errs.Timeout, "", "%w", q.err)
		}
		if q.what == "finish a round" && q.n.evicted && errs.Is(q.err, errs.Unavailable) { // what it had accumulated is not in the round, and it is told
			q.gaveUp, q.err = true, errs.E(errs.Timeout, "", "%w", q.err)
		}
		if dead := (s.alone || s.taker != nil && s.taker.gone) && errs.Is(q.err, errs.Unavailable); q.err != nil && !dead && !short && !(q.gaveUp && (errs.Is(q.err, errs.Timeout) || errs.Is(q.err, errs.NoSpace))) {
			s.t.Errorf("node %d: %s: %v", q.n.i, q.what, q.err)
			s.explain()
			s.t.FailNow()
		}
		if q.finish != nil {
			q.finish(q.err)
		}
	}
}

// pass lets time go by.
func (s *sim) pass(d time.Duration) {
	<-time.After(d)
	s.rest()
}

// outstanding returns how many calls of the node are under way.
func (n *simNode) outstanding() (k int) {
	for _, q := range n.sim.requests {
		if q.n == n {
			k++
		}
	}
	return k
}

// WaitApplied waits, in a simulation, until the test applies the entry. Before it delivers a message it
// applies what that was made under: see ahead.
func (n *simNode) WaitApplied(ctx context.Context, rev dsm.Generation, e dsm.Epoch) error {
	for {
		s := n.sim
		s.mu.Lock()
		done, changed := n.ino.Rev >= rev && n.view.Epoch >= e, n.changed
		s.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// ahead applies what a message to the node was made under.
func (n *simNode) ahead(msg any) {
	m := reflect.ValueOf(msg).Elem()
	f := underOf(m.Type())
	if f.gen != nil && m.FieldByIndex(f.gen).Uint() > m.FieldByIndex(f.rev).Uint() {
		n.sim.t.Errorf("node %d gets %T %+v: it could be handled before the entry of the catalog under which it was made", n.i, msg, msg)
	}
	later := func(field []int, now uint64) bool { return field != nil && m.FieldByIndex(field).Uint() > now }
	waits := m.Type().Name() != "HandoverAck" // of which the goroutine that waits for the ack looks itself
	for waits && later(f.rev, uint64(n.ino.Rev)) || later(f.epoch, uint64(n.view.Epoch)) {
		n.apply()
	}
}

// under is where a type of messages says what it was made under: its fields, nil if it has none.
type under struct{ gen, rev, epoch []int }

var unders = make(map[reflect.Type]under) // FieldByName was a twentieth of the time of a simulation

func underOf(t reflect.Type) under {
	u, known := unders[t]
	if !known {
		field := func(name string) []int {
			f, _ := t.FieldByName(name)
			return f.Index
		}
		u = under{field("Gen"), field("Rev"), field("Epoch")}
		unders[t] = u
	}
	return u
}

// SlotsReady commits a view in which the handover of the slots is over.
func (n *simNode) SlotsReady(ctx context.Context, slots []dsm.Slot, e dsm.Epoch) error {
	s := n.sim
	if n == s.taker {
		<-time.After(20 * time.Millisecond) // it serves the slots already, and may die before anybody else knows
	}
	if err := n.awaitBack(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n.dead {
		return nil
	}
	v := s.lastViewLocked().Clone()
	for _, sl := range slots {
		if row := v.Row(sl); row.Primary == n.id && row.Source != 0 && e >= row.Epoch {
			row.Arrived()
			v.Epoch++
		}
	}
	if v.Epoch != s.lastViewLocked().Epoch {
		s.assign(v)
		s.log = append(s.log, entry{nil, v})
	}
	return nil
}

// Changed is the bell of the node's notifier.
func (n *simNode) Changed(dsm.AreaID) { n.kernel.bell.Store(true) }

// AttrChanged is nothing to a kernel that learns of sizes at once.
func (n *simNode) AttrChanged(dsm.AreaID) {}
func (n *simNode) Removed(dsm.AreaID)     {}

// calm lets the cluster run, with no more faults and with nothing new asked for, until nothing is left to happen. Calls that
// wait for something that is still to be stored may be left, all others must have returned.
func (s *sim) calm(left ...string) {
	waited := time.Duration(0)
	for i := 0; ; i++ {
		if i == 200_000 {
			s.t.Errorf("no rest after %d events", i)
			for _, q := range s.requests {
				s.t.Errorf("node %d: %s is not answered", q.n.i, q.what)
			}
			s.explain()
			s.t.FailNow()
		}
		s.rest()
		moved := s.deliver()
		moved = s.decide() || moved
		for _, n := range s.nodes {
			if n.behindCatalog() {
				n.apply()
				moved = true
			}
			moved = n.kernel.work() || moved
			moved = n.freePast() || moved
		}
		if moved {
			waited = 0
			continue
		}
		s.check()
		if s.syncsForAReader() || s.endsLeft != nil && s.endsLeft() {
			waited = 0
			continue
		}
		if waited < patience && s.waits(left...) { // some look again by themselves
			waited += overdue
			s.pass(overdue)
			continue
		}
		stuck := 0
		for _, q := range s.requests {
			if slices.Contains(left, q.what) {
				continue
			}
			stuck++
			s.t.Errorf("node %d: %s is never answered", q.n.i, q.what)
		}
		if stuck > 0 {
			s.explain()
			s.t.FailNow()
		}
		return
	}
}

// syncsForAReader has a program that stores sync, if another of its node waits for the result of a round. One such sync must do, and one by those of the process that
// waits, when the result is in the working copy.
func (s *sim) syncsForAReader() bool {
	for _, q := range s.requests {
		if prog := q.n.keeper(); q.what == "finish a round" && q.by == nil && !q.synced && prog != nil && prog.syncing == 0 {
			q.synced, prog.temporaries = true, nil
			q.n.sync(prog)
			return true
		}
		if prog := q.reader; prog != nil && !q.own && prog.syncing == 0 && prog.hasDraft() && slices.Contains(q.n.attached, prog) {
			q.own, prog.temporaries = true, nil
			q.n.sync(prog)
			return true
		}
	}
	return false
}

// keeper is a program that keeps updates out of memory, nil if there is none.
func (n *simNode) keeper() *simProgram {
	for _, prog := range n.programs() {
		if !prog.hasDraft() {
			return prog
		}
	}
	return nil
}

// patience is how long calls may wait while nothing happens. A fill may pause that long: see pace.go.
const patience = fillPause + 4*overdue

// waits reports whether a call is under way, but for those of the kinds left.
func (s *sim) waits(left ...string) bool {
	return slices.ContainsFunc(s.requests, func(q *request) bool { return !slices.Contains(left, q.what) })
}

// check has every node's area look at itself.
func (s *sim) check() {
	s.checks++
	for _, n := range s.nodes {
		if n.area == nil {
			continue
		}
		n.area.mu.Lock()
		bad := n.area.problemLocked(n.sim.hotPages())
		if bad == "" {
			bad = n.kernel.problem()
		}
		n.area.mu.Unlock()
		if bad == "" {
			bad = s.wholeProblem(n)
		}
		if bad != "" {
			s.t.Errorf("node %d: %s", n.i, bad)
			s.explain()
			s.t.FailNow()
		}
	}
	s.checkShown()
}

// wholeProblem checks what a node says of its memory: everything that homes have merged up to that version is in it. A home may have merged
// what a node publishes before that knows: this is in its memory, but not yet in the base.
func (s *sim) wholeProblem(n *simNode) string {
	a, r := n.area, &n.area.mu.replica
	a.mu.Lock()
	checked, ino, epoch := r.subscribed && !r.bare, a.mu.ino, a.mu.view.Epoch
	a.mu.Unlock()
	if !checked {
		return ""
	}
	for _, o := range s.nodes {
		if o.area == nil {
			continue
		}
		s.homed = o.homed(ino, epoch, s.homed[:0])
		a.mu.Lock()
		bad := ""
		for _, m := range s.homed {
			e, i := m.page.Extent()
			x := r.extents[e]
			if m.version <= r.whole && a.inAreaLocked(e, i) && x != nil && x.have.Has(i) && !x.publishes(i) && !bytes.Equal(m.bytes, a.mu.mem.Base(m.page)) {
				bad = fmt.Sprintf("everything up to version %d is here, but not page %d of version %d of node %d", r.whole, m.page, m.version, o.i)
			}
		}
		a.mu.Unlock()
		if bad != "" {
			return bad
		}
	}
	return ""
}

// publishes reports whether page i is in a publication that the home has not answered.
func (x *replicaExtent) publishes(i int) bool {
	for pub := range x.publications() {
		if pub.pages.Has(i) {
			return true
		}
	}
	return false
}

// merged is a page that a home has. Its bytes are the home's memory: all is at rest.
type merged struct {
	page    dsm.PageIndex
	version dsm.Version
	bytes   []byte
}

// homed appends a quarter of the pages that the node has as their home, another one in each check, if the catalog has the same state there: what is wrong stays so for many steps.
func (n *simNode) homed(ino dsm.Inode, epoch dsm.Epoch, list []merged) []merged {
	a := n.area
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.ino.Gen != ino.Gen || a.mu.ino.Size != ino.Size || a.mu.view.Epoch != epoch {
		return list
	}
	for e, h := range a.mu.home.extents {
		if !a.isSelf(a.rowLocked(e).Primary) {
			continue
		}
		for i, v := range h.pages {
			if p := page(e, i); v != 0 && (uint64(p)+n.sim.checks)%4 == 0 {
				list = append(list, merged{p, v, a.mu.mem.Home(p)})
			}
		}
	}
	return list
}
