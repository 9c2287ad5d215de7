package transport

import (
	"sync/atomic"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// Stats are counts since Listen.
type Stats struct {
	Peers    map[dsm.NodeID]PeerStats
	Rejected uint64 // connections refused at the hello
	Bad      uint64 // frames that violated the protocol
	Foreign  uint64 // datagrams of other clusters
}

// PeerStats are the counts of the data lane with one node.
type PeerStats struct {
	FramesIn, BytesIn   uint64
	FramesOut, BytesOut uint64 // handed to the kernel
	Queued              int    // bytes that wait
	Resets              uint64
	Connected           bool // there is a session to the peer
}

// counts are the transport's own.
type counts struct {
	rejected, bad, foreign atomic.Uint64
}

// flow counts one direction of the data lane with one peer.
type flow struct {
	frames, bytes, resets atomic.Uint64
}

// Stats returns the counts.
func (t *Transport) Stats() Stats {
	s := Stats{
		Peers:    make(map[dsm.NodeID]PeerStats),
		Rejected: t.counts.rejected.Load(), Bad: t.counts.bad.Load(), Foreign: t.counts.foreign.Load(),
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, in := range t.mu.in {
		p := s.Peers[id]
		p.FramesIn, p.BytesIn = in.flow.frames.Load(), in.flow.bytes.Load()
		p.Resets += in.flow.resets.Load()
		s.Peers[id] = p
	}
	for id, o := range t.mu.out {
		p := s.Peers[id]
		p.FramesOut, p.BytesOut = o.flow.frames.Load(), o.flow.bytes.Load()
		p.Resets += o.flow.resets.Load()
		p.Queued, p.Connected = o.load()
		s.Peers[id] = p
	}
	return s
}
