package transport

import (
	"bytes"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// TestSharedIsWrittenBeforeItIsUsedAgain sends payloads that the sender lets go of at
// once: whatever takes the next buffer from the pool must not change what arrives.
func TestSharedIsWrittenBeforeItIsUsedAgain(t *testing.T) {
	a, b := newNode(t, 1, nil), newNode(t, 2, nil)
	know(a, b)
	const frames = 300
	for i := range frames {
		s := wire.Share([]int{1, 3000, copyPayload + 1, 70_000, 1 << 20}[i%5])
		for j := range s.Bytes {
			s.Bytes[j] = byte(i)
		}
		a.SendShared(2, &wire.PushAck{ID: uint64(i)}, s, i%20%3 == 0)
		if i%20 == 19 { // not more than there may be in the queue
			for k := i - 19; k <= i; k++ {
				f := b.frame()
				if f.id != uint64(k) || !bytes.Equal(f.payload, bytes.Repeat([]byte{byte(k)}, len(f.payload))) {
					t.Fatalf("frame %d: %d bytes that are not those sent as %d", f.id, len(f.payload), k)
				}
			}
		}
	}
}

// TestSharedIsReleased ends a payload's way in each place where it can end.
func TestSharedIsReleased(t *testing.T) {
	for name, c := range map[string]struct {
		size int
		send func(a, b *node, to dsm.NodeID, s *wire.Shared)
	}{
		"copied":  {copyPayload, func(a, b *node, to dsm.NodeID, s *wire.Shared) { know(a, b); a.sendShared(to, s); b.frame() }},
		"written": {1 << 20, func(a, b *node, to dsm.NodeID, s *wire.Shared) { know(a, b); a.sendShared(to, s); b.frame() }},
		"queued":  {1 << 20, func(a, _ *node, to dsm.NodeID, s *wire.Shared) { a.sendShared(to, s) }},
		"broken": {1 << 20, func(a, _ *node, to dsm.NodeID, s *wire.Shared) {
			a.Send(to, &wire.PushAck{}, [][]byte{make([]byte, 1<<20)}, false)
			a.sendShared(to, s) // one too many
			a.sendShared(to, s.Retain())
		}},
		"closed": {1 << 20, func(a, _ *node, to dsm.NodeID, s *wire.Shared) { a.Close(); a.sendShared(to, s) }},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newNode(t, 1, func(c *Config) { c.QueueBytes = 3 << 19 }), newNode(t, 2, nil)
			s := wire.Share(c.size)
			c.send(a, b, 2, s.Retain())
			a.Close() // all is written or dropped
			s.Release()
			if s.Bytes != nil {
				t.Error("somebody still has the payload")
			}
		})
	}
}

func (n *node) sendShared(to dsm.NodeID, s *wire.Shared) { n.SendShared(to, &wire.PushAck{}, s, false) }
