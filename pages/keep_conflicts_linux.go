package pages

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/hold"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// Conflict is a run of elements of which a value was given up, or a part of one: what has the same number goes on where that ends.
type Conflict struct {
	Area   dsm.AreaID
	Number uint64 // of the area's
	Time   time.Time
	Off    int64
	Kept   []byte // the value that was given up
	Taken  []byte // the one that stays, as many bytes; or none
}

// conflicts are those that outlive the daemon. They are of files that may be closed meanwhile, so their frames are of no area; and most are a few bytes, so those of all areas
// share frames. A frame has how many of its bytes count, and records. A record is there when they count, and says itself that it is gone. When all of a frame are gone it is put back.
type conflicts struct {
	mu struct {
		lockrank.Mutex
		frames  frames
		records map[dsm.AreaID][]conflictRecord // in order
		lost    map[dsm.AreaID]conflictRecord
		last    *conflictFrame // the one that has room
		next    uint64         // the number of the next frame
	}
}

type conflictFrame struct {
	frame
	live int // records that are not gone
}

type conflictRecord struct {
	number uint64
	at     *conflictFrame
	off    int
}

// The words of a record. Its bytes follow.
const (
	conflictIs = iota // kind<<48 | bytes that were taken<<16 | bytes that were kept
	conflictArea
	conflictNumber // or how many bytes are lost
	conflictTime
	conflictOff
	conflictWords

	conflictGone, conflictKept, conflictLost = 0 << 48, 1 << 48, 2 << 48

	conflictHead = 8 * conflictWords
	conflictsAt  = 8 // of the first record in a frame
)

func (r conflictRecord) word(i int) *atomic.Uint64 { return hold.WordOf(r.at.mem[r.off+8*i:]) }
func (f *conflictFrame) counts() *atomic.Uint64    { return hold.WordOf(f.mem) }

func (c *conflicts) init(s *Keep) {
	c.mu.Init("pages.conflicts")
	c.mu.frames.kept = &keeping{store: s, record: hold.Area{ID: new(atomic.Uint64)}}
	c.mu.records, c.mu.lost = make(map[dsm.AreaID][]conflictRecord), make(map[dsm.AreaID]conflictRecord)
}

// KeepConflict keeps a conflict for the next daemon until DropConflicts. nil keeps nothing.
func (s *Keep) KeepConflict(x *Conflict) {
	if s == nil {
		return
	}
	c := &s.conflicts
	c.mu.Lock()
	defer c.mu.Unlock()
	// Before it is there, so that no other gets its number.
	if w := s.mem.Word(hold.Conflicts); x.Number > w.Load() {
		w.Store(x.Number)
	}
	off, kept, taken := x.Off, x.Kept, x.Taken
	for len(kept) > 0 {
		room := c.roomLocked(len(kept) + len(taken))
		n := len(kept)
		if len(taken) > 0 {
			n = min(n, room/2)
		} else {
			n = min(n, room)
		}
		t := min(n, len(taken))
		r := c.addLocked(conflictKept, x.Area, x.Number, x.Time, off, kept[:n], taken[:t])
		c.mu.records[x.Area] = append(c.mu.records[x.Area], r)
		off, kept, taken = off+int64(n), kept[n:], taken[t:]
	}
}

// LoseConflicts says how many bytes there was no room for in an area: so many in all.
func (s *Keep) LoseConflicts(id dsm.AreaID, bytes int64) {
	if s == nil {
		return
	}
	c := &s.conflicts
	c.mu.Lock()
	defer c.mu.Unlock()
	switch r, ok := c.mu.lost[id]; {
	case ok && bytes > 0:
		r.word(conflictNumber).Store(uint64(bytes))
	case ok:
		delete(c.mu.lost, id)
		c.dropLocked(r)
	case bytes > 0:
		c.roomLocked(0)
		c.mu.lost[id] = c.addLocked(conflictLost, id, uint64(bytes), time.Time{}, 0, nil, nil)
	}
}

// roomLocked returns how many bytes the next record can have of those that it should have, 2 at least.
func (c *conflicts) roomLocked(want int) int {
	f := c.mu.last
	if f != nil {
		if room := dsm.PageSize - int(f.counts().Load()) - conflictHead; room >= min(want, 64) {
			return room
		}
	}
	f = &conflictFrame{frame: c.mu.frames.take()}
	f.counts().Store(conflictsAt)
	c.mu.frames.tag(f.frame, frameConflicts, c.mu.next, 0)
	c.mu.next++
	c.mu.last = f
	return dsm.PageSize - conflictsAt - conflictHead
}

// addLocked adds a record, for which there is room. It is there when it returns.
func (c *conflicts) addLocked(kind uint64, id dsm.AreaID, number uint64, at time.Time, off int64, kept, taken []byte) conflictRecord {
	f := c.mu.last
	r := conflictRecord{number, f, int(f.counts().Load())}
	r.word(conflictIs).Store(kind | uint64(len(taken))<<16 | uint64(len(kept)))
	r.word(conflictArea).Store(uint64(id))
	r.word(conflictNumber).Store(number)
	r.word(conflictTime).Store(uint64(at.UnixNano()))
	r.word(conflictOff).Store(uint64(off))
	n := copy(f.mem[r.off+conflictHead:], kept)
	copy(f.mem[r.off+conflictHead+n:], taken)
	f.live++
	f.counts().Store(uint64(r.end()))
	return r
}

// sizes returns how many bytes a record has.
func (r conflictRecord) sizes() (kept, taken int) {
	w := r.word(conflictIs).Load()
	return int(w & 0xffff), int(w >> 16 & 0xffff)
}

// end returns where the next record is: words are aligned.
func (r conflictRecord) end() int {
	kept, taken := r.sizes()
	return (r.off + conflictHead + kept + taken + 7) &^ 7
}

func (r conflictRecord) kind() uint64 { return r.word(conflictIs).Load() &^ (1<<48 - 1) }

// dropLocked forgets a record.
func (c *conflicts) dropLocked(r conflictRecord) {
	r.word(conflictIs).And(1<<48 - 1)
	if r.at.live--; r.at.live > 0 {
		return
	}
	if r.at == c.mu.last {
		c.mu.last = nil
	}
	c.mu.frames.put(r.at.frame)
}

// DropConflicts drops the conflicts of an area up to a number; 0: all.
func (s *Keep) DropConflicts(id dsm.AreaID, upTo uint64) {
	if s == nil {
		return
	}
	c := &s.conflicts
	c.mu.Lock()
	defer c.mu.Unlock()
	left := slices.DeleteFunc(c.mu.records[id], func(r conflictRecord) bool {
		drop := upTo == 0 || r.number <= upTo
		if drop {
			c.dropLocked(r)
		}
		return drop
	})
	if c.mu.records[id] = left; len(left) == 0 {
		delete(c.mu.records, id)
	}
}

// LeftConflicts are what earlier daemons have kept of an area.
type LeftConflicts struct {
	List []Conflict // in order
	Lost int64      // bytes that there was no room for
}

// Conflicts returns what earlier daemons have kept, and the largest number that a conflict of any area ever had.
func (s *Keep) Conflicts() (all map[dsm.AreaID]LeftConflicts, last uint64) {
	if s == nil {
		return nil, 0
	}
	c := &s.conflicts
	c.mu.Lock()
	defer c.mu.Unlock()
	all = make(map[dsm.AreaID]LeftConflicts)
	for id, records := range c.mu.records {
		list := make([]Conflict, len(records))
		for i, r := range records {
			kept, taken := r.sizes()
			b := slices.Clone(r.at.mem[r.off+conflictHead:][:kept+taken])
			list[i] = Conflict{
				Area: id, Number: r.number, Time: time.Unix(0, int64(r.word(conflictTime).Load())), Off: int64(r.word(conflictOff).Load()),
				Kept: b[:kept:kept], Taken: b[kept:],
			}
		}
		all[id] = LeftConflicts{List: list}
	}
	for id, r := range c.mu.lost {
		all[id] = LeftConflicts{all[id].List, int64(r.word(conflictNumber).Load())}
	}
	return all, s.mem.Word(hold.Conflicts).Load()
}

// restore finds what earlier daemons have kept. Nobody else has the keep yet.
func (c *conflicts) restore() error {
	left, err := c.mu.frames.adopt(ofNoArea)
	if err != nil {
		return err
	}
	all := left[frameConflicts]
	slices.SortFunc(all, func(x, y tagged) int { return cmp.Compare(x.arg, y.arg) })
	for _, x := range all {
		f := &conflictFrame{frame: x.frame}
		c.mu.next = x.arg + 1
		for off := conflictsAt; off < int(f.counts().Load()); {
			r := conflictRecord{at: f, off: off}
			off = r.end()
			r.number = r.word(conflictNumber).Load()
			id := dsm.AreaID(r.word(conflictArea).Load())
			switch r.kind() {
			case conflictKept:
				c.mu.records[id] = append(c.mu.records[id], r)
			case conflictLost:
				c.mu.lost[id] = r
			default:
				continue
			}
			f.live++
		}
		if f.live == 0 {
			c.mu.frames.put(f.frame)
		}
	}
	return nil
}
