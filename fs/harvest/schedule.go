package harvest

import "time"

const (
	// RestFactor 4 makes a duty cycle of at most 20 %: after a harvest that took T comes a rest of
	// 4T.
	RestFactor = 4
	// mostTogetherness bounds Togetherness.
	mostTogetherness = 5 * time.Millisecond
)

// Togetherness is how much something that happens at an interval may be shifted so that it happens
// together with something else.
func Togetherness(every time.Duration) time.Duration { return min(mostTogetherness, every/10) }

// schedule says when the child harvests which of the areas it watches. Times count from the start
// of the child.
//
// An area is due at multiples of its interval, so that all areas with the same interval are due
// together: nearly all the cost is in waking up. An area that is due a little later is harvested
// together with one that is due now. Neither rule makes the time between two harvests longer than
// the interval. Only a rest does: a harvest that took T is followed by a rest of 4T.
type schedule struct {
	watches []watch
	places  map[uint64]int // in watches, by inode
}

type watch struct {
	ino         uint64
	every       time.Duration
	due         time.Duration
	restedUntil time.Duration
}

// set changes the interval of an area; 0 means that it is not watched. The area is due at most one
// interval after the daemon began to collect changes for the child, see watchChanges.
func (s *schedule) set(ino uint64, every, now time.Duration) {
	i, ok := s.places[ino]
	switch {
	case every == 0:
		s.remove(ino)
		return
	case !ok:
		i = len(s.watches)
		s.places[ino] = i
		s.watches = append(s.watches, watch{ino: ino})
	}
	w := &s.watches[i]
	w.every = every
	w.harvested(now-Togetherness(every), 0)
}

func (s *schedule) remove(ino uint64) {
	i, ok := s.places[ino]
	if !ok {
		return
	}
	last := len(s.watches) - 1
	s.watches[i] = s.watches[last]
	s.places[s.watches[i].ino] = i
	s.watches = s.watches[:last]
	delete(s.places, ino)
}

// next returns when the next area is due; ok is false if there is none.
func (s *schedule) next() (at time.Duration, ok bool) {
	for i := range s.watches {
		if w := &s.watches[i]; !ok || w.due < at {
			at, ok = w.due, true
		}
	}
	return at, ok
}

// isDue reports whether the area is harvested in a round that starts now.
func (w *watch) isDue(now time.Duration) bool {
	early := Togetherness(w.every)
	return w.due-early <= now && w.restedUntil <= now
}

// harvested records a harvest.
func (w *watch) harvested(start, took time.Duration) {
	at := start + w.every
	if aligned := at.Truncate(w.every); aligned-start > Togetherness(w.every) {
		at = aligned
	}
	w.restedUntil = max(w.restedUntil, start+(1+RestFactor)*took)
	w.due = max(at, w.restedUntil)
}
