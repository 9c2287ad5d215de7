package pages

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

// TestHistoryModel writes, pins and unpins at random, and compares every page of every pinned version with a full copy
// that was taken when it was pinned. It also checks that there are no copies which nobody needs.
func TestHistoryModel(t *testing.T) {
	rng := pagetest.Rand(t)
	for round := range 200 {
		historyRound(t, round, rng)
	}
}

func historyRound(t *testing.T, round int, rng *rand.Rand) {
	const pages = 5
	first := dsm.Version(rng.IntN(2)) // version 0 can be pinned like any other
	h := NewHistory(first)
	defer h.Close()
	place := make([][]byte, pages)
	for p := range place {
		place[p] = make([]byte, dsm.PageSize)
	}
	type version struct {
		pages [][]byte
		users int
	}
	pinned := map[dsm.Version]*version{}
	changed := map[dsm.PageIndex][]dsm.Version{} // the versions that changed a page
	pin := func(v dsm.Version) {
		if pinned[v] == nil {
			w := &version{}
			for _, b := range place {
				w.pages = append(w.pages, bytes.Clone(b))
			}
			pinned[v] = w
		}
		pinned[v].users++
	}
	for range 60 {
		switch rng.IntN(5) {
		case 0:
			pin(h.Pin())
		case 1, 2: // a version that changes some pages, some of them twice, some to zero
			next := h.Newest() + 1 + dsm.Version(rng.IntN(3))
			for range rng.IntN(pages + 2) {
				p := dsm.PageIndex(rng.IntN(pages))
				h.Before(p, place[p])
				place[p][rng.IntN(2)] = byte(rng.IntN(3))
				if c := changed[p]; len(c) == 0 || c[len(c)-1] != next {
					changed[p] = append(c, next)
				}
			}
			for v, w := range pinned {
				checkHistory(t, round, h, v, w.pages, place)
			}
			h.Advance(next)
		case 3:
			for v, w := range pinned {
				h.Unpin(v)
				if w.users--; w.users == 0 {
					delete(pinned, v)
				}
				break
			}
		case 4:
			v := dsm.Version(rng.IntN(int(h.Newest()) + 2))
			can := pinned[v] != nil || v == h.Newest()
			if got := h.PinAgain(v); got != can {
				t.Fatalf("round %d: PinAgain(%d) = %v with %v pinned, newest %d", round, v, got, pinned, h.Newest())
			} else if got {
				pin(v)
			}
		}
		want := 0
		for _, at := range changed { // one copy for each time between two changes that has a pinned version
			from := dsm.Version(0)
			for _, to := range at {
				for v := range pinned {
					if v >= from && v < to {
						want++
						break
					}
				}
				from = to
			}
		}
		got := 0
		for _, k := range h.pages {
			got += len(k)
		}
		if got != want {
			t.Fatalf("round %d: %d copies, and %d are needed", round, got, want)
		}
		for v, w := range pinned {
			checkHistory(t, round, h, v, w.pages, place)
		}
	}
	for v, w := range pinned {
		for range w.users {
			h.Unpin(v)
		}
	}
	if h.Bytes() != 0 || len(h.pages) != 0 {
		t.Fatalf("round %d: %d bytes kept for nobody", round, h.Bytes())
	}
}

func checkHistory(t *testing.T, round int, h *History, v dsm.Version, want, place [][]byte) {
	t.Helper()
	if _, ok := h.find(v); !ok {
		t.Fatalf("round %d: version %d is not pinned", round, v)
	}
	for p := range want {
		got, inPlace := h.At(dsm.PageIndex(p), v)
		if inPlace {
			got = place[p]
		}
		if !bytes.Equal(got, want[p]) {
			t.Fatalf("round %d: page %d of version %d is %x, want %x", round, p, v, got[:2], want[p][:2])
		}
	}
}

// TestPinnedAgainUnchanged: pages of the newest version are overwritten with what they had, as when a home takes over what it has already. Who pins that version again has it, also when an older one that has the
// same copy is not needed any more.
func TestPinnedAgainUnchanged(t *testing.T) {
	h := NewHistory(5)
	defer h.Close()
	old := bytes.Repeat([]byte{7}, dsm.PageSize)
	h.Pin()
	h.Advance(9) // another page has changed
	h.Pin()
	h.Before(0, old)
	h.Advance(9)
	h.Unpin(9)
	h.Pin()
	h.Before(0, old)
	h.Advance(10)
	h.Unpin(5)
	if got, inPlace := h.At(0, 9); inPlace || !bytes.Equal(got, old) {
		t.Error("a version that is pinned has the bytes of the next one")
	}
	h.Unpin(9)
	if n := h.Bytes(); n != 0 {
		t.Errorf("%d bytes are kept for nobody", n)
	}
}
