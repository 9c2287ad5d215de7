package transport

import (
	"context"
	"log/slog"
	"net"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// Config is what a Transport needs. Limits that are zero get their defaults.
type Config struct {
	Self dsm.NodeID
	// Listen is the host:port of the TCP and the UDP socket. Port 0 picks one that is free for
	// both.
	Listen string
	// Advertise is how the others reach this node: a host, or host:port. Empty means the host of
	// Listen, or, if that is not a single address, the first address of this machine that is not
	// loopback.
	Advertise string
	Log       *slog.Logger

	// OnFrame handles the frames of the data lane, in order for each peer. The payload is valid
	// until it returns. An error means that the frame violates the protocol: it is counted and the
	// session closed.
	OnFrame func(from dsm.NodeID, f *wire.Frame) error
	// OnFrameNow is OnFrame for a frame that is handled without waiting for anything and soon, as a loop serves
	// many sessions. If it returns false it has done nothing, and OnFrame is called. It may be nil.
	OnFrameNow func(from dsm.NodeID, f *wire.Frame) (handled bool, err error)
	// OnReset says that messages to or from peer may have been dropped: see the package comment.
	OnReset func(peer dsm.NodeID)
	// OnNow may handle a request of the control lane where it was read; no reply is no answer. It is called
	// in the order of the requests, and must not wait. If it returns false OnCall is called. It may be nil.
	OnNow func(from dsm.NodeID, req any) (reply any, handled bool)
	// OnCall answers a request of the control lane; nil and no error is no answer. Requests of one
	// peer run concurrently. ctx ends when nobody waits for the answer any more.
	OnCall func(ctx context.Context, from dsm.NodeID, req any) (any, error)

	// Secure says that gossip and connections to other machines are encrypted, and that both ends show a
	// certificate: see guard.go. Otherwise everybody who reaches the port is believed.
	Secure bool
	// Held says that another process may take over the port while this one cannot end; Heir, that this is it.
	Held, Heir bool
	// Seed, if not nil, is that of the node's key.
	Seed []byte
	// OnEnroll gives a node a certificate. vouched says that the node is of the same user on the same
	// machine, and needs no secret.
	OnEnroll func(ctx context.Context, from dsm.NodeID, req *wire.Enroll, vouched bool) (*wire.Enrolled, error)

	// apart, in tests, takes all nodes for nodes of other machines.
	apart bool

	// Dial makes TCP connections; tests inject faults here.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// HelloTimeout bounds connecting and the hello. Default: 5 s.
	HelloTimeout time.Duration
	// WriteTimeout is how long a peer may accept no bytes before the session breaks. Default: 10 s.
	WriteTimeout time.Duration
	// QueueBytes bounds what waits for one peer. Default: 64 MiB.
	QueueBytes int
	// RedialMin and RedialMax bound the pause between attempts to connect. Defaults: 50 ms, 1 s.
	RedialMin, RedialMax time.Duration
	// StrangerWait is how long frames to a node are kept that SetPeers has not named yet. Default:
	// 10 s.
	StrangerWait time.Duration
}

func (c Config) withDefaults() Config {
	set := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	set(&c.HelloTimeout, 5*time.Second)
	set(&c.WriteTimeout, 10*time.Second)
	set(&c.RedialMin, 50*time.Millisecond)
	set(&c.RedialMax, time.Second)
	set(&c.StrangerWait, 10*time.Second)
	if c.QueueBytes == 0 {
		c.QueueBytes = 64 << 20
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Dial == nil {
		c.Dial = new(net.Dialer).DialContext
	}
	if c.OnFrame == nil {
		c.OnFrame = func(dsm.NodeID, *wire.Frame) error { return nil }
	}
	if c.OnReset == nil {
		c.OnReset = func(dsm.NodeID) {}
	}
	return c
}
