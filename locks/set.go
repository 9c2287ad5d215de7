package locks

import (
	"maps"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// set is the locks of several files. It is plain data: results depend on nothing but the calls.
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

// tidy forgets the file if it has no locks and no waiting requests.
func (s *set) tidy(ino dsm.Ino) {
	if t := s.tables[ino]; t != nil && t.empty() {
		delete(s.tables, ino)
	}
}

// ask decides a request, if it can be decided now. It returns the answers to it, and to waiting
// requests that it allowed to be decided.
func (s *set) ask(ino dsm.Ino, r Request) []Answer {
	t := s.table(ino)
	defer s.tidy(ino)
	less := false
	if own := t.grantedTo(r.Lock.Owner); r.Lock.Owner.Flock && r.How != Test && len(own) > 0 && own[0].Type != r.Lock.Type {
		// A flock that changes its type is released first, even if the new one is then refused.
		gone := r.Lock
		gone.Type = Unlock
		less = t.place(gone)
	}
	a, done, placed := s.decide(ino, r)
	less = less || placed
	answers := []Answer{a}
	if !done {
		t.queue = append(t.queue, r)
	}
	if less || a.Verdict == Granted && r.How != Test {
		answers = append(answers, s.settle(ino)...)
	}
	return answers
}

// decide grants or refuses the request; done is false if it has to wait. less says that its owner has less of the file now than before,
// as when a lock for writing becomes one for reading.
func (s *set) decide(ino dsm.Ino, r Request) (a Answer, done, less bool) {
	t := s.tables[ino]
	in, blocked := t.conflict(r.Lock)
	switch {
	case r.Lock.Type == Unlock || !blocked:
		if r.How != Test {
			less = t.place(r.Lock)
		}
		return r.answer(Granted), true, less
	case r.How != Wait:
		a = r.answer(Refused)
		a.Conflict = in
		return a, true, false
	case s.circle(ino, r.Lock):
		return r.answer(Deadlock), true, false
	}
	return r.answer(Queued), false, false
}

// settle decides the waiting requests of the file that can be decided now, oldest first. A lock
// that is granted may close a circle of others that wait for it.
func (s *set) settle(ino dsm.Ino) (answers []Answer) {
	t := s.tables[ino]
	if t == nil {
		return nil
	}
	for again := true; again; {
		again = false
		for i := 0; i < len(t.queue); {
			r := t.queue[i]
			t.queue = slices.Delete(t.queue, i, i+1) // so that the search for a circle does not find it
			a, done, less := s.decide(ino, r)
			if !done {
				t.queue = slices.Insert(t.queue, i, r)
				i++
				continue
			}
			answers = append(answers, a)
			again = again || a.Verdict == Granted
			if less {
				i = 0 // an older one may have waited for that
			}
		}
	}
	s.tidy(ino)
	return answers
}

// circle reports whether the owner of l would wait for itself: it would wait for the owner of a
// conflicting lock, who waits, in any file, for another, and so on.
func (s *set) circle(ino dsm.Ino, l Lock) bool {
	if l.Owner.Flock {
		return false
	}
	seen := map[Owner]bool{}
	var reaches func(ino dsm.Ino, l Lock) bool
	reaches = func(ino dsm.Ino, w Lock) bool {
		for _, h := range s.tables[ino].granted {
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

// cancel removes a waiting request from the queue. It reports whether it was there.
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

// drop removes all that a node has and waits for in a file.
func (s *set) drop(ino dsm.Ino, node dsm.NodeID) []Answer {
	t := s.tables[ino]
	if t == nil {
		return nil
	}
	t.queue = slices.DeleteFunc(t.queue, func(r Request) bool { return r.Lock.Owner.Node == node })
	t.granted = slices.DeleteFunc(t.granted, func(l Lock) bool { return l.Owner.Node == node })
	return s.settle(ino)
}

// files returns the files that have locks or waiting requests, in order.
func (s *set) files() []dsm.Ino { return slices.Sorted(maps.Keys(s.tables)) }
