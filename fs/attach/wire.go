package attach

import (
	"encoding/binary"
	"syscall"

	"github.com/dsmfs/dsmfs/internal/errs"
)

// header is the header of every packet between a program and the attach socket. docs/attach.md
// describes the protocol.
//
//	program                                daemon
//	ATTACH /w              ->              is it allowed? are all bytes on this node?
//	                       <-              the memfd
//	mmap; userfaultfd
//	TRACK address, uffd    ->              registers and arms it
//	                       <-              from now on stores are found
//	stores ...
//	PUBLISH                ->              scan, diff, send to the homes
//	                       <-              merged
type header struct {
	op         op
	tag        uint64
	attachment uint64
	arg        [4]uint64
	errno      syscall.Errno // in replies
}

const (
	wireMagic   = 0x414d5344 // DSMA
	wireVersion = 1
	headSize    = 64
	// maxPayload bounds paths, settings and error texts.
	maxPayload = 4096
)

type op uint16

const (
	opAttach op = iota + 1
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
	opPrepare
	opName
	opJoin
	opLeave
	opBarrier
	opCount
	opTick
	opRound
	opWatch
	opExpect
	opAccumulate
	opResume
)

// waits reports whether a request waits for other programs.
func (o op) waits() bool {
	return o == opWait || o == opExpect || o >= opJoin && o <= opRound && o != opLeave
}

// encode returns a packet with this header and the payload.
func (h *header) encode(payload []byte) []byte {
	b := make([]byte, headSize, headSize+len(payload))
	le := binary.LittleEndian
	le.PutUint32(b, wireMagic)
	le.PutUint16(b[4:], wireVersion)
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

// decode splits a packet into header and payload.
func decode(b []byte) (h header, payload []byte, err error) {
	le := binary.LittleEndian
	switch {
	case len(b) < headSize:
		return h, nil, errs.E(errs.Corrupt, "attach", "a packet of %d bytes, less than a header of %d", len(b), headSize)
	case le.Uint32(b) != wireMagic:
		return h, nil, errs.E(errs.Corrupt, "attach", "magic %#x, want %#x", le.Uint32(b), wireMagic)
	case le.Uint16(b[4:]) != wireVersion:
		return h, nil, errs.E(errs.Corrupt, "attach", "version %d of the protocol, this daemon has %d", le.Uint16(b[4:]), wireVersion)
	case int64(le.Uint32(b[56:])) != int64(len(b)-headSize):
		return h, nil, errs.E(errs.Corrupt, "attach", "%d bytes after the header, which says %d", len(b)-headSize, le.Uint32(b[56:]))
	}
	h = header{op: op(le.Uint16(b[6:])), tag: le.Uint64(b[8:]), attachment: le.Uint64(b[16:])}
	for i := range h.arg {
		h.arg[i] = le.Uint64(b[24+8*i:])
	}
	return h, b[headSize:], nil
}
