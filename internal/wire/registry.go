package wire

import (
	"fmt"
	"reflect"

	"github.com/dsmfs/dsmfs/internal/errs"
)

// dataMessages are the messages of the data plane with their permanent numbers, from 10 to 99. A
// number is never given to another message. A change to a message's fields needs a new number or a
// new Version, because msgpack refuses a struct with another number of fields.
var dataMessages = map[uint16]any{
	10: Subscribe{},
	11: Subscribed{},
	12: Unsubscribe{},
	13: Fetch{},
	14: Push{},
	15: PushAck{},
	16: Publish{},
	17: PublishAck{},
	18: Acquire{},
	19: Acquired{},
	20: HandoverExtent{},
	21: HandoverDone{},
	22: HandoverAck{},
	23: Inquire{},
	24: Inquired{},
	25: Release{},
	26: Survey{},
	27: Surveyed{},
	28: Part{},
	29: Staged{},
	30: Contributed{},
	31: Counted{},
	32: Missing{},
	33: Finish{},
	34: Take{},
	35: Taken{},
	36: Replicate{},
	37: ReplicatePages{},
	38: ReplicateVersion{},
	39: Replicated{},
	40: Refill{},
	41: Refilled{},
	42: Check{},
	43: Checked{},
}

// laneMessages belong to the request lane itself.
var laneMessages = map[uint16]any{
	1: Failure{},
	2: Cancel{},
}

// replyBit in the type field marks a frame that answers a request.
const replyBit = 1 << 15

// kind is a registered message.
type kind struct {
	id     uint16
	typ    reflect.Type
	hollow int // the largest value that one byte of msgpack can claim; see hollowSize
}

var (
	kindByID   = make(map[uint16]*kind)
	kindByType = make(map[reflect.Type]*kind) // by the struct and by the pointer to it
)

func init() {
	register(laneMessages, 1, 9)
	register(dataMessages, 10, 99)
	register(controlMessages, 100, 199)
	register(groupMessages, 200, replyBit-1)
}

func register(messages map[uint16]any, low, high uint16) {
	for id, m := range messages {
		t := reflect.TypeOf(m)
		if id < low || id > high || t.Kind() != reflect.Struct || kindByID[id] != nil || kindByType[t] != nil {
			panic(fmt.Sprintf("wire: message %d %v is out of place", id, t))
		}
		k := &kind{id: id, typ: t, hollow: hollowSize(t)}
		kindByID[id] = k
		kindByType[t] = k
		kindByType[reflect.PointerTo(t)] = k
	}
}

// kindOf returns the registration of the message m points to or is.
func kindOf(m any) (*kind, error) {
	if k := kindByType[reflect.TypeOf(m)]; k != nil {
		return k, nil
	}
	return nil, errs.E(errs.Invalid, "encode", "%T is not a registered message", m)
}

// Messages calls yield for a new zero value of every registered message, by
// pointer, until yield returns false.
func Messages(yield func(id uint16, m any) bool) {
	for id, k := range kindByID {
		if !yield(id, reflect.New(k.typ).Interface()) {
			return
		}
	}
}
