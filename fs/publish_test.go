package fs

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// TestAcquireOfALongerFile: whoever acquires asks the catalog for the size meanwhile. If another node has made the file longer it acquires once more, since what
// was published there may have a home that the node knew nothing of.
func TestAcquireOfALongerFile(t *testing.T) {
	away, refused := errs.E(errs.Timeout, "", ""), errs.E(errs.Unavailable, "", "")
	for name, c := range map[string]struct {
		grows          bool
		fails, catalog error
		calls          int
		want           error
	}{
		"as it was":           {calls: 1},
		"longer":              {grows: true, calls: 2},
		"removed":             {catalog: errs.E(errs.NotExist, "", ""), calls: 1},
		"nobody knows":        {catalog: away, calls: 1, want: away},
		"the acquire fails":   {fails: refused, calls: 1, want: refused},
		"neither is possible": {fails: refused, catalog: away, calls: 1, want: refused},
	} {
		t.Run(name, func(t *testing.T) {
			b, a, _ := pacedArea(0)
			defer b.background.close()
			defer b.end()
			names := b.cfg.Names.(*fakeNames)
			i, err := names.CreateTemp(t.Context(), dsm.RootIno, dsm.Inode{})
			if err != nil {
				t.Fatal(err)
			}
			a.id = i.Area()
			a.note(i)
			if size := int64(dsm.PageSize); c.grows {
				if _, err := names.SetAttr(t.Context(), i.Ino, dsm.SetAttr{GrowTo: &size}); err != nil {
					t.Fatal(err)
				}
			}
			names.mu.Lock()
			names.fail["Getattr"] = c.catalog
			names.mu.Unlock()
			calls := 0
			err = b.acquire(t.Context(), a, func(context.Context) error {
				calls++
				return c.fails
			})
			if calls != c.calls || err != c.want {
				t.Errorf("%d acquires, %v; want %d, %v", calls, err, c.calls, c.want)
			}
		})
	}
}

// lateChange is a catalog that makes one change when the test says so.
type lateChange struct {
	*fakeNames
	late atomic.Pointer[chan struct{}] // closed when it does
}

func (n *lateChange) SetAttr(ctx context.Context, ino dsm.Ino, ch dsm.SetAttr) (dsm.Inode, error) {
	if late := n.late.Swap(nil); late != nil {
		<-*late
	}
	return n.fakeNames.SetAttr(ctx, ino, ch)
}

// TestTimeThatAProgramSetsStays: a program sets the time of a file that it has just closed, while the node tells the catalog of the last store.
func TestTimeThatAProgramSetsStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := &lateChange{fakeNames: newFakeNames()}
		b, a := countingBy(t, names, names.fakeNames, "f")
		time.Sleep(time.Second)
		a.stored.Add(1)
		area := b.cfg.Areas.(*fakeAreas).area(a.id)
		area.update(func() { area.modTime = time.Now() })
		change := make(chan struct{})
		names.late.Store(&change)
		kept := make(chan struct{})
		go func() {
			b.keepModTime(t.Context(), a)
			close(kept)
		}()
		synctest.Wait()
		set, done := time.Now().Add(-time.Hour), make(chan error, 1)
		go func() {
			r := b.begin(nil, headerOf(0))
			defer r.end()
			_, err := b.setAttr(r, dsm.Ino(a.id), dsm.SetAttr{Mtime: &set})
			done <- err
		}()
		synctest.Wait()
		close(change)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		<-kept
		b.keepModTime(t.Context(), a) // of another handle
		if i, err := names.Getattr(t.Context(), dsm.Ino(a.id)); err != nil || !i.Mtime.Equal(set) {
			t.Errorf("modified at %v (%v), want %v", i.Mtime, err, set)
		}
		b.background.close()
		b.releases.close()
	})
}

// slowAnswer is a catalog that answers what an inode is like when the test says so.
type slowAnswer struct {
	*fakeNames
	answer atomic.Pointer[chan struct{}] // of the next question; nil: at once
}

func (n *slowAnswer) Getattr(ctx context.Context, ino dsm.Ino) (dsm.Inode, error) {
	if answer := n.answer.Swap(nil); answer != nil {
		<-*answer
	}
	return n.fakeNames.Getattr(ctx, ino)
}

// TestWriteWhileTheSizeIsAskedFor: another node has made a file shorter, and this one asks how long it is now. What a program writes meanwhile is in the file:
// what was known before does not count.
func TestWriteWhileTheSizeIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := &slowAnswer{fakeNames: newFakeNames()}
		b, a := countingBy(t, names, names.fakeNames, "f")
		b.notify.server = slowCache{func() {}}
		write := func() int64 {
			t.Helper()
			r := b.begin(nil, headerOf(0))
			defer r.end()
			if _, err := b.ensureSize(r, a, 100); err != nil {
				t.Fatal(err)
			}
			i, err := names.fakeNames.Getattr(t.Context(), dsm.Ino(a.id))
			if err != nil {
				t.Fatal(err)
			}
			return i.Size
		}
		shorter := func() {
			t.Helper()
			if _, err := names.SetAttr(t.Context(), dsm.Ino(a.id), dsm.SetAttr{Size: new(int64)}); err != nil {
				t.Fatal(err)
			}
			b.notify.attrChanged(a)
		}
		answer := make(chan struct{})
		names.answer.Store(&answer)
		shorter()
		synctest.Wait()
		if size := write(); size != 100 {
			t.Errorf("the file has %d bytes, and 100 were written to it", size)
		}
		shorter() // while it is being asked for
		close(answer)
		synctest.Wait()
		if size := write(); size != 100 {
			t.Errorf("then the file has %d bytes, and 100 were written to it", size)
		}
		if a.sizeStale() {
			t.Error("the size is asked for again and again")
		}
		b.background.close()
		b.releases.close()
	})
}
