package coherence

import (
	"context"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// View is what the engine knows about the cluster: which node is the home of which slot, and what
// the areas are. The catalog implements it on its own replica, so Current and Area only read
// memory; the others may wait for the network.
type View interface {
	// Current returns the newest view this node has applied.
	Current() *dsm.View
	// Area returns the inode of an area; ok is false if it does not exist.
	Area(id dsm.AreaID) (dsm.Inode, bool)
	// AreaSince is Area, and returns also the smallest size that the area has had after catalog entry rev, and the entry that shrunk it to
	// that; gen is 0 if none did.
	AreaSince(id dsm.AreaID, rev dsm.Generation) (now dsm.Inode, least int64, gen dsm.Generation, ok bool)
	// WaitApplied returns when this node has applied every catalog entry up to
	// and including index rev and at least the view of epoch e.
	WaitApplied(ctx context.Context, rev dsm.Generation, e dsm.Epoch) error
	// SlotsReady tells the cluster that this node, the primary of the slots, has received all their
	// state from the previous primary.
	SlotsReady(ctx context.Context, slots []dsm.Slot, e dsm.Epoch) error
	// HandoverFailed tells the cluster that the nodes which were to take slots from this one have died. It has those in back as they
	// were, and nobody has served them since. Those in lost may have been served. e is the epoch of the view that says so.
	HandoverFailed(ctx context.Context, back, lost []dsm.Slot, e dsm.Epoch) error
	// BackupInSync tells the cluster that a backup of slots of which this node is the primary, in the view of epoch e, has all that anybody has
	// seen of them: it may take over from now on.
	BackupInSync(ctx context.Context, backup dsm.NodeID, slots []dsm.Slot, e dsm.Epoch) error
	// BackupLags tells the cluster that such a backup does not follow: it must not take over. This node goes on to withhold what the backup lacks
	// until it has a view that says so.
	BackupLags(ctx context.Context, backup dsm.NodeID, slots []dsm.Slot, e dsm.Epoch) error
	// MayServe reports whether the lease of this node lasts. If not, it may have been evicted, and a backup may have taken over.
	MayServe() bool
	// Promised returns how much of the memory of this node the catalog has promised to files, whether they are in memory here or not.
	Promised() int64
	// MoveArea asks the cluster to move an area, whose home is this node in the view of epoch e, to another one. patience is what a move takes next
	// time: see dsm.OwnSlot.
	MoveArea(ctx context.Context, id dsm.AreaID, to dsm.NodeID, patience uint8, e dsm.Epoch) error
	// OwnArea makes a node the owner of a versioned area: this node, of one that has no owner; or another one, of an area that this node owns.
	OwnArea(ctx context.Context, id dsm.AreaID, to dsm.NodeID) error
	// SetLayout records the layout that an area's own header gives.
	SetLayout(ctx context.Context, id dsm.AreaID, l dsm.Layout) error
}

// Sender queues messages to other nodes. Send never blocks and calls nothing outside. Messages to
// one node arrive in order, each once, or the session breaks and both ends get Node.SessionReset.
type Sender interface {
	// Send sends a message with a payload whose bytes must never change afterwards. more says that
	// the message may wait: either the caller sends the node another one at once, or the message
	// was made in Node.Handle for the node whose message that call handles, and is sent at the end
	// of Handle.
	Send(to dsm.NodeID, m any, payload [][]byte, more bool)
	// SendShared takes over the caller's reference to the payload, and releases it when the bytes
	// are not needed any more.
	SendShared(to dsm.NodeID, m any, payload *wire.Shared, more bool)
	// Flush sends messages that wait for more.
	Flush(to dsm.NodeID)
}
