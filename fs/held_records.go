package fs

import (
	"encoding/binary"

	"github.com/dsmfs/dsmfs/fs/attach"
	"github.com/dsmfs/dsmfs/internal/dsm"
)

// record is a record as it is written.
func record(kind uint64, fields ...uint64) []byte {
	b := binary.LittleEndian.AppendUint64(nil, kind)
	for _, f := range fields {
		b = binary.LittleEndian.AppendUint64(b, f)
	}
	return b
}

// What a handle is in its record.
const (
	heldFile = iota
	heldDir
	heldLate
)

func (h heldHandle) record() []byte {
	kind := uint64(heldFile)
	switch {
	case h.dir:
		kind = heldDir
	case h.late:
		kind = heldLate
	}
	return record(heldOpened, h.fh, uint64(h.ino), uint64(h.flags), uint64(h.tid), kind, h.unique)
}

func (l heldLocks) record(of heldLock) []byte {
	flock := uint64(0)
	if of.owner.Flock {
		flock = 1
	}
	b := record(heldLocked, l.fh, uint64(of.ino), of.owner.ID, flock)
	for _, k := range l.set {
		for _, f := range []uint64{uint64(k.Type), k.First, k.Last, uint64(k.PID)} {
			b = binary.LittleEndian.AppendUint64(b, f)
		}
	}
	return b
}

// indexRecord says where the index of a write-ahead log is; without a name, that no program has it.
func indexRecord(ino dsm.Ino, at place) []byte {
	return append(record(heldIndex, uint64(ino), uint64(at.dir)), at.name...)
}

// attachedRecord is the record of an attachment.
func attachedRecord(h attach.Held) []byte {
	bit := func(b bool) uint64 {
		if b {
			return 1
		}
		return 0
	}
	return record(heldAttached, h.Number, uint64(h.File), uint64(h.PID), h.Start, uint64(h.UID), bit(h.Write), bit(h.Unnamed), h.Memory)
}
