package locks

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

const (
	nodeA dsm.NodeID = 0xa
	nodeB dsm.NodeID = 0xb
)

func posix(n dsm.NodeID, id uint64) Owner { return Owner{Node: n, ID: id} }
func flock(n dsm.NodeID, id uint64) Owner { return Owner{Node: n, ID: id, Flock: true} }

func lock(o Owner, t Type, first, last uint64) Lock {
	if o.Flock {
		first, last = 0, End
	}
	return Lock{Owner: o, Type: t, First: first, Last: last}
}

// spell is the locks as text: an owner's name is a letter, r and w are what it has.
func spell(granted []Lock) string {
	granted = slices.Clone(granted)
	slices.SortFunc(granted, func(a, b Lock) int {
		return cmp.Or(cmp.Compare(a.First, b.First), cmp.Compare(a.Owner.ID, b.Owner.ID))
	})
	var b strings.Builder
	for _, l := range granted {
		fmt.Fprintf(&b, "%d%s[%d,%d] ", l.Owner.ID, map[Type]string{Read: "r", Write: "w"}[l.Type], l.First, l.Last)
	}
	return strings.TrimSpace(b.String())
}

// TestRangesOfOneOwner: what an owner asks for takes the place of what it had.
func TestRangesOfOneOwner(t *testing.T) {
	type ask struct {
		t           Type
		first, last uint64
	}
	for _, x := range []struct {
		asks []ask
		want string
	}{
		{[]ask{{Read, 0, 9}}, "1r[0,9]"},
		{[]ask{{Read, 0, 9}, {Read, 10, 19}}, "1r[0,19]"},
		{[]ask{{Read, 0, 9}, {Read, 5, 30}}, "1r[0,30]"},
		{[]ask{{Read, 0, 9}, {Write, 10, 19}}, "1r[0,9] 1w[10,19]"},
		{[]ask{{Read, 0, 29}, {Write, 10, 19}}, "1r[0,9] 1w[10,19] 1r[20,29]"},
		{[]ask{{Write, 0, 29}, {Read, 10, 19}}, "1w[0,9] 1r[10,19] 1w[20,29]"},
		{[]ask{{Write, 0, 29}, {Unlock, 10, 19}}, "1w[0,9] 1w[20,29]"},
		{[]ask{{Write, 0, 29}, {Unlock, 10, 19}, {Write, 10, 19}}, "1w[0,29]"},
		{[]ask{{Write, 0, 9}, {Read, 20, 29}, {Unlock, 0, End}}, ""},
		{[]ask{{Write, 5, 9}, {Write, 20, 29}, {Read, 0, 40}}, "1r[0,40]"},
		{[]ask{{Unlock, 5, 9}}, ""},
		{[]ask{{Read, 7, End}, {Unlock, End, End}}, fmt.Sprintf("1r[7,%d]", uint64(End-1))},
	} {
		var s set
		s.init()
		for _, a := range x.asks {
			if got := s.ask(1, Request{Lock: lock(posix(nodeA, 1), a.t, a.first, a.last)}); got[0].Verdict != Granted {
				t.Errorf("%v: %v", x.asks, got)
			}
		}
		got := ""
		if tab := s.tables[1]; tab != nil {
			got = spell(tab.granted)
		}
		if got != x.want {
			t.Errorf("%v: %q, want %q", x.asks, got, x.want)
		}
		if (got == "") != (len(s.files()) == 0) {
			t.Errorf("%v: files %v", x.asks, s.files())
		}
	}
}

// script is a set with a line for each request and what it is answered.
type script struct {
	*testing.T
	s    set
	last uint64
}

func newScript(t *testing.T) *script {
	c := &script{T: t}
	c.s.init()
	return c
}

// ask asks, and wants the answers: of its own request, then of others by their tickets.
func (c *script) ask(ino dsm.Ino, l Lock, how How, want ...string) (ticket uint64) {
	c.Helper()
	c.last++
	c.answered(c.s.ask(ino, Request{Lock: l, How: how, Ticket: c.last}), want...)
	return c.last
}

func (c *script) answered(answers []Answer, want ...string) {
	c.Helper()
	var got []string
	for _, a := range answers {
		if a.Ticket == c.last {
			got = append(got, a.Verdict.String())
		} else {
			got = append(got, fmt.Sprintf("%d %s", a.Ticket, a.Verdict))
		}
	}
	if !slices.Equal(got, want) {
		c.Fatalf("request %d: %v, want %v", c.last, got, want)
	}
}

func TestConflicts(t *testing.T) {
	c := newScript(t)
	one, two, three := posix(nodeA, 1), posix(nodeB, 1), posix(nodeA, 3) // owners are of their nodes
	c.ask(1, lock(one, Read, 0, 9), Try, "granted")
	c.ask(1, lock(two, Read, 5, 20), Try, "granted")
	c.ask(1, lock(one, Write, 0, 9), Try, "refused")
	c.ask(1, lock(one, Write, 0, 4), Try, "granted")
	c.ask(1, lock(two, Read, 4, 4), Try, "refused")
	c.ask(1, lock(two, Read, 4, 4), Test, "refused")
	c.ask(1, lock(three, Write, 21, 21), Test, "granted")
	c.ask(1, lock(flock(nodeA, 1), Write, 0, 0), Try, "granted") // another world
	c.ask(1, lock(flock(nodeA, 2), Read, 0, 0), Try, "refused")
	c.ask(2, lock(two, Write, 0, End), Try, "granted") // another file
	c.ask(1, lock(one, Unlock, 0, End), Try, "granted")
	c.ask(1, lock(two, Write, 0, 100), Try, "granted")
}

func TestFirstComeFirst(t *testing.T) {
	c := newScript(t)
	one, two, three, four := posix(nodeA, 1), posix(nodeA, 2), posix(nodeB, 3), posix(nodeB, 4)
	c.ask(1, lock(one, Write, 0, 9), Try, "granted")
	w2 := c.ask(1, lock(two, Write, 0, 4), Wait, "queued")
	c.ask(1, lock(three, Read, 0, 9), Wait, "queued")
	w4 := c.ask(1, lock(four, Read, 8, 9), Wait, "queued")
	c.ask(1, lock(one, Unlock, 0, End), Try, "granted", fmt.Sprint(w2, " granted"), fmt.Sprint(w4, " granted"))
	c.ask(1, lock(two, Read, 0, 4), Try, "granted", "3 granted")
}

func TestFlockGivesUpToConvert(t *testing.T) {
	c := newScript(t)
	one, two, three := flock(nodeA, 1), flock(nodeB, 2), flock(nodeB, 3)
	c.ask(1, lock(one, Read, 0, 0), Try, "granted")
	c.ask(1, lock(two, Read, 0, 0), Try, "granted")
	up := c.ask(1, lock(one, Write, 0, 0), Wait, "queued")
	c.ask(1, lock(two, Write, 0, 0), Try, "granted") // one has given its lock up
	c.ask(1, lock(two, Write, 0, 0), Try, "granted") // the same is no change
	c.ask(1, lock(three, Read, 0, 0), Wait, "queued")
	c.ask(1, lock(two, Unlock, 0, 0), Try, "granted", fmt.Sprint(up, " granted"))
	c.ask(1, lock(one, Read, 0, 0), Try, "granted", "6 granted")
	c.ask(1, lock(one, Write, 0, 0), Try, "refused")
	c.ask(1, lock(three, Write, 0, 0), Try, "granted") // as one has lost what it had
}

func TestCircles(t *testing.T) {
	one, two, three := posix(nodeA, 1), posix(nodeB, 2), posix(nodeB, 3)
	t.Run("of two, in one file", func(t *testing.T) {
		c := newScript(t)
		c.ask(1, lock(one, Write, 0, 0), Try, "granted")
		c.ask(1, lock(two, Write, 1, 1), Try, "granted")
		c.ask(1, lock(one, Write, 1, 1), Wait, "queued")
		c.ask(1, lock(two, Write, 0, 0), Wait, "deadlock")
		c.ask(1, lock(two, Unlock, 1, 1), Try, "granted", "3 granted")
	})
	t.Run("of three, over files", func(t *testing.T) {
		c := newScript(t)
		c.ask(1, lock(one, Write, 0, 0), Try, "granted")
		c.ask(2, lock(two, Write, 0, 0), Try, "granted")
		c.ask(3, lock(three, Write, 0, 0), Try, "granted")
		c.ask(2, lock(one, Read, 0, 0), Wait, "queued")
		c.ask(3, lock(two, Read, 0, 0), Wait, "queued")
		c.ask(1, lock(three, Read, 0, 0), Wait, "deadlock")
		c.ask(1, lock(three, Read, 1, 1), Wait, "granted")
	})
	t.Run("of upgrades", func(t *testing.T) {
		c := newScript(t)
		c.ask(1, lock(one, Read, 0, 0), Try, "granted")
		c.ask(1, lock(two, Read, 0, 0), Try, "granted")
		c.ask(1, lock(one, Write, 0, 0), Wait, "queued")
		c.ask(1, lock(two, Write, 0, 0), Wait, "deadlock")
	})
	t.Run("that a grant closes", func(t *testing.T) {
		// two has two threads that wait: one of them gets what the other thread's blocker waits for.
		c := newScript(t)
		c.ask(1, lock(one, Write, 0, 0), Try, "granted")
		c.ask(2, lock(three, Write, 0, 0), Try, "granted")
		c.ask(1, lock(two, Write, 0, 0), Wait, "queued")
		c.ask(1, lock(three, Write, 0, 0), Wait, "queued")
		c.ask(2, lock(two, Write, 0, 0), Wait, "queued")
		c.ask(1, lock(one, Unlock, 0, 0), Try, "granted", "3 granted", "4 deadlock")
	})
	t.Run("not of flock", func(t *testing.T) {
		c := newScript(t)
		c.ask(1, lock(flock(nodeA, 1), Write, 0, 0), Try, "granted")
		c.ask(2, lock(flock(nodeA, 2), Write, 0, 0), Try, "granted")
		c.ask(2, lock(flock(nodeA, 1), Write, 0, 0), Wait, "queued")
		c.ask(1, lock(flock(nodeA, 2), Write, 0, 0), Wait, "queued")
	})
}

func TestCancelAndDrop(t *testing.T) {
	c := newScript(t)
	one, two, three := posix(nodeA, 1), posix(nodeB, 2), posix(nodeB, 3)
	c.ask(1, lock(one, Write, 0, 9), Try, "granted")
	w := c.ask(1, lock(two, Write, 0, 9), Wait, "queued")
	c.ask(1, lock(three, Write, 0, 9), Wait, "queued")
	if c.s.cancel(1, nodeA, w) || !c.s.cancel(1, nodeB, w) || c.s.cancel(1, nodeB, w) {
		t.Error("a request is cancelled by its node, once")
	}
	c.answered(c.s.drop(1, nodeA), "granted")
	if got := spell(c.s.tables[1].granted); got != "3w[0,9]" {
		t.Error(got)
	}
}

// byByte is the locks of a few bytes, each as it is: what the ranges are compared with.
type byByte [12]map[Owner]Type

func (m *byByte) blocked(l Lock) bool {
	for i := l.First; i <= l.Last; i++ {
		for o, t := range m[i] {
			if o != l.Owner && (t == Write || l.Type == Write) {
				return true
			}
		}
	}
	return false
}

func (m *byByte) place(l Lock) {
	for i := l.First; i <= l.Last; i++ {
		if m[i] == nil {
			m[i] = map[Owner]Type{}
		}
		if l.Type == Unlock {
			delete(m[i], l.Owner)
		} else {
			m[i][l.Owner] = l.Type
		}
	}
}

// TestAgainstBytes makes random requests and compares with the locks of each byte, and of each who waits.
func TestAgainstBytes(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for round := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, round))
		var s set
		s.init()
		var want byByte
		var queue []Request
		waits := func(o Owner) bool {
			return slices.ContainsFunc(queue, func(r Request) bool { return r.Lock.Owner == o })
		}
		for step := range uint64(120) {
			o := posix(nodeA+dsm.NodeID(rng.IntN(3)), rng.Uint64N(3))
			if waits(o) {
				continue
			}
			first := rng.Uint64N(12)
			r := Request{Lock: lock(o, Type(rng.IntN(3)), first, first+rng.Uint64N(12-first)), How: How(rng.IntN(3)), Ticket: step}
			got := map[uint64]Verdict{}
			for _, a := range s.ask(1, r) {
				got[a.Ticket] = a.Verdict
			}
			expect := map[uint64]Verdict{}
			switch blocked := r.Lock.Type != Unlock && want.blocked(r.Lock); {
			case r.How == Test && !blocked:
				expect[step] = Granted
			case !blocked:
				want.place(r.Lock)
				expect[step] = Granted
			case r.How != Wait:
				expect[step] = Refused
			case got[step] == Deadlock:
				expect[step] = Deadlock // TestCircles
			default:
				expect[step] = Queued
				queue = append(queue, r)
			}
			for again := true; again; {
				again = false
				for i, w := range queue {
					if !want.blocked(w.Lock) || got[w.Ticket] == Deadlock {
						if expect[w.Ticket] = got[w.Ticket]; got[w.Ticket] != Deadlock {
							expect[w.Ticket] = Granted
							want.place(w.Lock)
						}
						queue = slices.Delete(queue, i, i+1)
						again = true
						break
					}
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(expect) {
				t.Fatalf("round %d: %+v: %v, want %v", round, r, got, expect)
			}
			var have byByte
			if tab := s.tables[1]; tab != nil {
				for _, l := range tab.granted {
					have.place(l)
				}
			}
			for i := range want {
				if len(want[i])+len(have[i]) > 0 && fmt.Sprint(have[i]) != fmt.Sprint(want[i]) {
					t.Fatalf("round %d: after %+v byte %d is %v, want %v", round, r, i, have[i], want[i])
				}
			}
		}
	}
}

// TestOlderFirst: a grant that leaves its owner with less lets an older request go before a younger one.
func TestOlderFirst(t *testing.T) {
	var s set
	s.init()
	b, c, d, e := posix(nodeA, 1), posix(nodeA, 2), posix(nodeB, 1), posix(nodeB, 2)
	ask := func(ticket uint64, o Owner, ty Type, first, last uint64) (granted []uint64) {
		for _, a := range s.ask(1, Request{Lock: lock(o, ty, first, last), How: Wait, Ticket: ticket}) {
			if a.Verdict == Granted {
				granted = append(granted, a.Ticket)
			}
		}
		return granted
	}
	ask(1, b, Write, 5, 5)
	ask(2, e, Write, 3, 3)
	ask(3, e, Write, 7, 7)
	ask(4, c, Read, 4, 5)  // waits for b
	ask(5, b, Read, 5, 7)  // waits for e, and leaves b with less
	ask(6, d, Write, 3, 4) // waits for e, and is in the way of c
	if got, want := ask(7, e, Unlock, 0, 9), []uint64{7, 5, 4}; !slices.Equal(got, want) {
		t.Errorf("granted %v, want %v", got, want)
	}
}
