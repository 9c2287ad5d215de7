package harvest

import "time"

const (
	// RestFactor is 4 for a duty cycle of at most 20 %: what took T is followed by 4T without.
	RestFactor = 4
	// mostTogetherness bounds Togetherness.
	mostTogetherness = 5 * time.Millisecond
)

// Togetherness is by how much what happens at an interval may be moved to happen
// together with something else.
func Togetherness(every time.Duration) time.Duration { return min(mostTogetherness, every/10) }

// schedule says when the harvester's child harvests which of the areas it watches.
// Times are since the start of the child.
//
// An area is due at the multiples of its interval, so that all with the same one
// are due together: what a wake-up costs is the wake-up. An area that is due a little later than
// another is harvested with it. Neither makes the time from harvest to
// harvest longer than the interval; only rest does: a harvest that took T is followed by 4T without.
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

// set changes the interval of an area, from or to 0 if it is not watched. It is due
// at most an interval after the daemon began to wait for company to tell it, see watchChanges.
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

// harvested notes a harvest.
func (w *watch) harvested(start, took time.Duration) {
	at := start + w.every
	if aligned := at.Truncate(w.every); aligned-start > Togetherness(w.every) {
		at = aligned
	}
	w.restedUntil = max(w.restedUntil, start+(1+RestFactor)*took)
	w.due = max(at, w.restedUntil)
}
