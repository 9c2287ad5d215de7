package coherence

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// slowPair is two nodes with many areas, all homed at the first, and a network that delivers a message when it is told to. As
// the transport does, it breaks a session with too much that the peer has not taken.
type slowPair struct {
	t     *testing.T
	view  *dsm.View
	size  int64
	nodes [2]*Node

	mu     sync.Mutex
	queue  [2][]frame // to each
	bytes  [2]int
	most   [2]int
	breaks int

	resetAt int // after so many messages to each the session breaks by itself, once
}

// slowQueue is transport.Config.QueueBytes.
const slowQueue = 64 << 20

// slowEnd is one node's end.
type slowEnd struct {
	*slowPair
	peer int
}

func (s *slowPair) Current() *dsm.View { return s.view }

func (s *slowPair) Area(id dsm.AreaID) (dsm.Inode, bool) {
	return dsm.Inode{Ino: dsm.Ino(id), Kind: dsm.KindFile, Size: s.size, Gen: 1, Rev: 1}, true
}

func (s *slowPair) AreaSince(id dsm.AreaID, _ dsm.Generation) (dsm.Inode, int64, dsm.Generation, bool) {
	ino, ok := s.Area(id)
	return ino, ino.Size, 0, ok
}

func (s *slowPair) WaitApplied(context.Context, dsm.Generation, dsm.Epoch) error { return nil }
func (s *slowPair) SlotsReady(context.Context, []dsm.Slot, dsm.Epoch) error      { return nil }
func (s *slowPair) HandoverFailed(context.Context, []dsm.Slot, []dsm.Slot, dsm.Epoch) error {
	return nil
}
func (s *slowPair) BackupInSync(context.Context, dsm.NodeID, []dsm.Slot, dsm.Epoch) error { return nil }
func (s *slowPair) BackupLags(context.Context, dsm.NodeID, []dsm.Slot, dsm.Epoch) error   { return nil }
func (s *slowPair) MayServe() bool                                                        { return true }
func (s *slowPair) Promised() int64                                                       { return 0 }
func (s *slowPair) OwnArea(context.Context, dsm.AreaID, dsm.NodeID) error                 { return nil }

func (s *slowPair) MoveArea(context.Context, dsm.AreaID, dsm.NodeID, uint8, dsm.Epoch) error {
	return nil
}
func (s *slowPair) SetLayout(context.Context, dsm.AreaID, dsm.Layout) error { return nil }
func (e slowEnd) Flush(dsm.NodeID)                                          {}
func (e slowEnd) Send(_ dsm.NodeID, m any, payload [][]byte, _ bool)        { e.put(m, payload, nil) }
func (e slowEnd) SendShared(_ dsm.NodeID, m any, payload *wire.Shared, _ bool) {
	e.put(m, [][]byte{payload.Bytes}, payload)
}

func (e slowEnd) put(m any, payload [][]byte, shared *wire.Shared) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := frame{msg: m, payload: bytes.Join(payload, nil)}
	if shared != nil {
		shared.Release()
	}
	e.queue[e.peer] = append(e.queue[e.peer], p)
	e.bytes[e.peer] += len(p.payload)
	e.most[e.peer] = max(e.most[e.peer], e.bytes[e.peer])
}

func newSlowPair(t *testing.T, size, underWay int64) *slowPair {
	s := &slowPair{t: t, size: size, view: &dsm.View{Cluster: 1, Epoch: 1, Members: []dsm.Member{{ID: 1}, {ID: 2}}}}
	for sl := range s.view.Slots {
		s.view.Slots[sl] = dsm.SlotHome{Primary: 1, Epoch: 1}
	}
	for i := range s.nodes {
		s.nodes[i] = New(Config{Self: dsm.NodeID(i + 1), View: s, Sender: slowEnd{s, 1 - i}, Log: slog.New(slog.DiscardHandler), Linger: time.Hour, UnderWay: underWay})
		t.Cleanup(s.nodes[i].Close)
	}
	return s
}

// deliver delivers the oldest message to each node, until there is none; or it has the session break.
func (s *slowPair) deliver() {
	for {
		synctest.Wait()
		s.mu.Lock()
		if s.bytes[0] > slowQueue || s.bytes[1] > slowQueue {
			s.breaks++
			s.queue, s.bytes = [2][]frame{}, [2]int{}
			s.mu.Unlock()
			if s.breaks > 3 {
				return
			}
			s.reset()
			continue
		}
		var next [2]*frame
		for to := range next {
			if q := s.queue[to]; len(q) > 0 {
				next[to], s.queue[to] = &q[0], q[1:]
				s.bytes[to] -= len(q[0].payload)
			}
		}
		s.mu.Unlock()
		if next[0] == nil && next[1] == nil {
			return
		}
		if s.resetAt--; s.resetAt == 0 {
			s.mu.Lock()
			s.queue, s.bytes = [2][]frame{}, [2]int{}
			s.mu.Unlock()
			s.reset()
			continue
		}
		for to, p := range next {
			if p != nil {
				if err := s.nodes[to].Handle(dsm.NodeID(2-to), p.msg, p.payload); err != nil {
					s.t.Fatal(err)
				}
			}
		}
	}
}

func (s *slowPair) reset() {
	s.nodes[0].SessionReset(2)
	s.nodes[1].SessionReset(1)
}

// open opens an area on a node for writing.
func (s *slowPair) open(n *Node, id dsm.AreaID) (a *Area) {
	go func() {
		var err error
		if a, err = n.Open(context.Background(), id, true); err != nil {
			s.t.Error(err)
		}
	}()
	s.deliver()
	return a
}

// TestManyBusyAreasAndASlowPeer: whatever the areas have to send to a node, no more is under way than its session bears, and all of it
// arrives.
func TestManyBusyAreasAndASlowPeer(t *testing.T) {
	for from, name := range []string{"push", "publish"} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { manyBusyAreas(t, from, 0) }) })
		t.Run(name+", little memory", func(t *testing.T) { synctest.Test(t, func(t *testing.T) { manyBusyAreas(t, from, 5<<20) }) })
	}
}

func manyBusyAreas(t *testing.T, from int, underWay int64) {
	const areas, extents = 20, 6
	s := newSlowPair(t, extents*dsm.ExtentSize, underWay)
	var at [2][areas]*Area
	for i := range areas {
		for n := range s.nodes {
			at[n][i] = s.open(s.nodes[n], dsm.AreaID(i+1))
		}
	}
	if underWay == 0 {
		s.resetAt = 20 // what was under way is sent again, so there may be twice as much
	}
	published := make(chan error, areas)
	for i, a := range at[from] {
		ones := bytes.Repeat([]byte{byte(i + 1)}, dsm.ExtentSize)
		for e := range int64(extents) {
			if err := a.WriteAt(context.Background(), ones, e*dsm.ExtentSize); err != nil {
				t.Fatal(err)
			}
		}
		go func() { published <- a.Publish(context.Background()) }()
	}
	s.deliver()
	t.Logf("at most %d MiB under way to the home, %d MiB from it; %d breaks", s.most[0]>>20, s.most[1]>>20, s.breaks)
	if s.breaks > 0 {
		t.Errorf("the session broke %d times", s.breaks)
		return
	}
	if most := int64(s.most[1-from]); underWay > 0 && most > underWay || most < underWay/2 {
		t.Errorf("%d bytes were under way, want at most %d, and no less than half", most, underWay)
	}
	if len(published) != areas {
		t.Errorf("%d publishes of %d are complete", len(published), areas)
	}
	for i, a := range at[1-from] {
		for p := range dsm.PageIndex(extents * dsm.ExtentPages) {
			if b := a.mu.mem.Working(p)[7]; b != byte(i+1) {
				t.Fatalf("area %d page %d has %d", i, p, b)
			}
		}
	}
}

// BenchmarkPushOfManyExtents pushes one page of each of many extents to a node that lacks them, and takes the acks.
func BenchmarkPushOfManyExtents(b *testing.B) {
	for _, extents := range []int{1000, 4000, 16_000} {
		b.Run(fmt.Sprint(extents), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				a := newArea(New(Config{Self: 1, View: &slowPair{view: oneHome(), size: int64(extents) * dsm.ExtentSize}, Sender: nowhere{}, Log: slog.New(slog.DiscardHandler)}), dsm.Inode{Ino: 1, Kind: dsm.KindFile, Size: int64(extents) * dsm.ExtentSize, Gen: 1, Rev: 1})
				a.step(func() {
					if _, err := a.memoryLocked(); err != nil {
						b.Fatal(err)
					}
					for e := range dsm.ExtentIndex(extents) {
						x := a.homeExtentLocked(e)
						x.version = a.drawLocked()
						for i := range dsm.PageIndex(8) {
							a.mu.home.setVersion(x, int(i), x.version)
						}
					}
				})
				all := make([]wire.ExtentVersion, extents)
				for e := range all {
					all[e].Extent = dsm.ExtentIndex(e)
				}
				b.StartTimer()
				a.step(func() { a.homeSubscribeLocked(2, &wire.Subscribe{Stamp: a.stampLocked(), Extents: all}) })
				for id := range uint64(extents) {
					a.step(func() {
						a.homePushAckLocked(2, &wire.PushAck{Stamp: a.stampLocked(), Extent: dsm.ExtentIndex(id), ID: id + 1})
					})
				}
				b.StopTimer()
				a.step(func() {
					if a.mu.home.subs[2].inFlight > 0 || a.mu.home.lastPush != uint64(extents) {
						b.Fatal("not all is pushed")
					}
					a.removeLocked()
				})
				b.StartTimer()
			}
		})
	}
}

func oneHome() *dsm.View {
	v := &dsm.View{Cluster: 1, Epoch: 1, Members: []dsm.Member{{ID: 1}, {ID: 2}}}
	for sl := range v.Slots {
		v.Slots[sl] = dsm.SlotHome{Primary: 1, Epoch: 1}
	}
	return v
}

// nowhere is a Sender that sends nothing.
type nowhere struct{}

func (nowhere) Send(dsm.NodeID, any, [][]byte, bool)                         {}
func (nowhere) SendShared(_ dsm.NodeID, _ any, payload *wire.Shared, _ bool) { payload.Release() }
func (nowhere) Flush(dsm.NodeID)                                             {}
