package pages

import (
	"bytes"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/hold"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

// joined puts the parts of conflicts together.
func joined(all map[dsm.AreaID]LeftConflicts) map[dsm.AreaID]LeftConflicts {
	for id, left := range all {
		var list []Conflict
		for _, x := range left.List {
			if k := len(list) - 1; k >= 0 && list[k].Number == x.Number && list[k].Off+int64(len(list[k].Kept)) == x.Off {
				list[k].Kept, list[k].Taken = append(list[k].Kept, x.Kept...), append(list[k].Taken, x.Taken...)
				continue
			}
			list = append(list, x)
		}
		all[id] = LeftConflicts{list, left.Lost}
	}
	return all
}

func (c *conflicts) used() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.frames.used
}

// TestKilledWithConflicts: conflicts of all sizes are kept and dropped, in areas that have memory and such that have none any more. Each daemon has what the one before had, and no frame for what is gone.
func TestKilledWithConflicts(t *testing.T) {
	rnd := pagetest.Rand(t)
	m, err := hold.Create()
	if err != nil {
		t.Fatal(err)
	}
	var none *Keep
	none.KeepConflict(&Conflict{Area: 1, Kept: []byte("1")})
	none.LoseConflicts(1, 1)
	none.DropConflicts(1, 0)
	if all, last := none.Conflicts(); len(all) > 0 || last != 0 {
		t.Errorf("no keep has %v, %d", all, last)
	}
	s := newTestStore(t, m)
	if _, err := s.NewHeldArea(1, dsm.PageSize); err != nil {
		t.Fatal(err)
	}
	want, last := make(map[dsm.AreaID]LeftConflicts), uint64(0)
	for range 60 {
		for range rnd.IntN(20) {
			id := 1 + dsm.AreaID(rnd.IntN(4))
			left := want[id]
			switch rnd.IntN(8) {
			case 0:
				k := 0
				if rnd.IntN(2) == 0 {
					k = rnd.IntN(len(left.List) + 1)
				}
				upTo := uint64(0)
				if k > 0 {
					upTo = left.List[k-1].Number
				} else {
					k = len(left.List)
				}
				s.DropConflicts(id, upTo)
				left.List = slices.Clone(left.List[k:])
			case 1:
				left.Lost = rnd.Int64N(2) * rnd.Int64N(1000)
				s.LoseConflicts(id, left.Lost)
			default:
				last++
				x := Conflict{Area: id, Number: last, Time: time.Unix(rnd.Int64N(1e9), rnd.Int64N(1e9)), Off: rnd.Int64N(1 << 40), Kept: make([]byte, 1+rnd.IntN([]int{8, 32, 5000, 20000}[rnd.IntN(4)]))}
				for i := range x.Kept {
					x.Kept[i] = byte(rnd.Uint32())
				}
				if x.Taken = []byte{}; len(x.Kept) <= 32 && rnd.IntN(2) == 0 {
					x.Taken = bytes.Repeat([]byte{byte(rnd.Uint32())}, len(x.Kept))
				}
				s.KeepConflict(&x)
				left.List = append(left.List, x)
			}
			if want[id] = left; len(left.List) == 0 && left.Lost == 0 {
				delete(want, id)
			}
		}
		if rnd.IntN(2) == 0 {
			s = newTestStore(t, m)
		}
		got, n := newTestStore(t, m).Conflicts()
		if joined(got); n != last || len(got) != len(want) {
			t.Fatalf("conflicts of %d areas are left, and the last is %d, want %d and %d", len(got), n, len(want), last)
		}
		for id, left := range want {
			if g := got[id]; len(g.List) != len(left.List) || g.Lost != left.Lost {
				t.Fatalf("area %d: %d conflicts are left, and %d bytes lost, want %d and %d", id, len(g.List), g.Lost, len(left.List), left.Lost)
			}
			for i, x := range left.List {
				if g := got[id].List[i]; !reflect.DeepEqual(g, x) {
					t.Fatalf("area %d: conflict %d is left as %d at %d, %v: %.40x for %x; want %d at %d, %v: %.40x for %x", id, i, g.Number, g.Off, g.Time, g.Kept, g.Taken, x.Number, x.Off, x.Time, x.Kept, x.Taken)
				}
			}
		}
	}
	for id := range want {
		s.DropConflicts(id, 0)
		s.LoseConflicts(id, 0)
	}
	if used := s.conflicts.used(); used != 0 {
		t.Errorf("%d frames are used by no conflicts", used)
	}
	s = newTestStore(t, m)
	if got, _ := s.Conflicts(); len(got) > 0 || s.conflicts.used() != 0 {
		t.Errorf("dropped, and left: %v, in %d frames", got, s.conflicts.used())
	}
	s.KeepConflict(&Conflict{Area: 1, Number: last, Kept: []byte("1")})
	s.conflicts.mu.records[1][0].word(conflictIs).And(1<<48 - 1) // killed before the frame is put back
	s = newTestStore(t, m)
	if got, _ := s.Conflicts(); len(got) > 0 || s.conflicts.used() != 0 {
		t.Errorf("being dropped, and left: %v, in %d frames", got, s.conflicts.used())
	}
	if left := s.Areas(); len(left) != 1 {
		t.Errorf("left of one area: %+v", left)
	}
}

// TestSmallConflictsShareFrames: what conflicts take is bounded by their bytes.
func TestSmallConflictsShareFrames(t *testing.T) {
	m, err := hold.Create()
	if err != nil {
		t.Fatal(err)
	}
	s := newTestStore(t, m)
	for i := range uint64(1000) {
		s.KeepConflict(&Conflict{Area: dsm.AreaID(1 + i), Number: 1, Kept: []byte{1}, Taken: []byte{2}})
	}
	if used := s.conflicts.used(); used > 1000*128/dsm.PageSize {
		t.Errorf("1000 conflicts of a byte take %d frames", used)
	}
}
