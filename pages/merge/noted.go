package merge

import (
	"sync/atomic"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// A merge by a rule that adds must not be done twice. If the process that does it is killed, another one has to know how far it has come: the memory, into which programs store meanwhile, does not
// say it. So MergeNoted keeps a note of the word that it is about to change. Rest goes on from there.
//
// A note has two places, of which each word takes the other one than the word before:
//
//	word    its number, plus 1; 0: the place says nothing. It is set last and cleared first
//	was     what is there
//	done    it is changed
//
// The place with the larger number counts. If that word is not done, it has been changed if it is not as it was any more. One case cannot be told: a
// program stores to that very word, and the process is killed between the two instructions that change it and say so.
//
// Words to which nobody has stored become what comes in, two at a time, and need no place: the note of swapUnchanged says which are next. It counts if they are behind
// that word. Whether two that are just being changed have been changed is told by what they are; it cannot be told if a program stores to both.

// NoteSize is how many bytes a note takes. It begins at a multiple of eight, and is all zero before a merge begins.
const NoteSize = 2*notePlace*8 + 8

const (
	noteWord = iota
	noteWas
	noteDone
	notePlace

	noteUnchanged = 2 * notePlace // the note of swapUnchanged
)

// Adds reports whether a merge by the rule changes something when it is done twice.
func (k Kernel) Adds() bool { return k.op == opSum }

// Last reports whether the last store to an element wins by the rule.
func (k Kernel) Last() bool { return k.op == opLast }

// MergeNoted is MergeShared for a merge that must not be done twice.
func (k Kernel) MergeNoted(note []byte, p dsm.PageIndex, base, working, incoming []byte) {
	k.swapPage(p, working, base, incoming, false, &noted{note: words(note[:NoteSize])})
}

// MergeRest does what is left of a MergeNoted, with what that had. If it is not done either, it may be called again.
func (k Kernel) MergeRest(note []byte, p dsm.PageIndex, base, working, incoming []byte) {
	k.swapPage(p, working, base, incoming, false, rest(note, base, working, incoming))
}

// StoreNoted and StoreRest are the same of StoreShared.
func (k Kernel) StoreNoted(note []byte, p dsm.PageIndex, base, working, stored []byte) {
	k.swapPage(p, working, base, stored, true, &noted{note: words(note[:NoteSize])})
}

// StoreRest does what is left of a StoreNoted.
func (k Kernel) StoreRest(note []byte, p dsm.PageIndex, base, working, stored []byte) {
	k.swapPage(p, working, base, stored, true, rest(note, base, working, stored))
}

// rest returns what goes on with a merge.
func rest(note, base, working, other []byte) *noted {
	n := &noted{note: words(note[:NoteSize])}
	m := words(working)
	last := n.note[:notePlace]
	if other := n.note[notePlace:]; other[noteWord] > last[noteWord] {
		last, n.second = other, true
	}
	n.second = !n.second
	if n.from = int(last[noteWord]); n.from > 0 && last[noteDone] == 0 && atomic.LoadUint64(&m[n.from-1]) == last[noteWas] {
		n.from--
	}
	at := int(n.note[noteUnchanged] / 2)
	if at < int(last[noteWord]) {
		return n
	}
	if n.from = at; n.note[noteUnchanged]&1 != 0 {
		// Of a pair that was swapped, what changes is as it became, or as a program has stored it since. One that is as before says that it was not, unless the other says that it was: the area may have been
		// truncated in between.
		b, o, was, is := words(base), words(other), false, false
		for i := at; i < at+2; i++ {
			w := atomic.LoadUint64(&m[i])
			was, is = was || b[i] != o[i] && w == b[i], is || b[i] != o[i] && w == o[i]
		}
		if is || !was {
			n.from += 2
		}
	}
	return n
}

// noted is a merge that takes notes.
type noted struct {
	note   []uint64
	from   int  // words before this one are not looked at
	second bool // the next word takes the second place
	// changes, if not nil, is called before a word is changed. It is for tests.
	changes func(i int, is, will uint64, place []uint64)
	swaps   func(memory, base, other []uint64, from int, note *uint64) int // swapUnchanged, but in tests
}

// swapWords is the function of that name.
func (n *noted) swapWords(memory, base, other []byte, from, to int, own bool, merge wordMerge) {
	m, b, o := words(memory[:to]), words(base[:to]), words(other[:to])
	swaps := swapUnchanged
	if n.swaps != nil {
		swaps = n.swaps
	}
	for i := max(from/8, n.from); i < len(m); i++ {
		if !own {
			if i = swaps(m, b, o, i, &n.note[noteUnchanged]); i == len(m) {
				break
			}
		}
		if b[i] == o[i] {
			continue
		}
		place := n.note[:notePlace]
		if n.second {
			place = n.note[notePlace:]
		}
		n.second = !n.second
		for {
			is := atomic.LoadUint64(&m[i])
			local, incoming := is, o[i]
			if own {
				local, incoming = incoming, local
			}
			will := merge(b[i], local, incoming)
			if n.changes != nil {
				n.changes(i, is, will, place)
			}
			atomic.StoreUint64(&place[noteWord], 0)
			place[noteWas], place[noteDone] = is, 0
			atomic.StoreUint64(&place[noteWord], uint64(i)+1)
			if will == is || atomic.CompareAndSwapUint64(&m[i], is, will) {
				break
			}
		}
		atomic.StoreUint64(&place[noteDone], 1)
	}
}
