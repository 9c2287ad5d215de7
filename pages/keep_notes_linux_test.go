package pages

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestKilledDuringASharedMerge: the daemon is killed at any point of a merge into memory to which a program stores meanwhile, and after. What came in is there, what the program has stored stays, also where it
// puts back what was there before; and nothing else counts as a store.
func TestKilledDuringASharedMerge(t *testing.T) {
	const p = 1
	k := mustKernel(t, dsm.MergeLast, dsm.DTypeAuto, 0)
	for kill := range 12 {
		for _, again := range []bool{false, true} { // the next daemon is killed, too
			h := newHeldProgram(t, 3*dsm.PageSize)
			program := h.mem[p*dsm.PageSize:][:dsm.PageSize]
			mine, coming, after := fill(2), fill(2), fill(2)
			for i := range dsm.PageSize / 2 {
				mine[i] = 3 // a publish that is under way
				h.a.Working(p)[i] = 3
			}
			for i := range dsm.PageSize {
				if i%3 == 0 {
					after[i] = 9
				}
				coming[i] = after[i]
				if i < dsm.PageSize/2 {
					coming[i] = 3
				}
			}
			program[9], program[4000] = 77, 78
			part := h.a.KeepSent(0, 41, dsm.Range(p, p+1), dsm.PageSet{}, nil, []byte("part"))
			s := h.a.KeepSent(0, 42, dsm.Range(p, p+1), dsm.Range(p, p+1), nil, []byte("body"))
			killedAt(kill, func(step func()) {
				step()
				h.a.BeginMerge(p, true, []SentOf{s.Of(p), part.Of(p)})
				step()
				note := h.a.noteShared(p, []SentOf{{s, true, false}, {part, false, false}}, mine, coming, after)
				step()
				half := append(append([]byte(nil), coming[:2992]...), mine[2992:]...)
				k.MergeNoted(note, p, mine, h.a.Working(p), half)
				step()
				program[2058] = 79 // an element that is merged already
				program[12] = 80
				program[2061] = mine[2061] // likewise, with what was there before
				program[3003] = 81
				k.MergeRest(note, p, mine, h.a.Working(p), coming)
				step()
				copy(h.a.OwnBase(p)[:100], after)
				step()
				h.a.SetBase(p, after)
				step()
				part.Merged(p)
				s.Without(p)
				step()
				h.a.frames.untag(h.a.note[0])
				h.a.frames.untag(h.a.note[1])
				step()
				h.a.EndMerge()
				step()
			})
			began := kill >= 2 // all that the next daemon needs is noted
			h.next()
			if again {
				h.next()
			}
			program[4090] = 82
			want := append([]byte(nil), mine...)
			base := fill(2)
			if began {
				want, base = append([]byte(nil), coming...), after
			}
			want[9], want[4000], want[4090] = 77, 78, 82
			if kill >= 4 {
				want[2058], want[12], want[2061], want[3003] = 79, 80, mine[2061], 81
			}
			if string(program) != string(want) || string(h.a.Base(p)) != string(base) {
				t.Errorf("killed at %d: %s, %s", kill, differ(program, want), differ(h.a.Base(p), base))
			}
			in := dsm.Range(p, p+1)
			wants := in
			if began {
				wants = dsm.PageSet{}
			}
			if len(h.sent) != 2 || h.sent[0].Pages() != wants || h.sent[1].Pages() != in || h.sent[1].Besides() != wants {
				t.Errorf("killed at %d: of what was sent there is %v", kill, h.sent)
			}
			if h.a.frames.used > 3 {
				t.Errorf("killed at %d: %d frames are in use", kill, h.a.frames.used)
			}
		}
	}
}

// TestKilledInAReplaceThatIsShared: the same where what a page is merged from is its base.
func TestKilledInAReplaceThatIsShared(t *testing.T) {
	const p = 1
	for _, rule := range []dsm.MergeRule{dsm.MergeLast, dsm.MergeSum} {
		k := mustKernel(t, rule, dsm.DTypeI64, 0)
		for kill := range 9 {
			h := newHeldProgram(t, 3*dsm.PageSize)
			h.k = k
			program := h.mem[p*dsm.PageSize:][:dsm.PageSize]
			set := func(i int, n uint64) { binary.LittleEndian.PutUint64(program[8*i:], n) }
			coming := fill(2)
			for i := 8; i < dsm.PageSize; i += 16 {
				coming[i]++
			}
			set(9, 77)
			set(400, 78)
			s := h.a.KeepSent(0, 42, dsm.Range(p, p+1), dsm.PageSet{}, nil, []byte("body"))
			killedAt(kill, func(step func()) {
				step()
				note := h.a.noteIncoming(p, coming, []SentOf{{Sent: s}})
				step()
				half := append(append([]byte(nil), coming[:2992]...), fill(2)[2992:]...)
				k.MergeNoted(note, p, h.a.OwnBase(p), h.a.Working(p), half)
				step()
				set(21, 79) // an element that is merged already
				set(22, binary.LittleEndian.Uint64(fill(2)))
				step()
				k.MergeRest(note, p, h.a.OwnBase(p), h.a.Working(p), coming)
				step()
				h.a.frames.tag(h.a.note[7], frameIncomingMerged, p, 0)
				copy(h.a.OwnBase(p)[:100], coming)
				step()
				h.a.SetBase(p, coming)
				s.Merged(p)
				step()
				h.a.EndMerge()
				step()
			})
			h.next()
			h.next()
			want, base, lacks := fill(2), fill(2), true
			if kill > 0 {
				copy(want, coming)
				base, lacks = coming, false
			}
			put := func(i int, n uint64) { binary.LittleEndian.PutUint64(want[8*i:], n) }
			put(9, 77)
			if rule == dsm.MergeSum && kill > 0 {
				put(9, 78)
			}
			put(400, 78)
			if kill > 2 {
				put(21, 79)
				put(22, binary.LittleEndian.Uint64(fill(2)))
			}
			if string(program) != string(want) || string(h.a.Base(p)) != string(base) {
				t.Errorf("%v, killed at %d: %s; the base: %s", rule, kill, differ(program, want), differ(h.a.Base(p), base))
			}
			if len(h.sent) != 1 || h.sent[0].Of(p).Lacks != lacks {
				t.Errorf("%v, killed at %d: of what was sent there is %v", rule, kill, h.sent[0].Pages())
			}
			if h.a.frames.used > 1 {
				t.Errorf("%v, killed at %d: %d frames are in use", rule, kill, h.a.frames.used)
			}
		}
	}
}

// TestKilledInAReplace: the next daemon has a page as before in both copies, or as after, and what was sent of it likewise.
func TestKilledInAReplace(t *testing.T) {
	const size, p = 4 * dsm.PageSize, 2
	for kill := range 5 {
		m, a, _ := newHeldReplica(t, size)
		copy(a.Working(p), fill(3))
		a.SetBase(p, fill(3))
		s := a.KeepSent(0, 7, dsm.Range(0, 4), dsm.PageSet{}, nil, []byte("x"))
		before := s.Of(p)
		after := before
		after.Lacks = false
		switch n := fill(5); kill {
		case 0: // in the midst of the base
			a.noteReplace(p, []SentOf{before}, []SentOf{after})
			copy(a.OwnBase(p)[:1000], n)
		case 1: // in the midst of the working copy
			a.Replace(p, n, []SentOf{before}, []SentOf{after})
			copy(a.Working(p)[1000:], fill(3))
		case 2:
			a.Replace(p, n, []SentOf{before}, []SentOf{after})
		case 3:
			a.Replace(p, n, []SentOf{before}, []SentOf{after})
			s.Merged(p)
		case 4:
			a.Replace(p, n, []SentOf{before}, []SentOf{after})
			s.Merged(p)
			a.EndMerge()
		}
		for daemon := range 2 {
			a, sent, _ := nextDaemon(t, m, size, size)
			want := byte(5)
			if kill == 0 {
				want = 3
			}
			if string(a.Working(p)) != string(fill(want)) || string(a.Base(p)) != string(fill(want)) {
				t.Errorf("killed at %d, daemon %d: the copies have %d and %d, want %d", kill, daemon, a.Working(p)[:2], a.Base(p)[:2], want)
			}
			if len(sent) != 1 || sent[0].Of(p).Lacks != (kill == 0) || !sent[0].Of(1).Lacks {
				t.Errorf("killed at %d, daemon %d: the base lacks %v of what was sent", kill, daemon, sent[0].Pages())
			}
			a.WorkingIsNewest()
		}
	}
}

// TestKilledWhileAPageFollowsItsHome: the next daemon has a page as before in both copies, or as after.
func TestKilledWhileAPageFollowsItsHome(t *testing.T) {
	const size, p = 4 * dsm.PageSize, 2
	for _, aside := range []bool{true, false} { // the page has a twin
		for kill := range 4 {
			m, a, _ := newHeldReplica(t, size)
			copy(a.Working(p), fill(3))
			a.SetBase(p, fill(3))
			a.BecomeHome(0)
			want := byte(3)
			if aside {
				want = 5
				a.BeforeHomeWrite(p, false)
				copy(a.Home(p), fill(want))
			}
			if kill == 0 && aside {
				want = 3
			}
			if kill > 0 {
				a.FollowToHome(p)
			}
			if kill > 1 {
				copy(a.Working(p)[:1000], a.Home(p))
			}
			if kill > 2 {
				copy(a.Working(p), a.Home(p))
				a.EndMerge()
			}
			for daemon := range 2 {
				a, _, _ := nextDaemon(t, m, size, size)
				if string(a.Working(p)) != string(fill(want)) || string(a.Base(p)) != string(fill(want)) {
					t.Errorf("killed at %d, daemon %d: the copies have %d and %d, want %d", kill, daemon, a.Working(p)[:2], a.Base(p)[:2], want)
				}
				if n := a.frames.used; n > 0 {
					t.Errorf("killed at %d, daemon %d: %d frames are in use", kill, daemon, n)
				}
				a.WorkingIsNewest()
			}
		}
	}
}

// TestKilledBeforeATwinGoes: the note is there, and the twin still is too.
func TestKilledBeforeATwinGoes(t *testing.T) {
	const size, p = 4 * dsm.PageSize, 2
	m, a, _ := newHeldReplica(t, size)
	copy(a.Working(p), fill(3))
	a.SetBase(p, fill(3))
	a.BecomeHome(0)
	a.BeforeHomeWrite(p, false)
	copy(a.Home(p), fill(5))
	a.noteFollow(p)
	a, _, _ = nextDaemon(t, m, size, size)
	if string(a.Working(p)) != string(fill(3)) || string(a.Base(p)) != string(fill(3)) {
		t.Errorf("the copies have %d and %d, want 3", a.Working(p)[:2], a.Base(p)[:2])
	}
}

// killedAt does what a daemon does, which is killed at a call of step, after kill others; if there are fewer it is not.
func killedAt(kill int, do func(step func())) {
	killed := errors.New("killed")
	defer func() {
		if r := recover(); r != nil && r != error(killed) {
			panic(r)
		}
	}()
	do(func() {
		if kill == 0 {
			panic(killed)
		}
		kill--
	})
}

// differ says where two pages differ.
func differ(got, want []byte) string {
	for i := range want {
		if got[i] != want[i] {
			return fmt.Sprintf("byte %d is %d, want %d", i, got[i], want[i])
		}
	}
	return "same"
}
