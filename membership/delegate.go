package membership

import (
	"encoding/binary"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// delegate is what memberlist calls, often with its lock held: every method
// notes something in the table and returns.
//
// memberlist says of a node that is gone only that it is gone. So a node that
// leaves says so to every peer by itself: goodbye, in a user message.
type delegate struct {
	meta  []byte
	table *table
}

const goodbye = 'L' // and 8 bytes of dsm.NodeID

func goodbyeOf(id dsm.NodeID) []byte {
	return binary.BigEndian.AppendUint64([]byte{goodbye}, uint64(id))
}

// NodeMeta returns the name and address of this node.
func (d *delegate) NodeMeta(int) []byte { return d.meta }

// NotifyMsg takes a user message.
func (d *delegate) NotifyMsg(b []byte) {
	if len(b) == 9 && b[0] == goodbye {
		d.table.leaving(dsm.NodeID(binary.BigEndian.Uint64(b[1:])))
	}
}

// NotifyAlive refuses nodes that are none of ours.
func (d *delegate) NotifyAlive(n *memberlist.Node) error {
	_, err := decodePeer(n.Name, n.Meta)
	return err
}

// NotifyJoin notes a node that is new or back.
func (d *delegate) NotifyJoin(n *memberlist.Node) {
	if p, err := decodePeer(n.Name, n.Meta); err == nil { // else NotifyAlive has refused it
		d.table.alive(p)
	}
}

// NotifyUpdate notes new metadata.
func (d *delegate) NotifyUpdate(n *memberlist.Node) { d.NotifyJoin(n) }

// NotifyLeave notes a node that is dead or left.
func (d *delegate) NotifyLeave(n *memberlist.Node) {
	if id, err := dsm.ParseNodeID(n.Name); err == nil {
		d.table.gone(id)
	}
}

// NotifyPingComplete notes that a probe was answered.
func (d *delegate) NotifyPingComplete(n *memberlist.Node, _ time.Duration, _ []byte) {
	if id, err := dsm.ParseNodeID(n.Name); err == nil {
		d.table.answered(id)
	}
}

// The rest of memberlist.Delegate and PingDelegate is not used.

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
