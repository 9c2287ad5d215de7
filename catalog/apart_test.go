package catalog

import (
	"context"
	"flag"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

func TestToPutOut(t *testing.T) {
	links := func(ends ...dsm.NodeID) (all []dsm.Link) {
		for l := range slices.Chunk(ends, 2) {
			all = append(all, dsm.LinkOf(l[0], l[1]))
		}
		return all
	}
	const lead = dsm.NodeID(1)
	members := func(change ...dsm.Member) *dsm.View {
		v := new(dsm.View)
		for id := lead; id <= 5; id++ {
			m := dsm.Member{ID: id, Voter: true}
			for _, c := range change {
				if c.ID == id {
					m = c
				}
			}
			v.Members = append(v.Members, m)
		}
		return v
	}
	for _, x := range []struct {
		name string
		cut  []dsm.Link
		long []dsm.Link
		view *dsm.View
		want dsm.NodeID
	}{
		{"nothing is cut", nil, nil, members(), 0},
		{"the one that has less alone", links(2, 5), links(2, 5), members(), 2},
		{"the one without a vote", links(2, 3), links(2, 3), members(dsm.Member{ID: 2}), 2},
		{"the larger id", links(2, 3), links(2, 3), members(), 3},
		{"the one that came back last", links(3, 4), links(3, 4), members(dsm.Member{ID: 3, Inc: 8}, dsm.Member{ID: 4, Inc: 7}), 3},
		{"the leader stays", links(1, 5), links(1, 5), members(dsm.Member{ID: 1, Inc: 9}), 5},
		{"the one that is apart from two", links(2, 5, 4, 5), links(2, 5, 4, 5), members(), 5},
		{"the one that is apart from two, whoever complains", links(1, 5, 2, 5, 3, 4), links(1, 5, 2, 5, 3, 4), members(), 5},
		{"the leader is apart from two", links(1, 2, 1, 3), links(1, 2, 1, 3), members(), 1},
		{"the leader, of which not all is known for long", links(1, 2, 1, 3), links(1, 2), members(), 1},
		{"another has more links that were cut just now", links(4, 5, 1, 2, 2, 3), links(4, 5), members(), 4},
		{"who is gone is not put out", links(2, 3), links(2, 3), members(dsm.Member{ID: 3, Gone: true}), 2},
	} {
		if got := toPutOut(x.cut, x.long, x.view, lead, map[dsm.NodeID]int{5: 1, 1: 2}); got != x.want {
			t.Errorf("%s: %d is put out, want %d", x.name, got, x.want)
		}
	}
}

// TestMajorityIsNotPutOut has a leader put out one after the other.
func TestMajorityIsNotPutOut(t *testing.T) {
	for n, most := range map[int]int{2: 0, 3: 1, 4: 1, 5: 2, 9: 4} {
		r := &arbiter{out: make(map[dsm.NodeID]outing)}
		var members []dsm.Member
		for id := range n {
			members = append(members, dsm.Member{ID: dsm.NodeID(id + 1)})
		}
		out := 0
		for ; r.leavesMajority(members, 0); out++ {
			id := dsm.NodeID(n - out)
			r.out[id] = outing{}
			if out%2 == 0 && out+1 < most {
				continue // it is not gone yet, and two are being put out
			}
			members = slices.DeleteFunc(members, func(m dsm.Member) bool { _, out := r.out[m.ID]; return out })
		}
		if out != most {
			t.Errorf("of %d members %d are put out, want %d", n, out, most)
		}
		members = append(members, dsm.Member{ID: dsm.NodeID(n), Inc: 1})
		if most > 0 && !r.leavesMajority(members, 0) {
			t.Errorf("of %d members one has come back, and none may be put out", n)
		}
	}
}

var apartSeed = flag.Uint64("apart.seed", 0, "seed of TestOnlyWhoIsApartIsPutOut; 0: random")

// TestOnlyWhoIsApartIsPutOut runs members and their leader in virtual time: links are cut, for longer than the lease or shorter, members die,
// signs of life come late. Who is apart from another that lives is put out in time, and nobody else.
func TestOnlyWhoIsApartIsPutOut(t *testing.T) {
	seed := *apartSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-apart.seed=%d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 400 {
		if oneCut(t, r); t.Failed() {
			return
		}
	}
}

// oneCut simulates a cluster in which one link is cut for a while, one member dies, or both.
func oneCut(t *testing.T, r *rand.Rand) {
	const (
		tick  = 10 * time.Millisecond
		lease = DefaultLease
		size  = 5
		alive = time.Second // how often a link shows that it works
		late  = 150 * time.Millisecond
	)
	now := time.Duration(0)
	var g signs
	g.init()
	g.clock = func() time.Duration { return time.Hour + now }
	g.begin(1)
	v := &dsm.View{Lease: lease}
	for id := range dsm.NodeID(size) {
		v.Members = append(v.Members, dsm.Member{ID: id + 1, Voter: true})
	}
	a, b := dsm.NodeID(2+r.IntN(size-1)), dsm.NodeID(2+r.IntN(size-1))
	from := time.Duration(r.Int64N(int64(3 * time.Second)))
	lasts := time.Duration(r.Int64N(int64(2 * lease)))
	oneWay := r.IntN(2) == 0
	var dead dsm.NodeID // from at on
	at := time.Duration(r.Int64N(int64(6 * time.Second)))
	if a == b || r.IntN(3) == 0 {
		dead = dsm.NodeID(2 + r.IntN(size-1))
	}
	lives := func(n dsm.NodeID) bool { return n != dead || now < at }
	works := func(x, y dsm.NodeID) bool {
		if now >= from && now < from+lasts && (x == a && y == b || x == b && y == a && !oneWay) {
			return false
		}
		return lives(x) && lives(y)
	}
	type pair struct{ x, y dsm.NodeID }
	acked := make(map[pair]time.Duration)
	type sign struct {
		at        time.Duration
		node      dsm.NodeID
		unreached []dsm.NodeID
		apart     []dsm.NodeID
	}
	var under []sign
	next := make(map[dsm.NodeID]time.Duration)
	for id := range dsm.NodeID(size) {
		next[id+1] = time.Duration(r.Int64N(int64(between(lease))))
	}
	var out dsm.NodeID
	var when time.Duration
	var links []dsm.Link
	for ; now < 14*time.Second && out == 0; now += tick {
		for _, x := range v.Members {
			for _, y := range v.Members {
				p := pair{x.ID, y.ID}
				if now-acked[p] >= alive && works(p.x, p.y) {
					acked[p] = now
				}
			}
			if !lives(x.ID) || now < next[x.ID] {
				continue
			}
			next[x.ID] = now + between(lease)
			s := sign{node: x.ID, at: now + time.Duration(r.Int64N(int64(late)))}
			for _, y := range v.Members {
				if silence := now - acked[pair{x.ID, y.ID}]; y.ID != x.ID && silence >= unreachedAfter(lease) {
					s.unreached = append(s.unreached, y.ID)
					if silence >= apartAfter(lease) {
						s.apart = append(s.apart, y.ID)
					}
				}
			}
			under = append(under, s)
		}
		under = slices.DeleteFunc(under, func(s sign) bool {
			if s.at <= now && g.hear(s.node, 0, 1) {
				g.blame(s.node, 0, s.unreached, s.apart)
			}
			return s.at <= now
		})
		if links = g.links(links, overdueAfter(lease)); slices.ContainsFunc(links, func(l dsm.Link) bool {
			return l != dsm.LinkOf(a, b) || a == b || now < from+unreachedAfter(lease)-alive
		}) {
			t.Errorf("links %v do not work at %v; %d and %d are apart from %v for %v, %d dies at %v", links, now, a, b, from, lasts, dead, at)
		}
		if cut, long := g.cut(overdueAfter(lease)); len(long) > 0 {
			out = toPutOut(cut, long, v, 1, nil)
			when = now
		}
	}
	apart := a != b && (dead != a && dead != b || at > from)
	switch {
	case out != 0 && (!apart || out != a && out != b):
		t.Errorf("%d is put out; %d and %d are apart from %v for %v, %d dies at %v", out, a, b, from, lasts, dead, at)
	case out != 0 && out == dead && when > at+overdueAfter(lease)+late:
		t.Errorf("%d is put out at %v, and has died at %v", out, when, at)
	case out == 0 && apart && dead == 0 && lasts >= apartAfter(lease)+2*between(lease)+2*late:
		t.Errorf("%d and %d are apart from %v for %v (one way: %v), and none is put out", a, b, from, lasts, oneWay)
	case out != 0 && when-from > apartAfter(lease)+2*between(lease)+2*late:
		t.Errorf("%d is put out after %v", out, when-from)
	case out != 0 && when-from < apartAfter(lease)-alive:
		t.Errorf("%d is put out after %v already", out, when-from)
	}
}

// TestLinksThatAreCut: a link is cut when one end does not reach the other, which lives, and works when both ends say so.
func TestLinksThatAreCut(t *testing.T) {
	const fresh = time.Second
	now := time.Hour
	var g signs
	g.init()
	g.clock = func() time.Duration { return now }
	g.begin(1)
	var links []dsm.Link
	says := func(n dsm.NodeID, unreached ...dsm.NodeID) {
		now++
		g.hear(n, 0, 1)
		g.blame(n, 0, unreached, nil)
	}
	is := func(what string, want ...dsm.Link) {
		t.Helper()
		if links = slices.Compact(g.links(links, fresh)); !slices.Equal(links, want) {
			t.Errorf("%s: %v, want %v", what, links, want)
		}
	}
	cut := dsm.Link{A: 1, B: 2}
	says(1)
	says(2)
	says(3)
	is("all reach each other")
	now += fresh // 2 is stopped
	says(1, 2)
	says(3, 2)
	now += fresh / 4
	says(1, 2)
	is("who is not reached has been silent")
	says(2)
	is("it goes on")
	now += fresh / 4
	says(1)
	says(3)
	is("it is reached")
	says(2, 1)
	is("one end does not reach the other")
	now += fresh / 4
	says(2, 1)
	is("nor since, but that has said nothing")
	says(1)
	is("it has now")
	now += fresh / 4
	says(2, 1)
	is("and still is not reached", cut)
	says(2)
	is("it works")
	says(1, 2)
	now += fresh / 4
	says(2)
	says(1, 2)
	is("the other end", cut)
	now += fresh
	is("nothing is heard", cut)
	says(1)
	is("one end says that it works", cut)
	g.begin(2)
	is("another leader", cut)
	g.hear(1, 0, 2)
	g.hear(2, 0, 2)
	is("both live", cut)
	g.blame(1, 0, nil, nil)
	is("and one has said that it works", cut)
	g.blame(2, 0, nil, nil)
	is("both have")
}

// TestSpares: who has what nobody else has is put out when a copy has come, or has not for so long.
func TestSpares(t *testing.T) {
	const lease = time.Second
	var r arbiter
	if r.spares(0, 1, lease) {
		t.Error("nothing is copied")
	}
	for _, now := range []time.Duration{1, lease, mostWaits * lease} {
		if !r.spares(7, now, lease) {
			t.Errorf("not spared at %v", now)
		}
	}
	if r.spares(0, lease, lease) {
		t.Error("all is copied")
	}
	if r.spares(7, mostWaits*lease+1, lease) {
		t.Error("spared for ever")
	}
}

// TestCopiesBeforeOneIsPutOut: two members do not reach each other, and each is the home of what the other had a copy of. The third one gets copies before one of the
// two is put out, so nothing is lost.
func TestCopiesBeforeOneIsPutOut(t *testing.T) {
	nodes := cluster(t, 3)
	lead := leaderOf(t, nodes)
	ctx := patient(t)
	f, err := lead.Create(ctx, dsm.RootIno, "f", file, false)
	ok(t, err)
	_, err = lead.SetSpec(ctx, f.Ino, "placement", "spread")
	ok(t, err)
	f, err = lead.SetAttr(ctx, f.Ino, dsm.SetAttr{Size: ptr(int64(64 * dsm.ExtentSize))})
	ok(t, err)
	lead.sees(t, "copies", func(v *dsm.View) bool { return len(fillings(v)) == 0 })
	rest := slices.DeleteFunc(slices.Clone(nodes), func(n *node) bool { return n == lead })
	for _, n := range nodes {
		n.slow.Store(true)
	}
	for i, n := range rest {
		other := rest[1-i].self.ID
		var slots []dsm.Slot
		for slot, h := range n.Current().Rows() {
			if h.Primary == n.self.ID && h.BackupOf(other) >= 0 {
				slots = append(slots, slot)
			}
		}
		ok(t, n.BackupLags(ctx, other, slots, n.Current().Epoch))
		n.silent.Store(&silences{other: time.Hour})
	}
	lead.warns(ctx, t, "members do not reach each other: one is put out when")
	for _, n := range nodes {
		n.slow.Store(false)
		n.observer.wake()
	}
	lead.sees(t, "one of two members that are apart is put out", func(v *dsm.View) bool { return isOut(rest[0].self.ID)(v) || isOut(rest[1].self.ID)(v) })
	v := lead.Current()
	for e := range f.Spec.CoveringExtents(f.Size) {
		if h := v.Row(v.SlotOf(f.Area(), f.Spec, dsm.ExtentIndex(e))); isOut(h.Holder())(v) {
			t.Fatalf("extent %d is lost: %+v", e, h)
		}
	}
}

// TestApartMembers has two members say that they do not reach each other. One is put out, and is fenced before the others know; the other one stays.
func TestApartMembers(t *testing.T) {
	nodes := cluster(t, 3)
	lead := leaderOf(t, nodes)
	rest := slices.DeleteFunc(slices.Clone(nodes), func(n *node) bool { return n == lead })
	a, b := rest[0], rest[1]
	a.silent.Store(&silences{b.self.ID: time.Hour})
	out, stays := a, b
	lead.sees(t, "one of two members that are apart is put out", func(v *dsm.View) bool {
		if isOut(b.self.ID)(v) {
			out, stays = b, a
		}
		return isOut(out.self.ID)(v)
	})
	if !out.Fenced() {
		t.Error("a member was put out that was not fenced")
	}
	select {
	case <-out.Evicted():
	case <-patient(t).Done():
		t.Fatal("the node does not learn that it was put out")
	}
	stays.sees(t, "the other one", func(v *dsm.View) bool { return isOut(out.self.ID)(v) && !isOut(stays.self.ID)(v) })
	ok(t, stays.ShowLife(patient(t)))
}

// leads waits until another node leads than before.
func another(t *testing.T, nodes []*node, before *node) *node {
	t.Helper()
	rest := slices.DeleteFunc(slices.Clone(nodes), func(n *node) bool { return n == before })
	return leaderOf(t, rest)
}

// TestLeaderThatIsApartYields has the leader and two others not reach each other: it is the leader that is put out.
func TestLeaderThatIsApartYields(t *testing.T) {
	nodes := cluster(t, 5)
	lead := leaderOf(t, nodes)
	cut := make(silences)
	for _, n := range nodes {
		if n != lead && len(cut) < 2 {
			cut[n.self.ID] = time.Hour
			n.silent.Store(&silences{lead.self.ID: time.Hour})
		}
	}
	next := another(t, nodes, lead)
	next.sees(t, "a leader that is apart from two is put out", isOut(lead.self.ID))
	if n := len(present(next.Current())); n != 4 {
		t.Errorf("%d members stay, want 4", n)
	}
}

// unreaching is the Caller of a node that does not reach some others.
type unreaching struct {
	Caller
	those []string // their addresses
}

func (u unreaching) Call(ctx context.Context, addr string, req any) (any, error) {
	if slices.ContainsFunc(u.those, func(a string) bool { return strings.HasSuffix(addr, a) }) {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return u.Caller.Call(ctx, addr, req)
}

// TestLeaderYieldsToWhoReachesMore cuts the leader off from two members, which live: it lets another lead, and these stay.
func TestLeaderYieldsToWhoReachesMore(t *testing.T) {
	nodes := cluster(t, 5)
	lead := leaderOf(t, nodes)
	var far []string
	for _, n := range nodes {
		if n != lead && len(far) < 2 {
			far = append(far, n.self.Addr)
			n.via.use(unreaching{n.net, []string{lead.self.Addr}})
		}
	}
	lead.via.use(unreaching{lead.net, far})
	next := another(t, nodes, lead)
	for _, n := range nodes {
		n.via.use(n.net)
	}
	ok(t, next.ShowLife(patient(t)))
	if n := len(present(next.Current())); n != 5 {
		t.Errorf("%d members stay, want all", n)
	}
}

// TestStoppedMembersAreNoReasonToYield: members that nobody reaches are evicted by the leader that there is.
func TestStoppedMembersAreNoReasonToYield(t *testing.T) {
	nodes := cluster(t, 5)
	lead := leaderOf(t, nodes)
	term := lead.leads()
	var stopped []dsm.NodeID
	var addrs []string
	for _, n := range nodes {
		if n != lead && len(stopped) < 2 {
			stopped, addrs = append(stopped, n.self.ID), append(addrs, n.self.Addr)
			n.via.use(mute{})
		}
	}
	for _, n := range nodes {
		if !slices.Contains(stopped, n.self.ID) {
			n.via.use(unreaching{n.net, addrs})
		}
	}
	for _, id := range stopped {
		lead.sees(t, "a silent member", isOut(id))
	}
	if lead.leads() != term {
		t.Error("the leader has changed")
	}
}

// TestJoinWithoutAWay: who does not reach a member that lives, or is not reached by it, does not join. It does when there is a way. Who
// asks once more and is a member has joined, whatever has become of the way.
func TestJoinWithoutAWay(t *testing.T) {
	nodes := cluster(t, 2)
	lead := leaderOf(t, nodes)
	other := nodes[0]
	if other == lead {
		other = nodes[1]
	}
	n := start(t, "new")
	for _, cut := range []struct{ from, to *node }{{n, other}, {other, n}} {
		cut.from.via.use(unreaching{cut.from.net, []string{cut.to.self.Addr}})
		err := n.Join(patient(t), lead.self.Addr)
		if !errs.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "["+other.self.Name+"]") {
			t.Errorf("join: %v, want one that names %s", err, other.self.Name)
		}
		cut.from.via.use(cut.from.net)
	}
	ok(t, n.Join(patient(t), lead.self.Addr))

	// It may not have heard that it was admitted.
	n.via.use(unreaching{n.net, []string{other.self.Addr}})
	ok(t, n.Join(patient(t), lead.self.Addr))
}

// TestAlone counts what only one member has: files without copies, and those whose backups have died.
func TestAlone(t *testing.T) {
	m := newSized(t, 1<<30, 1<<30)
	if got, _ := m.alone(); len(got) != 0 {
		t.Errorf("nothing is stored, and alone have %v", got)
	}
	for i, name := range []string{"one", "two"} {
		f := m.file(name)
		m.must(nodeA, setSpecOp{f.Ino, "replicas", []string{"1", "2"}[i]})
		m.must(nodeA, setSpecOp{f.Ino, "placement", "spread"})
		m.must(nodeA, resize(f, 8*dsm.ExtentSize))
	}
	before, coming := m.alone()
	if before[nodeA]+before[nodeB] != 8 || len(coming) > 0 {
		t.Errorf("alone have %v, want 8 in all; copies of %v are coming", before, coming)
	}
	var slots []dsm.Slot
	for slot, h := range m.view.Rows() {
		if h.Primary == nodeA && h.BackupOf(nodeB) >= 0 {
			slots = append(slots, slot)
		}
	}
	m.must(nodeA, backupsOp{nodeB, slots, false, m.view.Epoch})
	lags, coming := m.alone()
	if n := lags[nodeA] - before[nodeA]; n == 0 || coming[nodeA] != n || coming[nodeB] > 0 {
		t.Errorf("alone have %v, and had %v; copies of %v are coming", lags, before, coming)
	}
	m.must(nodeA, apartOp{[]dsm.Link{dsm.LinkOf(nodeB, nodeA)}})
	if _, coming := m.alone(); len(coming) > 0 {
		t.Errorf("copies of %v are coming, and nobody is reached", coming)
	}
	m.must(nodeA, apartOp{})
	m.must(nodeA, backupsOp{nodeB, slots, true, m.view.Epoch})
	m.must(nodeA, goneOp{Node: nodeB})
	if after, _ := m.alone(); after[nodeA] != before[nodeA]+8 || after[nodeB] != before[nodeB] {
		t.Errorf("alone have %v, and had %v before one of them died", after, before)
	}
}
