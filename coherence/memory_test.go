package coherence

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/pages"
)

// starve takes the descriptors from a node, until feed is called. The log is what it says of that.
func (n *simNode) starve() (log *bytes.Buffer, feed func()) {
	log = new(bytes.Buffer)
	n.node.cfg.Log = slog.New(slog.NewTextHandler(log, nil))
	var fed atomic.Bool // timers make memory, too
	n.node.newMemory = func(id dsm.AreaID, size int64, demand bool) (*pages.Area, error) {
		if fed.Load() {
			return newMemory(id, size, demand)
		}
		return nil, &errs.Error{Op: "memory: new", Err: os.NewSyscallError("memfd_create", syscall.EMFILE)}
	}
	return log, func() { fed.Store(true) }
}

func (n *simNode) reached(g publishGoal) (over bool) {
	n.area.step(func() { over = n.area.reachedLocked(g) })
	return over
}

// retried lets the time pass after which a node tries again to make memory.
func (s *sim) retried() {
	<-time.After(memoryRetry + 1)
	synctest.Wait()
	s.drain()
}

// TestOpenWithoutDescriptors: who opens is told of the limit, not of the budget; the log names it once.
func TestOpenWithoutDescriptors(t *testing.T) {
	n := newHomed(t, 1, dsm.Inode{Size: dsm.ExtentSize}).nodes[0]
	n.find()
	log, _ := n.starve()
	for range 3 {
		var err error
		n.area.step(func() { err = n.area.openedLocked(true) })
		if !errors.Is(err, syscall.EMFILE) || errs.KindOf(err) != errs.Other {
			t.Errorf("%v, kind %v", err, errs.KindOf(err))
		}
	}
	if k := strings.Count(log.String(), "RLIMIT_NOFILE"); k != 1 {
		t.Errorf("%d warnings name the limit:\n%s", k, log)
	}
}

// TestPublishToAHomeWithoutDescriptors: it waits until there are some. Its publisher may send it again meanwhile.
func TestPublishToAHomeWithoutDescriptors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 2, sums(1, dsm.ApplyArrival))
		home, replica := s.nodes[0], s.nodes[1]
		_, feed := home.starve()
		replica.open(true)
		home.find()
		put(t, replica, 5)
		var goal publishGoal
		replica.area.step(func() { goal = replica.area.requestPublishLocked() })
		s.retried()
		for range 3 {
			home.reset(replica)
			replica.reset(home)
			s.retried()
		}
		if replica.reached(goal) {
			t.Fatal("the publish is over, and its home has no memory")
		}
		publishes := 0
		home.area.step(func() {
			for _, m := range home.area.mu.parked {
				if _, ok := m.msg.(*wire.Publish); ok {
					publishes++
				}
			}
		})
		if publishes != 1 {
			t.Errorf("the one publish is kept %d times", publishes)
		}
		feed()
		s.retried()
		if !replica.reached(goal) {
			t.Fatal("the publish is not taken when there is memory again")
		}
		home.open(false)
		s.drain()
		want(t, home, 5)
	})
}

// TestVersionFromAHomeWithoutDescriptors: a node that has asked for the newest version gets it when its home has memory, though nobody publishes
// or asks again.
func TestVersionFromAHomeWithoutDescriptors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 2, dsm.Inode{Size: dsm.ExtentSize, Spec: dsm.Spec{Mode: dsm.ModeVersioned}})
		home, replica := s.nodes[0], s.nodes[1]
		home.find()
		_, feed := home.starve()
		replica.open(false)
		var size int64
		replica.ask("pin", func(ctx context.Context) error {
			v, err := replica.area.PinToRead(ctx, 0)
			size = v.Size
			return err
		}, nil)
		s.retried()
		if replica.outstanding() == 0 {
			t.Fatal("a version comes from a home without memory")
		}
		feed()
		s.retried()
		if replica.outstanding() > 0 {
			t.Error("the version does not come when the home has memory")
		} else if size != dsm.ExtentSize {
			t.Errorf("the version has %d bytes, want %d", size, dsm.ExtentSize)
		}
	})
}

// TestHandoverToAHomeWithoutDescriptors: the extent is sent again until there are some.
func TestHandoverToAHomeWithoutDescriptors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 3, sums(1, dsm.ApplyArrival))
		to, replica := s.nodes[1], s.nodes[2]
		replica.open(true)
		put(t, replica, 5)
		publish(replica)
		s.drain()
		_, feed := to.starve()
		s.move(to, 1)
		s.drain()
		s.retried()
		put(t, replica, 7)
		var goal publishGoal
		replica.area.step(func() { goal = replica.area.requestPublishLocked() })
		s.retried()
		if replica.reached(goal) {
			t.Fatal("the new home takes a publish without memory")
		}
		feed()
		s.retried()
		if !replica.reached(goal) {
			t.Fatal("the extent is not handed over when there is memory again")
		}
		to.open(false)
		s.drain()
		want(t, to, 7)
	})
}
