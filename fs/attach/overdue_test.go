package attach

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/uffd"
)

// faulting is an area of which only Fault is called.
type faulting struct {
	Area
	served chan int64
}

func (f *faulting) Fault(_ context.Context, off int64, _ func()) error {
	f.served <- off
	return nil
}

// TestOverdue: only a fault whose page has not come for long is served, once.
func TestOverdue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		area := &faulting{served: make(chan int64, 9)}
		x := &attachment{conn: &conn{s: &Server{cfg: Config{Timeout: time.Minute}, ctx: t.Context()}}, area: area}
		x.overdue.mu.Init("attach.overdue")
		came, gone, late := new(uffd.Range), new(uffd.Range), new(uffd.Range)
		at := func(r *uffd.Range, off int64) *fault {
			f := &fault{x: x, r: r, off: off, since: time.Now()}
			x.overdue.add(f)
			return f
		}
		f := at(came, 1)
		at(gone, 2)
		at(late, 3)
		if !x.overdue.remove(f) || x.overdue.remove(f) {
			t.Error("a fault is not removed once")
		}
		if got := x.overdue.take(gone); len(got) != 1 || got[0].off != 2 {
			t.Errorf("taken: %v", got)
		}
		time.Sleep(patience / 2)
		at(late, 4)
		time.Sleep(patience/2 + time.Millisecond)
		synctest.Wait()
		if n := len(area.served); n != 1 {
			t.Errorf("%d faults are served, want that which has waited for long", n)
		}
		time.Sleep(patience)
		synctest.Wait()
		close(area.served)
		var got []int64
		for off := range area.served {
			got = append(got, off)
		}
		if len(got) != 2 || got[0] != 3 || got[1] != 4 {
			t.Errorf("served %v, want 3 and 4", got)
		}
		time.Sleep(patience)
		synctest.Wait()
		x.overdue.mu.Lock()
		if x.overdue.mu.running {
			t.Error("the timer runs on for nobody")
		}
		x.overdue.mu.Unlock()
	})
}
