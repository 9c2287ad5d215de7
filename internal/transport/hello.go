package transport

import (
	"encoding/binary"
	"io"
	"net"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// The start of every TCP connection:
//
//	dialer                                    listener
//	   | hello -------------------------------->|
//	   |<------------------------------- answer |  ok, or why not
//	   | the lane's own bytes <---------------->|
//
// A hello is 32 bytes and an answer 16 and a text, big endian:
//
//	 0       4     5     6     7     8          16         24         32
//	+-------+-----+-----+-----+-----+----------+----------+----------+
//	| DSMF  | min | max | lane|  0  | cluster  | sender   | target   |
//	+-------+-----+-----+-----+-----+----------+----------+----------+
//	| DSMF  | kind| vers| text len  | sender   | text
//	+-------+-----+-----+-----------+----------+-----
//
// min..max are the versions of wire that the dialer speaks; kind is 0 or the
// errs.Kind of the refusal. Cluster 0 (only on the control lane) is a node that
// wants to join; target 0 (only there, and for gossip) is whoever is at the address. On the enroll lane
// both are 0.
//
// Between machines all of this is within TLS 1.3 (guard.go), and the sender must be the node of the
// certificate. Who has none may only enroll.
const (
	helloMagic = "DSMF"
	helloSize  = 32
	answerSize = 16
	maxReason  = 255
)

// lane is the purpose of a connection.
type lane uint8

const (
	laneData lane = iota + 1
	laneControl
	laneRaft
	laneGossip
	laneEnroll
)

var laneNames = [...]string{"none", "data", "control", "raft", "gossip", "enroll"}

func (l lane) String() string { return laneNames[min(int(l), len(laneNames)-1)] }

// hello is the first message of a connection, sent by the dialer.
type hello struct {
	min, max uint8
	lane     lane
	cluster  dsm.ClusterID
	from, to dsm.NodeID
}

func (h hello) bytes() []byte {
	b := make([]byte, helloSize)
	copy(b, helloMagic)
	b[4], b[5], b[6] = h.min, h.max, byte(h.lane)
	binary.BigEndian.PutUint64(b[8:], uint64(h.cluster))
	binary.BigEndian.PutUint64(b[16:], uint64(h.from))
	binary.BigEndian.PutUint64(b[24:], uint64(h.to))
	return b
}

// readHello reads a hello. If the first four bytes are not the magic it stops reading, so that a
// stranger is not kept waiting.
func readHello(r io.Reader) (hello, error) {
	var b [helloSize]byte
	if _, err := io.ReadFull(r, b[:len(helloMagic)]); err != nil {
		return hello{}, err
	}
	if string(b[:len(helloMagic)]) != helloMagic {
		return hello{}, errs.E(errs.Corrupt, "hello", "it starts with %q", b[:len(helloMagic)])
	}
	if _, err := io.ReadFull(r, b[len(helloMagic):]); err != nil {
		return hello{}, err
	}
	return hello{
		min: b[4], max: b[5], lane: lane(b[6]),
		cluster: dsm.ClusterID(binary.BigEndian.Uint64(b[8:])),
		from:    dsm.NodeID(binary.BigEndian.Uint64(b[16:])),
		to:      dsm.NodeID(binary.BigEndian.Uint64(b[24:])),
	}, nil
}

// judge returns why the node self of the cluster refuses h, or nil.
func (h hello) judge(self dsm.NodeID, cluster dsm.ClusterID) *errs.Error {
	joining := h.lane == laneControl && (h.cluster == 0 || cluster == 0)
	switch {
	case h.min > wire.Version || h.max < wire.Version:
		return errs.E(errs.Unsupported, "hello", "this node speaks protocol version %d, the other %d to %d", wire.Version, h.min, h.max)
	case h.lane < laneData || h.lane > laneEnroll:
		return errs.E(errs.Unsupported, "hello", "unknown lane %d", uint8(h.lane))
	case h.from == 0 || h.from == self && h.lane == laneData:
		return errs.E(errs.Invalid, "hello", "sender %v", h.from)
	case h.to != self && (h.to != 0 || h.lane == laneData || h.lane == laneRaft):
		return errs.E(errs.Unavailable, "hello", "node %v is not here, but node %v", h.to, self)
	case joining:
		return nil
	case h.lane == laneEnroll && cluster != 0:
		return nil
	case cluster == 0:
		return errs.E(errs.Unavailable, "hello", "this node has not joined a cluster yet")
	case h.cluster != cluster:
		return errs.E(errs.Access, "hello", "this is cluster %v, not %v", cluster, h.cluster)
	}
	return nil
}

// answer writes the answer to a hello; why is nil if it is accepted.
func answer(w io.Writer, self dsm.NodeID, why *errs.Error) error {
	b := make([]byte, answerSize, answerSize+maxReason)
	copy(b, helloMagic)
	b[5] = wire.Version
	binary.BigEndian.PutUint64(b[8:], uint64(self))
	if why != nil {
		text := why.Kind.String()
		if why.Err != nil {
			text = why.Err.Error()
		}
		text = text[:min(len(text), maxReason)]
		b[4] = byte(why.Kind)
		binary.BigEndian.PutUint16(b[6:], uint16(len(text)))
		b = append(b, text...)
	}
	_, err := w.Write(b)
	return err
}

// readAnswer returns the node that answered, and the refusal if it is one.
func readAnswer(r io.Reader) (dsm.NodeID, error) {
	var b [answerSize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return 0, err
	}
	n := int(binary.BigEndian.Uint16(b[6:]))
	if string(b[:len(helloMagic)]) != helloMagic || n > maxReason {
		return 0, errs.E(errs.Corrupt, "hello", "no dsmfs node is there: it answers %q", b[:len(helloMagic)])
	}
	from := dsm.NodeID(binary.BigEndian.Uint64(b[8:]))
	if b[4] == 0 {
		return from, nil
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return 0, err
	}
	e := errs.E(errs.Kind(b[4]), "hello", "refused: %s", text)
	e.Node = from
	return from, e
}

// greet sends h on a new connection and reads the answer, within the timeout.
func greet(conn net.Conn, h hello, timeout time.Duration) (dsm.NodeID, error) {
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return 0, err
	}
	if _, err := conn.Write(h.bytes()); err != nil {
		return 0, err
	}
	from, err := readAnswer(conn)
	if err != nil {
		return 0, err
	}
	return from, conn.SetDeadline(time.Time{})
}
