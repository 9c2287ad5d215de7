package coherence

import (
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/hold"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/pages"
)

// In a run with restarts daemons are killed between any two steps, and others follow in their place. What the kernel has stays, and so do the programs. Nothing
// that they stored is lost, or counts twice.

// holdAll has all nodes keep what they have for the daemons that follow.
func (r *simRun) holdAll() {
	for _, n := range r.nodes {
		n.hold()
	}
}

// hold has the node keep what it has for the daemons that follow.
func (n *simNode) hold() {
	m, err := hold.Create()
	if err != nil {
		n.sim.t.Fatal(err)
	}
	n.held, n.shelf = m, hold.NewShelf()
	n.newDaemon()
	n.node.keepServed()
}

// newDaemon makes a data plane with what was kept.
func (n *simNode) newDaemon() {
	store, err := pages.NewKeep(n.held, n.shelf)
	if err != nil {
		n.sim.t.Fatal(err)
	}
	old := n.node
	n.frees = nil
	n.daemons++
	n.config.Store, n.config.First, n.config.Sender = store, uint64(n.daemons)<<40, &daemonSender{simNode: n}
	n.node = New(n.config)
	n.node.resize, n.node.free, n.node.closePatience = old.resize, old.free, old.closePatience
	n.node.links.window, n.node.copyLinks.window = old.links.window, old.copyLinks.window
	n.node.SetPageCache(n)
}

// restartOn has a daemon be killed at times.
func (r *simRun) restartOn() {
	every := 60
	if r.kind.attaches {
		every = 30
	}
	if !r.kind.restarts || r.rng.IntN(every) > 0 {
		return
	}
	n := r.aNode()
	if r.kind.aways && r.rng.IntN(2) == 0 { // where there is the most to go wrong
		if o := r.unsettled(); o != nil {
			n = o
		}
	}
	if r.kind.attaches && r.awayNode() == nil && len(n.attached) == 0 && r.rng.IntN(4) > 0 {
		n.attach() // so that there are programs which go on
		r.calm("wait")
		return
	}
	if v := r.lastView().Clone(); r.goesBack(v, n) {
		r.restart(n)
	}
}

// unsettled is a node that is evicted, or compares what it has stored meanwhile; or nil.
func (r *simRun) unsettled() *simNode {
	for _, n := range r.programNodes() {
		if n.area == nil {
			continue
		}
		n.area.mu.Lock()
		compares := n.area.mu.absence.compares()
		n.area.mu.Unlock()
		if compares || n.away {
			return n
		}
	}
	return nil
}

// madeConflicts is where those begin that nothing but conflictOn finds.
const madeConflicts = 1 << 40

// conflictOn has a node find a conflict at times in a run in which daemons are killed, or has some be cleared.
func (r *simRun) conflictOn() {
	if !r.kind.restarts || r.rng.IntN(20) > 0 {
		return
	}
	n := r.aNode()
	if n.area == nil {
		return
	}
	if r.rng.IntN(4) == 0 && !r.whole {
		n.node.ClearConflicts(simArea, r.rng.Uint64N(8))
		return
	}
	given := make([]byte, 1+r.rng.IntN(2*dsm.PageSize))
	for i := range given {
		given[i] = byte(r.rng.Uint32())
	}
	off := madeConflicts + r.rng.Int64N(1<<20)
	n.area.step(func() { n.area.keepLocked(off, given, given) })
}

// conflictsOf returns the conflicts that a node keeps, and the bytes that are lost.
func conflictsOf(n *simNode) (list []string) {
	found := n.node.ListConflicts(&wire.ListConflicts{Area: simArea})
	for _, x := range found.List {
		list = append(list, fmt.Sprintf("%d: %d, %x at %d, not %x", x.Number, x.Time.UnixNano(), x.Taken, x.Off, x.Kept))
	}
	return append(list, fmt.Sprint(found.Lost, found.More))
}

// endLeftOn has what nobody ends any more of rounds be taken back at times.
func (r *simRun) endLeftOn() {
	if r.kind.restarts && r.kind.rounds && r.rng.IntN(40) == 0 {
		r.endLeft(r.aNode())
	}
}

// endsLeft has it be taken back at all nodes. It reports whether there was any.
func (r *simRun) endsLeft() (any bool) {
	for _, n := range r.programNodes() {
		any = r.endLeft(n) || any
	}
	return any
}

func (r *simRun) endLeft(n *simNode) bool {
	if n.area == nil {
		return false
	}
	g := &r.group
	n.area.mu.Lock()
	c := n.area.mu.replica.contribution
	ends := c != nil && c.left && !c.gone && (c.id != g.id() || g.list == nil || !slices.Contains(g.list, n.id))
	n.area.mu.Unlock()
	if ends {
		n.node.endLeft()
	}
	return ends
}

// memberIsGone takes a member out of its group, whose daemon was killed. What it had contributed is in the round if the others end it with that.
func (r *simRun) memberIsGone(n *simNode) {
	g := &r.group
	if g.members == nil {
		return
	}
	m := &g.members[n.i]
	switch {
	case slices.Contains(g.list, n.id):
		m.state = roundOver
	case g.list == nil && r.rng.IntN(2) == 0: // it joins again, while the round is not over
		*m = simMember{}
	default:
		*m = simMember{state: roundOver}
	}
}

// callsOfRound reports whether a call of a round has not returned. It may go on for a while when it was given up, and its program calls nothing else meanwhile: the end of
// the call ends the round for the program.
func (n *simNode) callsOfRound() bool {
	return slices.ContainsFunc(n.sim.requests, func(q *request) bool {
		return q.n == n && (q.what == "contribute" || q.what == "finish a round")
	})
}

// restart kills the daemon of a node, and starts another. Perhaps that of another node is killed meanwhile.
func (r *simRun) restart(n *simNode) {
	k := r.killDaemon(n)
	if k == nil {
		return
	}
	down := r.untilNext(k)
	r.rng.Shuffle(len(down), func(i, j int) { down[i], down[j] = down[j], down[i] })
	for _, k := range down {
		r.nextDaemon(k)
	}
}

// killed is a node whose daemon was killed.
type killed struct {
	n         *simNode
	memory    *Area // which its programs have attached
	conflicts []string
	reader    bool
	writer    *simProgram
	again     []stashed // WRITEs that were not answered
}

// killDaemon kills the daemon of a node. It returns nil if the node could not come back, or in the midst of what the kernel would ask for again.
func (r *simRun) killDaemon(n *simNode, down ...*simNode) *killed {
	for _, q := range r.requests {
		if q.n == n && q.firm {
			return nil
		}
	}
	n.dying = true
	for _, q := range r.requests {
		if q.n == n {
			q.giveUp()
		}
	}
	r.rest()
	n.dying = false
	if n.outstanding() > 0 || !r.allGoBack(append(down, n)) {
		if g := &r.group; g.members != nil && !n.callsOfRound() {
			n.giveUpRound(g, &g.members[n.i])
		}
		return nil
	}
	r.memberIsGone(n)
	if r.restarts++; r.whole {
		n.kernel.harvest(1) // what only the kernel has is taken for what is stored later, when another node may have published
	}
	k := &killed{n, n.area, conflictsOf(n), n.reader, n.writer, n.stashedBack()}
	n.node.isKilled()
	n.down = true
	r.storeMeanwhile(n)
	r.mu.Lock()
	r.wishes = slices.DeleteFunc(r.wishes, func(w *wish) bool { return w.by == n })
	for i := range r.nodes {
		if i == n.i {
			continue
		}
		to, from := link{i, n.i}, link{n.i, i}
		arrive := r.rng.IntN(len(r.net[from]) + 1)
		dropped(r.net[to])
		dropped(r.net[from][arrive:])
		r.net[to] = []frame{{msg: sessionEnd{}}}
		r.net[from] = append(slices.Clip(r.net[from][:arrive]), frame{msg: sessionEnd{}})
		r.deaf[to] = true
		delete(r.deaf, from)
	}
	r.mu.Unlock()
	for _, o := range n.kernel.out { // what the kernel was being told it may do, or not
		if r.rng.IntN(2) == 0 {
			continue
		}
		for p := dsm.PageIndex(o.Off / dsm.PageSize); int64(p)*dsm.PageSize < o.Off+o.Len; p++ {
			if c := n.kernel.cache[p]; c != nil && !c.dirty && n.kernel.reading[p] == nil && !n.kernel.locked(p) {
				delete(n.kernel.cache, p)
			}
		}
	}
	n.kernel.out, n.kernel.done = nil, nil
	n.kernel.endTruncations()
	n.newDaemon()
	n.area = nil
	return k
}

// stashedBack are the WRITEs of mappings that a node answers when their pages are here, if another daemon may follow. That one gets them again.
func (n *simNode) stashedBack() (list []stashed) {
	if n.held == nil || n.area == nil {
		return nil
	}
	n.area.mu.Lock()
	defer n.area.mu.Unlock()
	x := n.area.mu.replica.extents
	for _, e := range slices.Sorted(maps.Keys(x)) {
		for _, i := range slices.Sorted(maps.Keys(x[e].stash)) {
			for _, s := range x[e].stash[i] {
				if s.way == writtenBack {
					list = append(list, s)
				}
			}
		}
	}
	return list
}

// unanswered reports whether page p is being written back, so that it cannot be dropped.
func (k *fakeKernel) unanswered(p dsm.PageIndex) bool {
	return slices.ContainsFunc(k.n.stashedBack(), func(s stashed) bool { return dsm.PageIndex(s.off/dsm.PageSize) == p })
}

// nextDaemon has another daemon follow.
func (r *simRun) nextDaemon(k *killed) {
	n := k.n
	evicted := r.lastView().Members[n.i].Gone
	if evicted { // before it joins again the sources of what was on its way there have said what becomes of it
		for _, o := range r.nodes {
			for o != n && !o.dead && o.behindCatalog() {
				o.apply()
			}
		}
		r.rest()
	}
	v := r.lastView().Clone()
	v.Epoch++
	m := &v.Members[n.i]
	if evicted { // it joins again
		m.Gone, m.Leaving, m.Inc = false, false, m.Inc+1
	}
	if !r.goesBack(v, n) {
		r.t.Fatal("somebody has nothing but at a node whose daemon was killed")
	}
	r.commit(entry{nil, v})
	if r.rng.IntN(4) == 0 { // before it has resumed
		r.moveSlots()
	}
	r.setAway(n, false)
	n.fenced.Store(false)
	n.look()
	if err := n.node.Resume(r.t.Context(), false, evicted); err != nil {
		r.t.Fatal(err)
	}
	n.down = false
	n.node.Reset() // of whatever came before the daemon did not hear
	open := func(write bool) {
		a, err := n.node.Reopen(r.t.Context(), simArea, write)
		if err != nil {
			r.t.Fatal(err)
		}
		n.area = a
	}
	n.find()
	if now := conflictsOf(n); !slices.Equal(now, k.conflicts) {
		r.t.Fatalf("node %d: the next daemon has conflicts %v, want %v", n.i, now, k.conflicts)
	}
	if k.reader {
		open(false)
	}
	if k.writer != nil {
		open(true)
	}
	for _, prog := range n.attached {
		open(false)
		prog.at = n.attachAgain(prog, true)
		prog.untrack = prog.at.Track(nil, 0, r.fullSize())
		clear(prog.found)
		r.kept++
	}
	for _, prog := range slices.Concat(n.attached, n.reading) {
		if prog.reads != nil {
			open(false)
			prog.reads = n.attachAgain(prog, false)
		}
	}
	n.node.Resumed()
	for _, s := range k.again {
		switch err := n.area.WriteBack(ended, s.data, s.off); {
		case r.seen.shrinks > 0 && errs.Is(err, errs.Unavailable): // the next fsync says so
			c := &cachedPage{}
			copy(c.data[:], s.data)
			n.refused(dsm.PageIndex(s.off/dsm.PageSize), c, int64(len(s.data)))
		case err != nil:
			r.t.Fatal(err)
		}
	}
	n.kernel.bell.Store(true)
	r.rest()
}

// storeMeanwhile has programs that have attached go on to store when the daemon was killed.
func (r *simRun) storeMeanwhile(n *simNode) {
	if len(n.attached) == 0 {
		return
	}
	writer := n.writer
	n.writer = nil
	for range r.rng.IntN(4) {
		r.kind.store(r, n)
	}
	n.writer = writer
}

// attachAgain takes over what a program has attached. What it stores is to be found by comparing from now on.
func (n *simNode) attachAgain(prog *simProgram, write bool) *Attachment {
	f := prog.memory
	if !write {
		f = prog.shown
	}
	var st unix.Stat_t
	err := unix.Fstat(int(f.Fd()), &st)
	if err != nil {
		n.sim.t.Fatal(err)
	}
	t, g, err := n.area.Reattach(prog.id, write, st.Ino)
	if err != nil {
		n.sim.t.Fatal(err)
	}
	if err := g.Close(); err != nil {
		n.sim.t.Fatal(err)
	}
	return t
}

func (s *sim) setAway(n *simNode, is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n.away, n.cut = is, is
}

// other is a node with programs whose daemon is there, or nil.
func (s *sim) other() *simNode {
	list := slices.DeleteFunc(s.programNodes(), func(n *simNode) bool { return n.away })
	if len(list) == 0 {
		return nil
	}
	return list[s.rng.IntN(len(list))]
}

// daemonSender is the Sender of one of the daemons of a node. Calls of its programs and timers may end after it was killed: they say nothing any more.
type daemonSender struct {
	*simNode
	killed atomic.Bool
}

func (d *daemonSender) Send(to dsm.NodeID, m any, payload [][]byte, more bool) {
	if !d.killed.Load() {
		d.simNode.Send(to, m, payload, more)
	}
}

func (d *daemonSender) SendShared(to dsm.NodeID, m any, payload *wire.Shared, more bool) {
	if d.killed.Load() {
		payload.Release()
		return
	}
	d.simNode.SendShared(to, m, payload, more)
}

// isKilled ends a data plane as its process does: it says nothing to anybody, and what it keeps stays.
func (n *Node) isKilled() {
	n.cfg.Sender.(*daemonSender).killed.Store(true)
	n.mu.Lock()
	n.mu.closed = true
	n.mu.Unlock()
	areas := n.all()
	for _, a := range areas {
		a.mu.Lock()
		a.mu.removed = true
		if s := n.cfg.Sender.(*daemonSender); a.mu.mem != nil {
			s.ended = append(s.ended, a.mu.mem)
		}
		a.mu.Unlock()
	}
	n.handovers.close()
	n.room.ending.Store(true)
	for _, a := range areas {
		a.mu.Lock()
		for _, m := range a.mu.out {
			if m.shared != nil {
				m.shared.Release()
			}
		}
		a.mu.out, a.mu.parked, a.mu.short.waiting = nil, nil, nil
		a.mu.waiters = slices.DeleteFunc(a.mu.waiters, a.overLocked) // calls that were given up may wait for long
		a.endCopiesLocked()
		if a.mu.standby != nil {
			a.mu.standby.close()
		}
		a.mu.Unlock()
	}
	n.room.close()
}

var restartCases = []simCase{
	{name: "demand-restart", ino: onDemand(dsm.Inode{Size: simSize}), restarts: true, resize: true, rules: bytesRule, store: storeBytes, check: checkBytes},
	{name: "sum-demand-restart", ino: onDemand(sumOf(dsm.DTypeI32, dsm.ApplyAuto)), restarts: true, tally: intTally, rules: addsRule, store: addOnes, check: checkOnes},
	{name: "demand-unaware-restart", ino: onDemand(dsm.Inode{Size: simSize}), restarts: true, resize: true, unaware: true, rules: applyRule, store: storeBytes, check: checkBytes},
	{name: "demand-away-restart", ino: onDemand(dsm.Inode{Size: simSize}), aways: true, restarts: true, resize: true, rules: bytesRule, store: storeBytes, check: checkBytes},
	{name: "sum-demand-away-restart", ino: onDemand(sumOf(dsm.DTypeI32, dsm.ApplyAuto)), aways: true, restarts: true, tally: intTally, rules: addsRule, store: addOnes, check: checkOnes},
	{name: "float-demand-restart", ino: onDemand(sumOf(dsm.DTypeF64, dsm.ApplyAuto)), restarts: true, tally: floatTally, rules: addsRule, store: addOnes, check: checkOnes},
	{name: "round-demand-restart", ino: onDemand(sumOf(dsm.DTypeI32, dsm.ApplyAuto)), restarts: true, rounds: true, tally: intTally, rules: applyRule, store: addOnes, check: checkOnes},
	{name: "last-restart", ino: dsm.Inode{Size: simSize}, restarts: true, rules: bytesRule, store: storeBytes, check: checkBytes},
	{name: "auto-restart", ino: dsm.Inode{Size: simSize}, restarts: true, auto: true, rules: bytesRule, store: storeBytes, check: checkBytes},
	{name: "cut-restart", ino: dsm.Inode{Size: simSize}, restarts: true, resize: true, rules: bytesRule, store: storeBytes, check: checkBytes},
	{name: "cut-unaware-restart", ino: dsm.Inode{Size: simSize}, restarts: true, resize: true, unaware: true, rules: bytesRule, store: storeBytes, check: checkBytes},
	{name: "cut-attached-restart", ino: dsm.Inode{Size: simSize, Spec: dsm.Spec{Apply: dsm.ApplyArrival}}, restarts: true, attaches: true, resize: true, rules: heldRule, store: storeBytes, check: checkBytes},
	{name: "cut-sync-attached-restart", ino: dsm.Inode{Size: simSize, Spec: dsm.Spec{Apply: dsm.ApplySync}}, restarts: true, attaches: true, resize: true, rules: heldRule, store: storeBytes, check: checkBytes},
	{name: "sum-restart", ino: sumOf(dsm.DTypeI32, dsm.ApplyAuto), restarts: true, tally: intTally, rules: addsRule, store: addOnes, check: checkOnes},
	{name: "float-restart", ino: sumOf(dsm.DTypeF64, dsm.ApplyAuto), restarts: true, tally: floatTally, rules: addsRule, store: addOnes, check: checkOnes},
	{name: "round-restart", ino: sumOf(dsm.DTypeI32, dsm.ApplyAuto), restarts: true, rounds: true, tally: intTally, rules: applyRule, store: addOnes, check: checkOnes},
	{name: "round-alone-restart", ino: sumOf(dsm.DTypeI32, dsm.ApplyAuto), restarts: true, alone: true, rounds: true, tally: intTally, rules: applyRule, store: addOnes, check: checkOnes},
	{name: "round-float-restart", ino: sumOf(dsm.DTypeF64, dsm.ApplyAuto), restarts: true, rounds: true, tally: floatTally, rules: applyRule, store: addOnes, check: checkOnes},
	{name: "round-last-restart", ino: dsm.Inode{Size: simSize}, restarts: true, rounds: true, rules: bytesRule, store: storeBytes, check: checkBytes},
	{name: "round-sync-attached-restart", ino: sumOf(dsm.DTypeI32, dsm.ApplySync), restarts: true, rounds: true, attaches: true, tally: intTally, rules: func(*simRun, *dsm.Inode) {}, store: addOnes, check: checkOnes},
	{name: "round-shared-attached-restart", ino: sumOf(dsm.DTypeI32, dsm.ApplyArrival), restarts: true, rounds: true, attaches: true, tally: intTally, rules: func(*simRun, *dsm.Inode) {}, store: addOnes, check: checkOnes},
	{name: "last-attached-restart", ino: dsm.Inode{Size: simSize, Spec: dsm.Spec{Apply: dsm.ApplyArrival}}, restarts: true, attaches: true, rules: heldRule, store: storeBytes, check: checkBytes},
	{name: "auto-attached-restart", ino: dsm.Inode{Size: simSize}, restarts: true, attaches: true, auto: true, rules: heldRule, store: storeBytes, check: checkBytes},
	{name: "sync-attached-restart", ino: dsm.Inode{Size: simSize, Spec: dsm.Spec{Apply: dsm.ApplySync}}, restarts: true, attaches: true, rules: heldRule, store: storeBytes, check: checkBytes},
	{name: "sum-attached-restart", ino: sumOf(dsm.DTypeI32, dsm.ApplySync), restarts: true, attaches: true, tally: intTally, rules: func(*simRun, *dsm.Inode) {}, store: addOnes, check: checkOnes},
	{name: "sum-shared-attached-restart", ino: sumOf(dsm.DTypeI32, dsm.ApplyArrival), restarts: true, attaches: true, tally: intTally, rules: func(*simRun, *dsm.Inode) {}, store: addOnes, check: checkOnes},
	{name: "float-shared-attached-restart", ino: sumOf(dsm.DTypeF64, dsm.ApplyArrival), restarts: true, attaches: true, tally: floatTally, rules: func(*simRun, *dsm.Inode) {}, store: addOnes, check: checkOnes},
	{name: "float-attached-restart", ino: sumOf(dsm.DTypeF64, dsm.ApplySync), restarts: true, attaches: true, tally: floatTally, rules: func(*simRun, *dsm.Inode) {}, store: addOnes, check: checkOnes},
	restartOf(versioned, "versioned-restart"),
	fewPagesOf(restartOf(versioned, ""), "versioned-small-restart"),
	attachedOf(restartOf(versioned, "versioned-attached-restart")),
	attachedOf(restartOf(versionedMarked, "versioned-marked-restart")),
	attachedOf(awayOf(restartOf(versionedMarked, ""), "versioned-marked-away-restart")),
	awayOf(versioned, "versioned-away"),
	awayOf(restartOf(versioned, ""), "versioned-away-restart"),
	{name: "max-attached-restart", ino: bestOf(dsm.MergeMax, dsm.DTypeI32, dsm.ApplyArrival), restarts: true, attaches: true, careful: true, rules: func(*simRun, *dsm.Inode) {}, store: findBest, check: checkBest},
}

// heldRule changes the type.
func heldRule(r *simRun, ino *dsm.Inode) {
	ino.Layout = dsm.Layout{}
	if r.rng.IntN(2) == 0 {
		ino.Layout.DType = dsm.DTypeU8
	}
}

// restartOf is a kind in which daemons are killed.
func restartOf(c simCase, name string) simCase {
	c.name, c.restarts, c.starves, c.resize = name, true, false, false
	return c
}

// attachedOf is a kind in which programs that have attached go on when a daemon is killed.
func attachedOf(c simCase) simCase {
	c.attaches = true
	return c
}

// awayOf is a kind in which nodes are evicted, and come back.
func awayOf(c simCase, name string) simCase {
	c.name, c.aways, c.starves, c.resize = name, true, false, false
	return c
}

func init() { simCases = append(simCases, restartCases...) }

// checkMerged: what the next daemon would know of the extents of a home is what this one knows.
func (r *simRun) checkMerged() {
	for _, n := range r.programNodes() {
		if n.dead || n.away || n.area == nil {
			continue
		}
		a := n.area
		a.mu.Lock()
		want := make(map[string]bool)
		for e, x := range a.mu.home.extents {
			for w := range maps.Keys(x.writers) {
				want[fmt.Sprint(e, w, x.writers[w], x.parts[w])] = true
			}
			want[fmt.Sprint(e, n.id, x.writers[n.id], x.parts[n.id])] = true
			for w := range x.parts {
				want[fmt.Sprint(e, w, x.writers[w], x.parts[w])] = true
			}
		}
		a.mu.Unlock()
		got := make(map[string]bool)
		for _, m := range n.config.Store.MergedOf(simArea) {
			seq, part := m.Get()
			got[fmt.Sprint(m.Extent(), m.Writer(), seq, part)] = true
		}
		if !maps.Equal(got, want) {
			r.t.Fatalf("node %d: the next daemon would know of %v, want %v", n.i, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
		}
	}
}
