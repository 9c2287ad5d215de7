package locks

import (
	"maps"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// set is the locks of several files. It is plain data: what happens depends on nothing
// but the calls.
type set struct {
	tables map[dsm.Ino]*table
}

func (s *set) init() { s.tables = make(map[dsm.Ino]*table) }

func (s *set) table(ino dsm.Ino) *table {
	t := s.tables[ino]
	if t == nil {
		t = new(table)
		s.tables[ino] = t
	}
	return t
}

// tidy forgets the file if nobody holds anything of it or waits.
func (s *set) tidy(ino dsm.Ino) {
	if t := s.tables[ino]; t != nil && t.empty() {
		delete(s.tables, ino)
	}
}

// ask decides a request, as far as it can be decided now: the answers are to it, and to
// those that do not wait any more because of it.
func (s *set) ask(ino dsm.Ino, r Request) []Answer {
	t := s.table(ino)
	defer s.tidy(ino)
	less := false
	if own := t.heldBy(r.Lock.Owner); r.Lock.Owner.Flock && r.How != Test && len(own) > 0 && own[0].Type != r.Lock.Type {
		// A flock that changes is given up first, even if the new one is refused.
		gone := r.Lock
		gone.Type = Unlock
		less = t.place(gone)
	}
	a, done := s.decide(ino, r)
	answers := []Answer{a}
	if !done {
		t.queue = append(t.queue, r)
	}
	if less || a.Verdict == Granted && r.How != Test {
		answers = append(answers, s.settle(ino)...)
	}
	return answers
}

// decide places the request if nothing is in the way; it is not done if it is to wait.
func (s *set) decide(ino dsm.Ino, r Request) (a Answer, done bool) {
	t := s.tables[ino]
	in, blocked := t.conflict(r.Lock)
	switch {
	case r.Lock.Type == Unlock || !blocked:
		if r.How != Test {
			t.place(r.Lock)
		}
		return r.answer(Granted), true
	case r.How != Wait:
		a = r.answer(Refused)
		a.Conflict = in
		return a, true
	case s.circle(ino, r.Lock):
		return r.answer(Deadlock), true
	}
	return r.answer(Queued), false
}

// settle decides those of the file that wait and can be decided now, the first first. A lock that is granted
// may close a circle of others that wait for it.
func (s *set) settle(ino dsm.Ino) (answers []Answer) {
	t := s.tables[ino]
	if t == nil {
		return nil
	}
	for again := true; again; {
		again = false
		for i := 0; i < len(t.queue); {
			r := t.queue[i]
			t.queue = slices.Delete(t.queue, i, i+1) // it must not find itself in the circle
			a, done := s.decide(ino, r)
			if !done {
				t.queue = slices.Insert(t.queue, i, r)
				i++
				continue
			}
			answers = append(answers, a)
			again = again || a.Verdict == Granted // it may be less than its owner had
		}
	}
	s.tidy(ino)
	return answers
}

// circle reports whether the owner of l would wait for itself: for an owner of a lock in
// the way that waits, in any of the files, for another, and so on.
func (s *set) circle(ino dsm.Ino, l Lock) bool {
	if l.Owner.Flock {
		return false
	}
	seen := map[Owner]bool{}
	var reaches func(ino dsm.Ino, l Lock) bool
	reaches = func(ino dsm.Ino, w Lock) bool {
		for _, h := range s.tables[ino].held {
			if !h.conflicts(w) || seen[h.Owner] {
				continue
			}
			if h.Owner == l.Owner {
				return true
			}
			seen[h.Owner] = true
			for next, t := range s.tables {
				for _, r := range t.queue {
					if r.Lock.Owner == h.Owner && reaches(next, r.Lock) {
						return true
					}
				}
			}
		}
		return false
	}
	return reaches(ino, l)
}

// cancel takes a request that waits out of the queue, if it does.
func (s *set) cancel(ino dsm.Ino, node dsm.NodeID, ticket uint64) bool {
	t := s.tables[ino]
	if t == nil {
		return false
	}
	n := len(t.queue)
	t.queue = slices.DeleteFunc(t.queue, func(r Request) bool { return r.Ticket == ticket && r.Lock.Owner.Node == node })
	was := len(t.queue) < n
	s.tidy(ino)
	return was
}

// drop takes away all that a node holds and waits for in a file.
func (s *set) drop(ino dsm.Ino, node dsm.NodeID) []Answer {
	t := s.tables[ino]
	if t == nil {
		return nil
	}
	t.queue = slices.DeleteFunc(t.queue, func(r Request) bool { return r.Lock.Owner.Node == node })
	t.held = slices.DeleteFunc(t.held, func(l Lock) bool { return l.Owner.Node == node })
	return s.settle(ino)
}

// files returns the files that anybody holds locks of or waits for, in order.
func (s *set) files() []dsm.Ino { return slices.Sorted(maps.Keys(s.tables)) }
