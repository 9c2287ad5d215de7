package coherence

import (
	"context"
	"log/slog"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

// written is an area of many extents, each of which has a page with data, and what is done with it. This node is their home and has the area open;
// another one is subscribed, lacks all of them, and wants nothing pushed.
type written struct {
	*Area
	catalog *slowPair
	tb      testing.TB
}

func newWritten(tb testing.TB, extents int) *written {
	w := &written{catalog: &slowPair{view: oneHome(), size: int64(extents) * dsm.ExtentSize}, tb: tb}
	n := New(Config{Self: 1, View: w.catalog, Sender: nowhere{}, Log: slog.New(slog.DiscardHandler), Linger: time.Hour})
	tb.Cleanup(n.Close)
	var err error
	if w.Area, err = n.area(1); err != nil {
		tb.Fatal(err)
	}
	w.open()
	for e := range extents {
		if err := w.WriteAt(context.Background(), []byte{1}, int64(e)*dsm.ExtentSize); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Publish(context.Background()); err != nil {
		tb.Fatal(err)
	}
	m := &wire.Subscribe{Round: 1, Group: 1, OnRequest: true}
	w.step(func() { m.Stamp, m.Slots = w.stampLocked(), w.slotsLocked(0) })
	if err := n.Handle(2, m, nil); err != nil {
		tb.Fatal(err)
	}
	return w
}

func (w *written) open() {
	w.step(func() {
		if err := w.openedLocked(true); err != nil {
			w.tb.Fatal(err)
		}
	})
}

// shut is the last close, and what follows when nobody has opened the area for a while.
func (w *written) shut() {
	w.Close(true)
	w.expire()
}

// see has the area follow a view that is about others.
func (w *written) see() {
	v := w.catalog.view.Clone()
	v.Epoch++
	v.Members = append(v.Members, dsm.Member{ID: dsm.NodeID(v.Epoch + 2)})
	w.catalog.view = v
	w.step(func() {})
}

func (w *written) change(what func(ino *dsm.Inode)) {
	ino := w.mu.ino
	ino.Rev++
	what(&ino)
	w.step(func() { w.inodeChangedLocked(ino) })
}

func (w *written) resize() {
	w.change(func(ino *dsm.Inode) { ino.Size += dsm.ExtentSize })
	w.change(func(ino *dsm.Inode) { ino.Size, ino.Gen = ino.Size-dsm.ExtentSize, ino.Rev })
}

func (w *written) rules() { w.change(func(ino *dsm.Inode) { ino.Gen = ino.Rev }) }

func (w *written) write() {
	w.step(w.endWritingLocked)
	w.step(w.beginWritingLocked)
}

func (w *written) calls() map[string]func() {
	calls := sparse{w.Area, w.tb}.calls()
	maps.Copy(calls, map[string]func(){"view": w.see, "grow and shrink": w.resize, "rules": w.rules, "writer": w.write,
		"reset": func() { w.step(func() { w.sessionResetLocked(2) }) }})
	return calls
}

// TestCallsOnAWrittenArea: of an area of 25,000 extents a view that was about others took 15 ms, a change of rules 16 ms, and a shrink of its last one 18 ms.
func TestCallsOnAWrittenArea(t *testing.T) {
	w, most := newWritten(t, 10_000), 5*time.Millisecond
	if pagetest.Race {
		most *= 4
	}
	takeAtMost(t, w.calls(), most)
}

func BenchmarkWrittenArea(b *testing.B) {
	w := newWritten(b, 25_000)
	benchmarkCalls(b, w.calls())
	b.Run("open", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			w.shut()
			b.StartTimer()
			w.open()
		}
	})
	b.Run("close", func(b *testing.B) {
		for b.Loop() {
			w.shut()
			b.StopTimer()
			w.open()
			b.StartTimer()
		}
	})
	b.Run("subscribe of all", func(b *testing.B) {
		for b.Loop() {
			w.step(func() { w.sessionResetLocked(1) })
		}
	})
}

// TestViewAfterACut: a home that has cut extents off, and then loses their slots, keeps nothing of them.
func TestViewAfterACut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ino := sums(3, dsm.ApplyArrival)
		ino.Spec.Placement = dsm.PlaceSpread
		s := newHomed(t, 2, ino)
		home, to := s.nodes[0], s.nodes[1]
		home.open(true)
		to.open(true)
		for e := range int64(3) {
			if err := home.area.WriteAt(context.Background(), []byte{1}, e*dsm.ExtentSize); err != nil {
				t.Fatal(err)
			}
		}
		publish(home)
		s.calm()
		s.resized(dsm.ExtentSize)
		s.changeView(func(v *dsm.View) {
			for e := range dsm.ExtentIndex(3) {
				if row := s.rowOf(v, e); e > 0 {
					*row = s.movedTo(*row, to.id, v.Epoch)
				}
			}
		})
		s.catchUp()
		s.calm()
		s.rested()
		if n := len(home.area.mu.home.extents); n != 1 {
			t.Errorf("the home of one extent has entries of %d", n)
		}
	})
}
