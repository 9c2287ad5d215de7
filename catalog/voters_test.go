package catalog

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// parliament is a configuration of raft with those who answer.
type parliament struct {
	servers []server
	dead    map[dsm.NodeID]bool
	leader  dsm.NodeID
}

func (p *parliament) live(n dsm.NodeID) bool { return !p.dead[n] }

// majority reports whether the living voters that are members can decide: others may not answer any more.
func (p *parliament) majority(members []dsm.Member) bool {
	voters, live := 0, 0
	for _, s := range p.servers {
		if s.voter {
			voters++
			if p.live(s.id) && slices.ContainsFunc(members, s.is) {
				live++
			}
		}
	}
	return live > voters/2
}

// take does what raft does with the change.
func (p *parliament) take(c change) {
	i := slices.IndexFunc(p.servers, func(s server) bool { return s.id == c.id })
	switch c.kind {
	case changeAdd:
		p.servers = append(p.servers, server{id: c.id, inc: c.inc, addr: c.addr})
	case changePromote:
		p.servers[i].voter = true
	case changeDemote:
		p.servers[i].voter = false
	case changeRemove:
		p.servers = slices.Delete(p.servers, i, i+1)
	case changeTransfer:
		p.leader = c.id
	}
}

// letters makes members of "abC": capitals leave.
func letters(s string) []dsm.Member {
	var ms []dsm.Member
	for _, r := range s {
		m := dsm.Member{ID: dsm.NodeID(r | 0x20)}
		m.Leaving = r < 'a'
		ms = append(ms, m)
	}
	return ms
}

// parse makes a configuration of "Ab": capitals vote.
func parse(s, dead string) *parliament {
	p := &parliament{dead: make(map[dsm.NodeID]bool)}
	for _, r := range s {
		p.servers = append(p.servers, server{id: dsm.NodeID(r | 0x20), voter: r < 'a'})
	}
	for _, r := range dead {
		p.dead[dsm.NodeID(r)] = true
	}
	p.leader = p.servers[0].id
	return p
}

func TestNextChange(t *testing.T) {
	tests := []struct {
		members, servers, dead string // the first server leads
		kind                   changeKind
		who                    string
	}{
		{"a", "A", "", changeNone, ""},
		{"ab", "A", "", changeAdd, "b"},
		{"ab", "Ab", "", changeNone, ""}, // two voters are worse than one
		{"abc", "Abc", "", changePromote, "b"},
		{"abc", "ABc", "", changePromote, "c"},
		{"abc", "ABC", "", changeNone, ""},
		{"abc", "ABC", "c", changeNone, ""},        // the dead keep their vote
		{"abcd", "ABCd", "c", changePromote, "d"},  // unless another can have it
		{"abcd", "ABCD", "c", changeDemote, "c"},   //
		{"abc", "Abc", "b", changeNone, ""},        // one more alone would not help
		{"abcde", "ABCde", "", changePromote, "d"}, //
		{"abcde", "ABCDE", "", changeNone, ""},
		{"abcdef", "ABCDEf", "", changeNone, ""},
		{"abcd", "ABCDE", "", changeDemote, "e"}, // it left, or was evicted and answers for a moment
		{"abc", "ABCDE", "e", changeDemote, "e"},
		{"ab", "ABC", "", changeDemote, "c"},
		{"ab", "ABC", "b", changeNone, ""},  // an evicted voter may not answer any more, and with b it is as it should be
		{"ab", "ABC", "bc", changeNone, ""}, // also if b were in the way of nobody: it may be back at once
		{"ab", "ABC", "c", changeDemote, "c"},
		{"ab", "ACB", "b", changeNone, ""},
		{"abd", "ABCd", "b", changePromote, "d"},
		{"abde", "ABCDE", "b", changeDemote, "b"},
		{"ab", "ABc", "", changeDemote, "b"},
		{"ab", "Abc", "", changeRemove, "c"},
		{"Ab", "Ab", "", changePromote, "b"}, // the leader leaves
		{"Ab", "AB", "", changeTransfer, "b"},
		{"Ab", "BA", "", changeDemote, "a"},
		{"Abc", "ABC", "", changeTransfer, "b"},
		{"Abcd", "ABCd", "", changePromote, "d"},
		{"Abcd", "ABCD", "", changeTransfer, "b"},
		{"aB", "Ab", "", changeNone, ""},
		{"AB", "Ab", "", changeNone, ""}, // everybody leaves
		{"aBc", "ABC", "", changeDemote, "b"},
	}
	for _, x := range tests {
		p := parse(x.servers, x.dead)
		got := nextChange(letters(x.members), p.servers, p.leader, p.live)
		who := ""
		if got.kind != changeNone {
			who = string(rune(got.id))
		}
		if got.kind != x.kind || who != x.who {
			t.Errorf("members %s, servers %s, dead %q: change %d of %q, want %d of %q", x.members, x.servers, x.dead, got.kind, who, x.kind, x.who)
		}
	}
}

// TestChangesConverge draws clusters and deaths: the changes come to an end, at
// an odd number of voters that stay, and a majority that is there never ends.
func TestChangesConverge(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 20000 {
		p := &parliament{dead: make(map[dsm.NodeID]bool)}
		var members []dsm.Member
		for id := range dsm.NodeID(1 + rng.IntN(8)) {
			id++
			in := rng.IntN(5) > 0
			if in {
				p.servers = append(p.servers, server{id: id, voter: rng.IntN(2) == 0})
			}
			if !in || rng.IntN(5) > 0 {
				members = append(members, dsm.Member{ID: id, Leaving: rng.IntN(5) == 0})
			}
			p.dead[id] = rng.IntN(5) == 0
		}
		voters := slices.DeleteFunc(slices.Clone(p.servers), func(s server) bool { return !s.voter || p.dead[s.id] })
		if len(voters) == 0 || !p.majority(members) {
			continue
		}
		p.leader = voters[rng.IntN(len(voters))].id
		start := *p
		start.servers = slices.Clone(p.servers)
		for steps := 0; ; steps++ {
			c := nextChange(members, p.servers, p.leader, p.live)
			if c.kind == changeNone {
				break
			}
			if steps > 40 {
				t.Fatalf("no end: members %+v, from %+v to %+v", members, start, p)
			}
			p.take(c)
			if !p.majority(members) || p.dead[p.leader] {
				t.Fatalf("members %+v: from %+v, change %+v loses the majority: %+v", members, start, c, p)
			}
		}
		n := 0
		for _, s := range p.servers {
			if s.voter {
				n++
			}
		}
		stay := slices.DeleteFunc(slices.Clone(members), func(m dsm.Member) bool { return m.Leaving })
		if len(stay) > 0 && (n%2 == 0 || n > voterCount(len(stay))) && slices.ContainsFunc(stay, func(m dsm.Member) bool { return p.live(m.ID) }) {
			t.Fatalf("members %+v: from %+v to %d voters: %+v", members, start, n, p)
		}
	}
}

// TestNodeThatCameBackIsLive: a node that answers is live, also while raft has a server of an earlier incarnation, of which nobody answers.
func TestNodeThatCameBackIsLive(t *testing.T) {
	nodes := cluster(t, 2)
	asker, other := nodes[0], nodes[1]
	servers := []server{serverOf(other.self), {id: other.self.ID, inc: other.self.Inc + 1, addr: other.self.Addr}}
	for i := range 20 {
		if slices.Reverse(servers); !asker.roll(patient(t), servers)(other.self.ID) {
			t.Fatalf("at roll %d the node is not live", i)
		}
	}
	if asker.roll(patient(t), []server{{id: other.self.ID, inc: other.self.Inc + 1, addr: other.self.Addr}})(other.self.ID) {
		t.Error("an incarnation that does not answer is live")
	}
}
