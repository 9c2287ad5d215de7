package coherence

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

const simBound = 100 * time.Millisecond

// boundCase is a cluster at rest of a home and a node that reads, of an area with a bound on staleness.
type boundCase struct {
	*sim
	home, reader *simNode
}

func startBoundCase(t *testing.T, spec dsm.Spec, write bool) boundCase {
	spec.Staleness = simBound
	s := newHomed(t, 2, dsm.Inode{Size: 2 * dsm.PageSize, Spec: spec, Layout: dsm.Layout{DType: spec.DType}})
	c := boundCase{s, s.nodes[0], s.nodes[1]}
	for _, n := range s.nodes {
		n.find()
		n.openReader()
		c.calm()
	}
	c.home.openWriter()
	if write {
		c.reader.openWriter()
	}
	c.calm()
	c.reads(c.reader) // the page is there
	c.calm()
	return c
}

// publishes has a program at the home store a byte and publish it, without a message reaching the reader.
func (c boundCase) publishes(b byte) {
	if err := c.home.area.WriteAt(context.Background(), []byte{b}, 0); err != nil {
		c.t.Fatal(err)
	}
	if err := c.home.area.Publish(context.Background()); err != nil {
		c.t.Fatal(err)
	}
}

// readPast is a read(2) under way.
type readPast struct {
	q   *request
	b   [1]byte
	err error
}

// reads starts a read(2) past the page cache.
func (c boundCase) reads(n *simNode) *readPast {
	r := new(readPast)
	r.q = n.ask("read", func(ctx context.Context) error {
		_, r.err = n.area.ReadBy(ctx, 0, r.b[:], 0)
		return nil
	}, nil)
	c.rest()
	return r
}

// is wants the read to have returned a byte.
func (c boundCase) is(r *readPast, what string, want byte) {
	c.t.Helper()
	if !r.q.over.Load() || r.err != nil || r.b[0] != want {
		c.t.Errorf("%s: over %v, byte %d, %v; want %d", what, r.q.over.Load(), r.b[0], r.err, want)
	}
}

// TestReadPastTheBound waits for an acquire that brings what was published longer ago. Until then a read returns what is here.
func TestReadPastTheBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startBoundCase(t, dsm.Spec{}, false)
		c.publishes(7)
		c.pass(simBound / 2)
		c.is(c.reads(c.reader), "within the bound", 0)
		c.pass(simBound)
		r := c.reads(c.reader)
		if r.q.over.Load() {
			t.Errorf("a read past the bound returned byte %d, %v, and nobody had asked the home", r.b[0], r.err)
		}
		c.calm()
		c.is(r, "after the home has answered", 7)
	})
}

// TestReadPastTheBoundEnds with the deadline, and names the home that does not answer. The log says once that memory is old.
func TestReadPastTheBoundEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startBoundCase(t, dsm.Spec{}, false)
		var log bytes.Buffer
		c.reader.area.step(func() { c.reader.node.cfg.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		c.pass(4 * simBound)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.reader.area.ReadAt(ctx, make([]byte, 1), 0)
		if !errs.Is(err, errs.Timeout) || !strings.Contains(fmt.Sprint(err), c.home.id.String()) || !strings.Contains(fmt.Sprint(err), "user.dsm.staleness") {
			t.Errorf("a read without the home: %v", err)
		}
		r := c.reads(c.reader)
		c.calm()
		c.is(r, "after the home has answered", 0)
		var said string
		c.reader.area.step(func() { said = log.String() })
		if n := strings.Count(said, "older than its bound"); n != 1 || strings.Count(said, "within its bound again") != 1 {
			t.Errorf("the log: %s", said)
		}
	})
}

// TestMemoryStaysWithinTheBound by itself, so no read waits, as long as homes answer and a program has the area open.
func TestMemoryStaysWithinTheBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startBoundCase(t, dsm.Spec{}, false)
		a := c.reader.area
		oldest := time.Duration(0)
		for range 500 {
			c.pass(time.Millisecond)
			d, ok := a.Staleness()
			if oldest = max(oldest, d); !ok {
				t.Fatal("nothing is known of an area that is open")
			}
			c.calm()
		}
		if oldest > simBound*3/4 {
			t.Errorf("memory was %v behind", oldest)
		}
		c.reader.leaveAll()
		c.calm()
		round := a.mu.replica.round
		c.pass(10 * simBound)
		if a.mu.replica.round != round {
			t.Error("it goes on when nobody has the area open")
		}
		c.reader.openReader()
		c.calm()
		c.pass(10 * simBound)
		if a.mu.replica.refresh == nil {
			t.Error("it does not go on when a program has opened the area again")
		}
		c.calm()
	})
}

// TestReadWhereOnlySyncsBring: a read(2) past the bound is an error at once, and a sync brings what it lacks. A fault of a mapping is none.
func TestReadWhereOnlySyncsBring(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startBoundCase(t, dsm.Spec{Merge: dsm.MergeSum, DType: dsm.DTypeU8}, true)
		c.publishes(7)
		c.pass(2 * simBound)
		c.calm()
		if r := c.reads(c.reader); !errs.Is(r.err, errs.Unavailable) || !strings.Contains(fmt.Sprint(r.err), "user.dsm.apply") {
			t.Errorf("a read past the bound: byte %d, %v", r.b[0], r.err)
		}
		if err := c.reader.area.Sync(t.Context(), false); !errs.Is(err, errs.Unavailable) {
			t.Errorf("a sync of a program that does not store: %v", err)
		}
		var b [1]byte
		if _, err := c.reader.area.ReadAt(t.Context(), b[:], 0); err != nil || b[0] != 0 {
			t.Errorf("a fault: byte %d, %v", b[0], err)
		}
		c.reader.sync(c.reader.writer)
		c.calm()
		c.is(c.reads(c.reader), "after a sync", 7)
		c.reader.leaveWriter()
		c.pass(2 * simBound)
		r := c.reads(c.reader)
		c.calm()
		c.is(r, "of a node that only reads", 7)
	})
}

// TestDraftPastTheBound: a program that has memory of its own reads that, so only its own sync makes it newer.
func TestDraftPastTheBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startBoundCase(t, dsm.Spec{Merge: dsm.MergeSum, DType: dsm.DTypeU8}, false)
		at, f, err := c.reader.area.Attach(t.Context(), 1, true)
		if err != nil || !at.Own() {
			t.Fatal(at, err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		c.publishes(7)
		c.pass(2 * simBound)
		r := c.reads(c.reader)
		c.calm()
		c.is(r, "a program without a draft", 7)
		var b [1]byte
		if _, err := c.reader.area.ReadBy(t.Context(), 1, b[:], 0); !errs.Is(err, errs.Unavailable) {
			t.Errorf("past the bound: byte %d, %v", b[0], err)
		}
		synced := c.reader.ask("sync", at.Sync, nil)
		c.calm()
		if _, err := c.reader.area.ReadBy(t.Context(), 1, b[:], 0); err != nil || b[0] != 7 {
			t.Errorf("after its sync (%v): byte %d, %v", synced.err, b[0], err)
		}
		c.pass(2 * simBound)
		c.changeRules(func(ino *dsm.Inode) { ino.Spec.Apply = dsm.ApplyArrival })
		c.publishes(8)
		c.calm()
		read := c.reader.ask("read", func(ctx context.Context) error {
			_, err := c.reader.area.ReadBy(ctx, 1, b[:], 0)
			return err
		}, nil)
		c.calm()
		if read.err != nil || b[0] != 8 {
			t.Errorf("where updates come as they arrive: byte %d, %v", b[0], read.err)
		}
		at.Detach()
	})
}

// TestBoundOfAnEmptyArea: no home is asked, and reads return.
func TestBoundOfAnEmptyArea(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startBoundCase(t, dsm.Spec{}, false)
		c.pass(2 * simBound) // an acquire is under way
		c.resize(0)
		c.reader.apply()
		c.is(c.reads(c.reader), "nothing", 0)
		c.pass(2 * simBound)
		c.is(c.reads(c.reader), "nothing, later", 0)
		c.calm()
	})
}

// TestAges counts how old memory was at reads and syncs, for the area and for the node.
func TestAges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startBoundCase(t, dsm.Spec{}, false)
		c.pass(3 * time.Millisecond)
		c.reads(c.reader)
		c.reader.sync(nil)
		c.calm()
		has := func(list []Stat, name string) bool {
			for _, s := range list {
				if s.Name == name {
					return s.Value == "1"
				}
			}
			return false
		}
		for _, name := range []string{"read_staleness_4ms", "sync_staleness_4ms"} {
			if !has(c.reader.area.Ages(), name) || !has(c.reader.node.Stats(), name) {
				t.Errorf("%s: %v", name, c.reader.area.Ages())
			}
		}
	})
}

func TestHistogram(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "1ms", time.Millisecond: "1ms", time.Millisecond + 1: "2ms", 2 * time.Millisecond: "2ms", 3 * time.Millisecond: "4ms",
		65536 * time.Millisecond: "65536ms", 65536*time.Millisecond + 1: "more", maxAge: "more",
	} {
		var h histogram
		h.add(d)
		if got := h.stats("x", false); len(got) != 1 || got[0] != (Stat{"x_" + want, "1"}) {
			t.Errorf("%v: %v, want %s", d, got, want)
		}
		if got := h.stats("x", true); len(got) != histogramBounds+1 {
			t.Errorf("%d figures", len(got))
		}
	}
}
