package coherence

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// lossy is a Sender whose session breaks under the first HandoverDone: the reset is
// told before Send returns.
type lossy struct {
	node  *Node
	dones int
}

func (l *lossy) Flush(dsm.NodeID)                               {}
func (l *lossy) SendShared(dsm.NodeID, any, *wire.Shared, bool) {}

func (l *lossy) Send(to dsm.NodeID, m any, _ [][]byte, _ bool) {
	if _, ok := m.(*wire.HandoverDone); !ok {
		return
	}
	if l.dones++; l.dones > 1 {
		return
	}
	told := make(chan struct{})
	go func() {
		l.node.SessionReset(to)
		close(told)
	}()
	<-told
}

func TestLostHandoverDoneIsSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, 1, 2, dsm.Inode{Size: dsm.ExtentSize})
		n := s.nodes[0]
		v := *n.view
		v.Epoch++
		for i := range v.Slots {
			v.Slots[i] = dsm.SlotHome{Primary: 2, Source: n.id, Epoch: v.Epoch}
		}
		n.view = &v
		l := &lossy{}
		l.node = New(Config{Self: n.id, View: n, Sender: l, Log: slog.New(slog.DiscardHandler)})
		defer l.node.Close()
		l.node.ViewChanged(&v)
		synctest.Wait()
		if l.dones != 2 {
			t.Errorf("HandoverDone was sent %d times, want 2: the first was lost, and the new home waits for it", l.dones)
		}
	})
}

// TestPublishParkedBehindAnOpen: a new home opens the area while the slot is on
// its way, and another node publishes. Both are served when the slot is here: the Subscribe,
// whose answer says that nothing is lacking, and then the publish, which makes that untrue.
func TestPublishParkedBehindAnOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 2, sums(1, dsm.ApplyAuto))
		before, after := s.nodes[0], s.nodes[1]
		before.open(true)
		s.move(after, 1)

		after.find()
		after.startOpen(false)
		after.startOpen(true)
		put(t, before, 5)
		publish(before)
		s.deliverAll(link{0, 1})
		s.drain()
		if err := after.area.WriteAt(context.Background(), []byte{1, 0, 0, 0}, 8); err != nil { // to another element
			t.Fatal(err)
		}
		s.rested()
		want(t, before, 5)
		want(t, after, 5)
	})
}
