package membership

import (
	"encoding/binary"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// delegate receives the callbacks of memberlist, often with memberlist's lock held: every method
// records something in the table and returns.
//
// When a node is gone, memberlist does not tell whether it left or died. So a node that leaves
// sends each peer a user message of its own: goodbye.
type delegate struct {
	self  dsm.NodeID
	meta  []byte
	table *table
	left  func() // called when the news that this node leaves is about to be sent
}

const goodbye = 'L' // followed by 8 bytes of dsm.NodeID

func goodbyeOf(id dsm.NodeID) []byte {
	return binary.BigEndian.AppendUint64([]byte{goodbye}, uint64(id))
}

// NodeMeta returns the name and address of this node.
func (d *delegate) NodeMeta(int) []byte { return d.meta }

// NotifyMsg receives a user message.
func (d *delegate) NotifyMsg(b []byte) {
	if len(b) == 9 && b[0] == goodbye {
		d.table.leaving(dsm.NodeID(binary.BigEndian.Uint64(b[1:])))
	}
}

// NotifyAlive refuses nodes that do not belong to this cluster.
func (d *delegate) NotifyAlive(n *memberlist.Node) error {
	_, err := decodePeer(n.Name, n.Meta)
	return err
}

// NotifyJoin records a node that is new or has come back.
func (d *delegate) NotifyJoin(n *memberlist.Node) {
	if p, err := decodePeer(n.Name, n.Meta); err == nil { // if it fails, NotifyAlive has refused the node
		d.table.alive(p, udpAddr(n.Address()))
	}
}

// NotifyUpdate records new metadata.
func (d *delegate) NotifyUpdate(n *memberlist.Node) { d.NotifyJoin(n) }

// NotifyLeave records a node that died or left.
func (d *delegate) NotifyLeave(n *memberlist.Node) {
	switch id, err := dsm.ParseNodeID(n.Name); {
	case err != nil:
	case id == d.self:
		d.left()
	default:
		d.table.gone(id)
	}
}

// NotifyPingComplete records that a probe was answered.
func (d *delegate) NotifyPingComplete(n *memberlist.Node, _ time.Duration, _ []byte) {
	if id, err := dsm.ParseNodeID(n.Name); err == nil {
		d.table.answered(id)
	}
}

// memberlist.Delegate and PingDelegate have more methods, which are not used.

func (d *delegate) AckPayload() []byte              { return nil }
func (d *delegate) GetBroadcasts(_, _ int) [][]byte { return nil }
func (d *delegate) LocalState(bool) []byte          { return nil }
func (d *delegate) MergeRemoteState([]byte, bool)   {}

var (
	_ memberlist.Delegate      = (*delegate)(nil)
	_ memberlist.EventDelegate = (*delegate)(nil)
	_ memberlist.AliveDelegate = (*delegate)(nil)
	_ memberlist.PingDelegate  = (*delegate)(nil)
)
