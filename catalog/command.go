package catalog

import (
	"reflect"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/locks"
)

// command is an entry of the log: an operation in its envelope. Node, Inc and Req identify it for ever:
// however often it is proposed, it is applied once.
type command struct {
	Node dsm.NodeID
	Inc  uint64 // of the member
	Req  uint64 // numbers the commands of the node, from 1
	Low  uint64 // the node waits for no command with a smaller number
	Now  int64  // the node's clock, Unix nanoseconds
	Kind opKind
	Body []byte // the operation
	// Yield is what the leader adds: see yield.go.
	Yield locks.Yield
}

// opKind says which operation a command contains. Values are in logs and snapshots that nodes
// exchange: append only.
type opKind uint8

const (
	kindNoop opKind = iota + 1
	kindBootstrap
	kindAddMember
	kindLeaving
	kindRemoveMember
	kindSlotsReady
	kindCreate
	kindUnlink
	kindRmdir
	kindRename
	kindSetAttr
	kindSetSpec
	kindSetLayout
	kindSetXattr
	kindRemoveXattr
	kindClaim
	kindUnclaim
	kindAskLock
	kindSurrenderLocks
	kindCancelLock
	_ // was: drop the locks of a silent node
	kindLink
	kindGone
	kindSettle
	kindCount
	kindHandoverFailed
	kindAbandon
	kindMove
	kindOwn
	kindTrust
	kindBackups
	kindBack
	kindApart
	kindUnheld
)

// op is an operation on the state. apply returns the inode that is the result for the caller, if
// there is one. After an error the state is unchanged.
type op interface {
	apply(s *state, st step) (dsm.Inode, error)
}

type (
	// noopOp changes nothing. A new leader proposes one: when it is applied, everything committed
	// under earlier leaders is applied too.
	noopOp struct{}

	bootstrapOp struct {
		Cluster  dsm.ClusterID
		Member   dsm.Member
		RootPerm uint32
		UID, GID uint32
		Lease    time.Duration
		Trust    *dsm.Trust // nil: the cluster does not encrypt
	}
	addMemberOp    struct{ Member dsm.Member }
	leavingOp      struct{ Node dsm.NodeID }
	removeMemberOp struct{ Node dsm.NodeID }
	goneOp         struct {
		Node dsm.NodeID
		Inc  uint64 // of this incarnation
		Term uint64 // if the leader of this term has decided it: see evict.go; 0: it is certain that the process has ended
	}
	settleOp     struct{}
	slotsReadyOp struct {
		Slots []dsm.Slot
		Epoch dsm.Epoch
	}
	createOp struct {
		Dir      dsm.Ino
		Name     string // "" with Temp
		Temp     bool   // a claimed file without a name
		Kind     dsm.FileKind
		Perm     uint32
		UID, GID uint32
		Target   string
		Claim    bool
		Size     int64         // for a file
		Layout   dsm.Layout    // for a file whose type is to be found in its header, if it is known already
		Settings []dsm.Setting // for a file, in addition to the directory's
	}
	linkOp struct {
		Ino  dsm.Ino
		Dir  dsm.Ino
		Name string
	}
	unlinkOp struct {
		Dir  dsm.Ino
		Name string
	}
	rmdirOp struct {
		Dir  dsm.Ino
		Name string
		Is   dsm.Ino // the directory that is meant; 0: any
	}
	renameOp struct {
		Dir     dsm.Ino
		Name    string
		NewDir  dsm.Ino
		NewName string
		How     dsm.RenameHow
		Over    dsm.Ino // the directory that is to be replaced; 0: whatever is there, or nothing
	}
	setAttrOp struct {
		Ino dsm.Ino
		dsm.SetAttr
	}
	setSpecOp struct {
		Ino        dsm.Ino
		Key, Value string
	}
	setLayoutOp struct {
		Area   dsm.AreaID
		Layout dsm.Layout
	}
	setXattrOp struct {
		Ino   dsm.Ino
		Name  string
		Value []byte
		How   dsm.XattrHow
	}
	removeXattrOp struct {
		Ino  dsm.Ino
		Name string
	}
	claimOp struct {
		Ino   dsm.Ino
		Write bool // to open it for writing
	}
	unclaimOp struct{ Inos []dsm.Ino }
	countOp   struct{ Counts []dsm.PageCount }

	handoverFailedOp struct {
		Back, Lost []dsm.Slot
		Epoch      dsm.Epoch
	}
	backupsOp struct {
		Node   dsm.NodeID
		Slots  []dsm.Slot
		InSync bool // or it lags
		Epoch  dsm.Epoch
	}

	apartOp struct{ Links []dsm.Link } // see apart.go

	// backOp is made by a node whose daemon was killed, and another has followed: see back.go.
	backOp struct {
		Node dsm.NodeID
		Inc  uint64
		Last uint64   // the last number of a command of daemons before
		Keep []uint64 // of those, what may come again: all others never happen any more
		// Noted is the incarnation that has numbered those to keep.
		Noted uint64
		// Served are the slots that the daemon before had all of, as their home.
		Served dsm.Ledger
	}

	// unheldOp says that no daemon follows that of a node: see held.go.
	unheldOp struct {
		Node dsm.NodeID
		Inc  uint64
	}

	moveOp struct {
		Ino      dsm.Ino
		To       dsm.NodeID
		Patience uint8
		Epoch    dsm.Epoch
	}
	ownOp struct {
		Ino dsm.Ino
		To  dsm.NodeID
	}
)

func (noopOp) apply(*state, step) (dsm.Inode, error) { return dsm.Inode{}, nil }

// ops lists the operations with their kinds and the names used in errors.
var ops = map[opKind]struct {
	name string
	op   op
	seen bool // other nodes may see its effect in a name or an attribute
}{
	kindNoop:         {"noop", noopOp{}, false},
	kindBootstrap:    {"bootstrap", bootstrapOp{}, false},
	kindAddMember:    {"join", addMemberOp{}, false},
	kindLeaving:      {"leave", leavingOp{}, false},
	kindRemoveMember: {"leave", removeMemberOp{}, false},
	kindSlotsReady:   {"slots ready", slotsReadyOp{}, false},
	kindCreate:       {"create", createOp{}, true},
	kindUnlink:       {"unlink", unlinkOp{}, true},
	kindRmdir:        {"rmdir", rmdirOp{}, true},
	kindRename:       {"rename", renameOp{}, true},
	kindSetAttr:      {"setattr", setAttrOp{}, true},
	kindSetSpec:      {"setattr", setSpecOp{}, true},
	kindSetLayout:    {"set layout", setLayoutOp{}, true},
	kindSetXattr:     {"setxattr", setXattrOp{}, true},
	kindRemoveXattr:  {"removexattr", removeXattrOp{}, true},
	kindClaim:        {"open", claimOp{}, false},
	kindUnclaim:      {"release", unclaimOp{}, false},

	kindAskLock:        {"lock", askLockOp{}, false},
	kindSurrenderLocks: {"lock", surrenderLocksOp{}, false},
	kindCancelLock:     {"lock", cancelLockOp{}, false},
	kindLink:           {"link", linkOp{}, true},
	kindGone:           {"gone", goneOp{}, false},
	kindSettle:         {"gone", settleOp{}, false},
	kindCount:          {"count", countOp{}, true},
	kindHandoverFailed: {"hand over", handoverFailedOp{}, false},
	kindAbandon:        {"abandon", abandonOp{}, false},
	kindMove:           {"move", moveOp{}, false},
	kindOwn:            {"own", ownOp{}, false},
	kindTrust:          {"change the keys", trustOp{}, false},
	kindBackups:        {"report on a backup", backupsOp{}, false},
	kindBack:           {"resume", backOp{}, false},
	kindApart:          {"links", apartOp{}, false},
	kindUnheld:         {"end with the daemon", unheldOp{}, false},
}

var opKinds = func() map[reflect.Type]opKind {
	kinds := make(map[reflect.Type]opKind)
	for k, o := range ops {
		kinds[reflect.TypeOf(o.op)] = k
	}
	return kinds
}()

// encode returns the encoded command with operation o.
func (c command) encode(o op) ([]byte, error) {
	var err error
	c.Kind = opKinds[reflect.TypeOf(o)]
	if c.Body, err = wire.Marshal(o); err != nil {
		return nil, err
	}
	return wire.Marshal(c)
}

// decodeEnvelope decodes a command without its operation.
func decodeEnvelope(b []byte) (command, error) {
	var c command
	if err := wire.Unmarshal(b, &c); err != nil {
		return c, err
	}
	if _, ok := ops[c.Kind]; !ok {
		return c, errs.E(errs.Corrupt, "decode command", "unknown kind %d", c.Kind)
	}
	return c, nil
}

// decodeCommand is the inverse of encode.
func decodeCommand(b []byte) (command, op, error) {
	c, err := decodeEnvelope(b)
	if err != nil {
		return c, nil, err
	}
	o, err := c.operation()
	return c, o, err
}

// operation decodes the operation.
func (c command) operation() (op, error) {
	v := reflect.New(reflect.TypeOf(ops[c.Kind].op))
	if err := wire.Unmarshal(c.Body, v.Interface()); err != nil {
		return nil, err
	}
	return v.Elem().Interface().(op), nil
}

// step returns the circumstances in which the command at index is applied.
func (c command) step(index uint64) step {
	return step{index: index, node: c.Node, now: time.Unix(0, c.Now).UTC(), yield: c.Yield}
}
