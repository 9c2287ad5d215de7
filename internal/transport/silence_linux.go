package transport

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// Silences returns for how long each node that SetPeers has named may have been out of reach on the data lane. While there is a session,
// that is the time since its kernel last acknowledged something. An idle session asks for that every keepAlive, so a link that works is
// silent for a little longer than keepAlive at most, also where the other process is stopped or busy: this is about the link, in both
// directions. Without a session it is the time since there was one, or since the node was named.
func (t *Transport) Silences() map[dsm.NodeID]time.Duration {
	t.mu.Lock()
	ways := make([]*outbound, 0, len(t.mu.out))
	for _, o := range t.mu.out {
		ways = append(ways, o)
	}
	t.mu.Unlock()
	silent := make(map[dsm.NodeID]time.Duration, len(ways))
	for _, o := range ways {
		if o.named() {
			silent[o.id] = o.silence()
		}
	}
	return silent
}

// keepAlive is how often an idle session asks the other kernel for a sign. It wakes no process.
const keepAlive = time.Second

// silence is Silences of one node.
func (o *outbound) silence() time.Duration {
	o.mu.Lock()
	raw, session := o.mu.raw, o.mu.session
	o.mu.Unlock()
	quiet, ok := sinceAck(raw)
	o.mu.Lock()
	defer o.mu.Unlock()
	if at := time.Now().Add(-quiet); ok && o.mu.session == session && at.After(o.mu.reached) {
		o.mu.reached = at
	}
	return time.Since(o.mu.reached)
}

// sinceAck returns for how long the other kernel has acknowledged nothing. ok is false if that is not known.
func sinceAck(raw syscall.RawConn) (quiet time.Duration, ok bool) {
	if raw == nil {
		return 0, false
	}
	err := raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil && info.State == unix.BPF_TCP_ESTABLISHED {
			quiet, ok = time.Duration(info.Last_ack_recv)*time.Millisecond, true
		}
	})
	return quiet, ok && err == nil
}

// keepAsking has the kernel ask for a sign every keepAlive while the connection is idle. How long it may get none stays as tune has set it.
func keepAsking(raw syscall.RawConn) {
	const seconds = int(keepAlive / time.Second)
	_ = raw.Control(func(fd uintptr) { // if it fails the connection has
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, seconds)
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, seconds)
	})
}
