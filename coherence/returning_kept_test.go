package coherence

import "testing"

// apart has the node in between evicted, both sides store, and the other one publish. Of what the node has stored, it has sent some before that.
func (p *parting) apart(sent, mine, theirs string) {
	p.t.Helper()
	p.stores(p.n, sent)
	if sent != "" {
		q := p.n.ask("publish", p.n.area.Publish, nil)
		p.rest()
		q.giveUp()
		p.rest()
	}
	p.isEvicted(p.n)
	p.stores(p.n, mine)
	p.stores(p.other, theirs)
	p.publishedAlone(p.other)
}

// lost drops all that is under way to and from the node in between.
func (p *parting) lost() {
	for _, o := range []*simNode{p.home, p.other} {
		for _, k := range []link{{o.i, p.n.i}, {p.n.i, o.i}} {
			for len(p.net[k]) > 0 {
				if f := p.take(k); f.shared != nil {
					f.shared.Release()
				}
			}
		}
	}
}

// TestKilledWhileItCompares: the daemon of a node that is back is killed before it has compared. The next one compares, and the one after that.
func TestKilledWhileItCompares(t *testing.T) {
	for _, c := range []struct{ sent, mine string }{{"", "11.3"}, {"11.3", ""}, {"1..3", ".1"}} {
		heldParted(t, func(p *parting) {
			p.apart(c.sent, c.mine, "22")
			p.lost()
			p.comesBack(p.n)
			for range 2 {
				p.n.follow()
				if !p.n.area.mu.absence.compares() {
					t.Error("it does not compare")
				}
			}
			p.published(p.n)
			p.wants("22a3bbbbcccc", "0: 22, not 11")
			if len(p.n.area.mu.mem.Compared()) > 0 {
				t.Error("the next daemon would compare again")
			}
			p.stores(p.n, "4")
			p.n.follow()
			p.stores(p.other, "5")
			p.published(p.other)
			p.published(p.n)
			p.wants("42a3bbbbcccc", "0: 22, not 11")
		})
	}
}

// TestKilledWhileItComparesWithAHome: likewise, where the home was cut off: what the node has stored stays.
func TestKilledWhileItComparesWithAHome(t *testing.T) {
	heldParted(t, func(p *parting) {
		p.stores(p.n, "1.1")
		p.stores(p.home, "22")
		p.homeIsCutOff()
		p.comesBack(p.home)
		for p.n.behindCatalog() {
			p.n.apply()
		}
		p.n.follow()
		p.published(p.n)
		p.wants("121abbbbcccc", "0: 1, not 2")
	})
}

// TestKilledWhileAway: the daemon of a node is killed while the node is evicted, whether it knows that or not.
func TestKilledWhileAway(t *testing.T) {
	for _, sent := range []string{"", "1"} {
		heldParted(t, func(p *parting) {
			p.apart(sent, "11.3", "22")
			p.n.follow()
			p.published(p.n)
			p.wants("22a3bbbbcccc", "0: 22, not 11")
		})
	}
}

// TestEvictedAfterAKill: the cluster evicts a node before the next daemon is there.
func TestEvictedAfterAKill(t *testing.T) {
	heldParted(t, func(p *parting) {
		p.stores(p.n, "11.3")
		p.n.node.isKilled()
		p.apart("", "", "22")
		p.n.follow()
		p.published(p.n)
		p.wants("22a3bbbbcccc", "0: 22, not 11")
	})
}

// TestTruncatedWhileItCompares: nothing is left to compare, for the next daemon either.
func TestTruncatedWhileItCompares(t *testing.T) {
	heldParted(t, func(p *parting) {
		p.apart("", "1", "2")
		p.lost()
		p.comesBack(p.n)
		p.resize(0)
		for p.n.behindCatalog() {
			p.n.apply()
		}
		if p.n.area.mu.absence.compares() || len(p.n.area.mu.mem.Compared()) > 0 {
			t.Error("it compares what is gone")
		}
	})
}

// TestTruncatedAfterAKill: likewise, when the next daemon begins.
func TestTruncatedAfterAKill(t *testing.T) {
	heldParted(t, func(p *parting) {
		p.apart("", "1", "2")
		p.lost()
		p.comesBack(p.n)
		p.n.node.isKilled()
		p.resize(0)
		p.n.follow()
		if p.n.area.mu.absence.compares() || len(p.n.area.mu.mem.Compared()) > 0 {
			t.Error("it compares what is gone")
		}
		p.calm()
	})
}
