package coherence

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestLingerIsOfTheLastClose: an area stays for as long as it is to after it was closed for the last time,
// however often it was opened and closed before.
func TestLingerIsOfTheLastClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, n := pair(t, dsm.ApplyArrival)
		n.node.cfg.Linger = 10 * time.Second
		n.leaveAll()
		for range 5 {
			time.Sleep(6 * time.Second)
			synctest.Wait()
			if !n.area.mu.replica.subscribed {
				t.Fatal("the area is let go 6 s after its last close")
			}
			n.startOpen(false)
			n.area.Close(false)
			s.drain()
		}
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if n.area.mu.replica.subscribed {
			t.Error("the area is still there 11 s after its last close")
		}
	})
}

// TestClosesOfWhatCannotBePublished: while the home does not answer, a closed area tries at its linger, once,
// however often it was closed.
func TestClosesOfWhatCannotBePublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, n := pair(t, dsm.ApplyArrival)
		var log bytes.Buffer
		n.node.cfg.Linger, n.node.cfg.Log = 10*time.Second, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		put(t, n, 5)
		n.leaveAll() // nothing that the node sends is delivered
		for range 20 {
			n.startOpen(false)
			n.area.Close(false)
		}
		time.Sleep(101 * time.Second)
		synctest.Wait()
		if k := strings.Count(log.String(), "not published yet"); k != 10 {
			t.Errorf("%d tries in 100 s, want 10", k)
		}
		s.drain()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n.area.mu.replica.subscribed {
			t.Error("the area is still there though it is published")
		}
	})
}

// TestCloseAfterAnInterruptedPublish: a versioned area is let go after its last close, also if the publish of its last version was interrupted when nothing but
// the answer of the home was left.
func TestCloseAfterAnInterruptedPublish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newOwnCase(t, 2, dsm.Spec{})
		n := c.nodes[1]
		if err := c.opens(n); err != nil {
			t.Fatal(err)
		}
		c.stores(n, 0, 7)
		var id dsm.RoundID
		n.area.step(func() { id = n.area.versionIDLocked() })
		if err := c.does(n, func(ctx context.Context) error { return n.area.contribute(ctx, id) }); err != nil {
			t.Fatal(err)
		}
		n.area.step(func() { n.area.endAcquireLocked(n.area.startVersionLocked(id)) })
		c.calm()
		n.area.Close(true)
		n.leaveAll()
		for range 2 {
			n.area.expire()
			c.calm()
		}
		if n.area.mu.replica.subscribed {
			t.Error("the area is still there")
		}
	})
}
