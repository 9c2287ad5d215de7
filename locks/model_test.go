package locks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// granted is what owners believe to have, of each file.
type granted struct {
	mu    sync.Mutex
	files map[dsm.Ino]*table
}

func (g *granted) place(ino dsm.Ino, l Lock) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.files[ino] == nil {
		g.files[ino] = new(table)
	}
	if in, blocked := g.files[ino].conflict(l); l.Type != Unlock && blocked {
		return fmt.Errorf("inode %d: %+v beside %+v", ino, l, in)
	}
	g.files[ino].place(l)
	return nil
}

// leaders come and go at random: what a node has yielded is dropped, or comes with a command of another time, and of another node.
func leaders(rng *rand.Rand) func(dsm.Ino, Yield) Yield {
	words := map[dsm.Ino][]Yield{}
	var mu sync.Mutex
	return func(ino dsm.Ino, y Yield) Yield {
		mu.Lock()
		defer mu.Unlock()
		if y.Term != 0 {
			words[ino] = append(words[ino], y)
		}
		switch all := words[ino]; rng.IntN(6) {
		case 0:
			return Yield{}
		case 1:
			if len(all) > 0 {
				return all[len(all)-1]
			}
		case 2:
			if len(all) > 0 {
				return all[rng.IntN(len(all))]
			}
		}
		return y
	}
}

// TestNodesAgainstModel: owners of three nodes lock at random, while leaders come and go. Never do two believe to have locks that
// exclude each other, and in the end nobody waits and nothing is left. Tests end with what they hold given up, as programs do.
func TestNodesAgainstModel(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for round := range uint64(8) {
		c := newBench(t, 3)
		c.word = leaders(rand.New(rand.NewPCG(seed, round*100+99)))
		g := &granted{files: map[dsm.Ino]*table{}}
		var owners sync.WaitGroup
		for i := range 9 {
			m := c.members[i%3]
			rng := rand.New(rand.NewPCG(seed, round*100+uint64(i)))
			o := Owner{Node: m.id, ID: uint64(i), Flock: i >= 6}
			owners.Go(func() { lockAtRandom(t, m, g, o, rng) })
		}
		owners.Wait()
		for _, m := range c.members {
			if _, n := m.Figures(); n != 0 {
				t.Errorf("%d requests of %s wait", n, m.id)
			}
		}
		c.mu.Lock()
		for _, p := range c.book.Pages() {
			if len(p.Granted)+len(p.Queue) > 0 {
				t.Errorf("left: %+v", p)
			}
		}
		c.mu.Unlock()
	}
}

func lockAtRandom(t *testing.T, m *member, g *granted, o Owner, rng *rand.Rand) {
	release := func(ino dsm.Ino) {
		if err := g.place(ino, Lock{Owner: o, Last: End}); err != nil {
			t.Error(err)
		}
		if err := m.Release(context.Background(), ino, o); err != nil {
			t.Error(err)
		}
	}
	for range 150 {
		ino := 1 + dsm.Ino(rng.IntN(3))
		if rng.IntN(6) == 0 {
			m.open(ino, rng.IntN(2) == 0)()
		}
		if o.Flock {
			ino = 1 // nobody finds a circle over files
		}
		first := rng.Uint64N(8)
		l := lock(o, Type(rng.IntN(3)), first, first+rng.Uint64N(4))
		if l.Type == Unlock {
			if err := g.place(ino, l); err != nil {
				t.Error(err)
			}
		}
		ctx, cancel := context.WithCancel(context.Background())
		if rng.IntN(4) == 0 {
			time.AfterFunc(time.Duration(rng.IntN(300))*time.Microsecond, cancel)
		}
		if o.Flock && l.Type != Unlock {
			// What it had is given up first.
			if err := g.place(ino, Lock{Owner: o, Last: End}); err != nil {
				t.Error(err)
			}
		}
		if l.Type != Unlock && g.has(ino, o) {
			// A lock that becomes less is given up before the call returns.
			less := l
			less.Type = Read
			if err := g.lessen(ino, less); err != nil {
				t.Error(err)
			}
		}
		err := m.Set(ctx, ino, l, rng.IntN(2) == 0, m.acquire)
		cancel()
		switch {
		case err == nil && l.Type != Unlock:
			if err := g.place(ino, l); err != nil {
				t.Error(err)
			}
		case err == nil || errs.Is(err, errs.WouldBlock):
		case errs.Is(err, errs.Interrupted), errors.Is(err, context.Canceled):
		case errs.Is(err, errs.Deadlock) && !o.Flock:
		default:
			t.Errorf("%+v: %v", l, err)
		}
		if rng.IntN(5) == 0 || errs.Is(err, errs.Deadlock) {
			for ino := range dsm.Ino(3) {
				release(1 + ino)
			}
		}
	}
	for ino := range dsm.Ino(3) {
		release(1 + ino)
	}
}

func (g *granted) has(ino dsm.Ino, o Owner) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.files[ino] != nil && len(g.files[ino].grantedTo(o)) > 0
}

// lessen makes what the owner has of these bytes at most a Read.
func (g *granted) lessen(ino dsm.Ino, l Lock) error {
	g.mu.Lock()
	own := slices.Clone(g.files[ino].grantedTo(l.Owner))
	g.mu.Unlock()
	for _, h := range own {
		if h.Type == Write && h.First <= l.Last && l.First <= h.Last {
			h.Type, h.First, h.Last = Read, max(h.First, l.First), min(h.Last, l.Last)
			if err := g.place(ino, h); err != nil {
				return err
			}
		}
	}
	return nil
}
