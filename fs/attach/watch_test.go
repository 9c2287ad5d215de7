package attach

import (
	"encoding/binary"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/head"
)

// busyAttachment is of an area that is busy when somebody begins to watch it.
type busyAttachment struct {
	idleAttachment
	free chan struct{}
}

func (busyAttachment) Own() bool          { return false }
func (busyAttachment) Unwatch(*head.Line) {}
func (x busyAttachment) Watch(l *head.Line) {
	<-x.free
	l.Set(head.Values{State: head.Follows, Here: 42, Whole: 42})
}

// TestNobodyIsShownALineThatSaysNothing: a second program that watches an area while the first one still waits for it is shown the
// line only when it says which version is in memory.
func TestNobodyIsShownALineThatSaysNothing(t *testing.T) {
	keeper := head.NewKeeper() // has a thread, so it is not in the bubble
	t.Cleanup(keeper.Close)
	synctest.Test(t, func(t *testing.T) {
		s := &Server{limits: defaultLimits, keeper: keeper}
		s.mu.Init("attach.Server")
		u := &user{}
		t.Cleanup(func() {
			if err := u.heads.pages.Close(); err != nil {
				t.Error(err)
			}
		})
		free := make(chan struct{})
		shown := make(chan uint64, 2)
		for range 2 {
			x := &attachment{conn: &conn{s: s, user: u}, file: 7, at: busyAttachment{free: free}}
			x.mu.Init("attach.attachment")
			go func() {
				l, err := x.watched()
				if err != nil {
					t.Error(err)
					return
				}
				here := make([]byte, 8)
				if _, err := u.heads.pages.File().ReadAt(here, l.off+16); err != nil {
					t.Error(err)
				}
				shown <- binary.LittleEndian.Uint64(here)
				x.unwatch()
			}()
		}
		synctest.Wait()
		if n := len(shown); n > 0 {
			t.Errorf("%d programs are shown a line that says version %d", n, <-shown)
		}
		close(free)
		synctest.Wait()
		for len(shown) > 0 {
			if v := <-shown; v != 42 {
				t.Errorf("the line says version %d", v)
			}
		}
	})
}
