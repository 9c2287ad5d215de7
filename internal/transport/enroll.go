package transport

import (
	"context"
	"net"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/trust"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// maxEnroll bounds what a node without a certificate may send.
const maxEnroll = 4 << 10

// Enroll asks the node at the address for a certificate, by a connection to a cluster that has the
// fingerprint of the token. Without a token the other node must be of the same user on this machine. If the answer is lost the
// error is errs.ErrUnanswered; to ask again does no harm.
func (t *Transport) Enroll(ctx context.Context, addr string, token *trust.Token) error {
	if t.guard == nil {
		return errs.E(errs.Invalid, "enroll", "this node does not encrypt")
	}
	req := &wire.Enroll{Key: t.guard.public()}
	var pin *trust.Fingerprint
	if token != nil {
		req.Secret, pin = token.Secret, &token.CA
	}
	c, node, err := t.dialPinned(ctx, laneEnroll, 0, addr, pin)
	if err != nil {
		return err
	}
	defer t.drop(c)
	defer context.AfterFunc(ctx, func() { under(c).Close() })()
	if err := newFrameWriter(c, t.cfg.WriteTimeout).write(ctx, req, 1, false); err != nil {
		return unanswered("enroll", node, err)
	}
	f, err := wire.NewReader(c).Read()
	if err != nil {
		return unanswered("enroll", node, err)
	}
	defer f.Release()
	switch m := f.Msg.(type) {
	case *wire.Failure:
		return m.Err()
	case *wire.Enrolled:
		if len(m.CA) == 0 {
			return errs.E(errs.Invalid, "enroll", "the cluster was started with --insecure: it does not encrypt, and joins with --insecure only")
		}
		if pin != nil && trust.FingerprintOf(m.CA) != *pin {
			return errs.E(errs.Access, "enroll", "the certificate is of another cluster")
		}
		return t.guard.enrolled(m)
	}
	return errs.E(errs.Corrupt, "enroll", "%T answers Enroll", f.Msg)
}

// enroll answers the one request of the enroll lane. The connection's deadline is that of the hello.
// The error says why there was no certificate.
func (t *Transport) enroll(from dsm.NodeID, c net.Conn) error {
	f, err := wire.NewShortReader(c, maxEnroll).Read()
	if err != nil {
		return err
	}
	defer f.Release()
	req, ok := f.Msg.(*wire.Enroll)
	if !ok || f.Reply || t.cfg.OnEnroll == nil {
		return errs.E(errs.Corrupt, "enroll", "%T is not expected", f.Msg)
	}
	ctx, cancel := context.WithTimeout(t.ctx, t.cfg.HelloTimeout)
	defer cancel()
	_, encrypted := c.(*sealed)
	// A connection that is not encrypted has come so far only from the same user, or everybody is believed.
	reply, why := t.cfg.OnEnroll(ctx, from, req, !encrypted)
	var m any = reply
	if why != nil {
		m = wire.FailureOf(why, t.cfg.Self)
	}
	if err := newFrameWriter(c, t.cfg.HelloTimeout).write(ctx, m, f.Req, true); err != nil && why == nil {
		return err
	}
	return why
}
