package fs

import (
	"encoding/binary"
	"syscall"

	"github.com/dsmfs/dsmfs/internal/errs"
)

// attachHeader is the header of every packet between a program and the attach
// socket: docs/attach.md has the protocol.
//
//	program                                daemon
//	ATTACH /w              ->              may it? all bytes here?
//	                       <-              the memfd
//	mmap; userfaultfd
//	TRACK address, uffd    ->              registers and arms it
//	                       <-              stores count from here on
//	stores ...
//	PUBLISH                ->              scan, diff, homes
//	                       <-              merged
type attachHeader struct {
	op         attachOp
	tag        uint64
	attachment uint64
	arg        [4]uint64
	errno      syscall.Errno // in replies
}

const (
	attachMagic   = 0x414d5344 // DSMA
	attachVersion = 1
	attachHead    = 64
	// maxAttachPayload bounds paths, settings and error texts.
	maxAttachPayload = 4096
)

type attachOp uint16

const (
	opAttach attachOp = iota + 1
	opTrack
	opUntrack
	opPublish
	opAcquire
	opSync
	opWait
	opStats
	opDetach
	opCreate
	opResize
)

// encode returns the packet with the payload.
func (h *attachHeader) encode(payload []byte) []byte {
	b := make([]byte, attachHead, attachHead+len(payload))
	le := binary.LittleEndian
	le.PutUint32(b, attachMagic)
	le.PutUint16(b[4:], attachVersion)
	le.PutUint16(b[6:], uint16(h.op))
	le.PutUint64(b[8:], h.tag)
	le.PutUint64(b[16:], h.attachment)
	for i, v := range h.arg {
		le.PutUint64(b[24+8*i:], v)
	}
	le.PutUint32(b[56:], uint32(len(payload)))
	le.PutUint32(b[60:], uint32(h.errno))
	return append(b, payload...)
}

// decodeAttach takes a packet apart.
func decodeAttach(b []byte) (h attachHeader, payload []byte, err error) {
	le := binary.LittleEndian
	switch {
	case len(b) < attachHead:
		return h, nil, errs.E(errs.Corrupt, "attach", "a packet of %d bytes, less than a header of %d", len(b), attachHead)
	case le.Uint32(b) != attachMagic:
		return h, nil, errs.E(errs.Corrupt, "attach", "magic %#x, want %#x", le.Uint32(b), attachMagic)
	case le.Uint16(b[4:]) != attachVersion:
		return h, nil, errs.E(errs.Corrupt, "attach", "version %d of the protocol, this daemon has %d", le.Uint16(b[4:]), attachVersion)
	case int64(le.Uint32(b[56:])) != int64(len(b)-attachHead):
		return h, nil, errs.E(errs.Corrupt, "attach", "%d bytes after the header, which says %d", len(b)-attachHead, le.Uint32(b[56:]))
	}
	h = attachHeader{op: attachOp(le.Uint16(b[6:])), tag: le.Uint64(b[8:]), attachment: le.Uint64(b[16:])}
	for i := range h.arg {
		h.arg[i] = le.Uint64(b[24+8*i:])
	}
	return h, b[attachHead:], nil
}
