package wire

import (
	"encoding/binary"

	"github.com/dsmfs/dsmfs/internal/errs"
)

const (
	// Version is the version of the frames and of the messages in them. Peers
	// agree on it when they connect.
	Version = 14
	// MaxMessage bounds the msgpack bytes of a frame.
	MaxMessage = 1 << 20
	// MaxPayload bounds the raw bytes of a frame: 4 MiB and some slack.
	MaxPayload = 4<<20 + 64<<10

	frameMagic = 0xd5
	headerSize = 20
)

// Frame is a message that came from a peer.
type Frame struct {
	// Msg points to one of the registered structs.
	Msg any
	// Req is the id of the request that the frame makes or answers, or 0.
	Req   uint64
	Reply bool
	// Payload is nil if there is none. Its memory belongs to the frame, and is valid until Release.
	Payload []byte
	shared  Shared // what Payload is in
}

// NewFrame returns a frame with a copy of the payload, as if it had been received.
func NewFrame(msg any, payload []byte) *Frame {
	f := &Frame{Msg: msg}
	if len(payload) > 0 {
		f.alloc(len(payload))
		copy(f.Payload, payload)
	}
	return f
}

func (f *Frame) alloc(n int) {
	f.shared.alloc(n)
	f.Payload = f.shared.Bytes
}

// Shared returns the payload as a counted buffer, of which the frame has one reference: whoever retains it keeps the bytes after
// Release. nil if there is no payload.
func (f *Frame) Shared() *Shared {
	if f.Payload == nil {
		return nil
	}
	return &f.shared
}

// Release gives the payload's memory back, unless it was retained.
func (f *Frame) Release() {
	if f.Payload != nil {
		f.shared.Release()
		f.Payload = nil
	}
}

// Append appends the frame of message m (or of a pointer to it) to dst, without its payload of the
// given length. The caller sends the payload right after it. On error dst is returned unchanged.
func Append(dst []byte, m any, req uint64, reply bool, payload int) ([]byte, error) {
	k, err := kindOf(m)
	if err != nil {
		return dst, err
	}
	if payload > MaxPayload {
		return dst, errs.E(errs.TooLarge, "encode", "%s with a payload of %d bytes: the most is %d", k.typ.Name(), payload, MaxPayload)
	}
	start := len(dst)
	dst = append(dst, make([]byte, headerSize)...)
	dst, err = appendMessage(dst, m)
	if err != nil {
		return dst[:start], err
	}
	message := len(dst) - start - headerSize
	if message > MaxMessage {
		return dst[:start], errs.E(errs.TooLarge, "encode", "%s of %d bytes: the most is %d", k.typ.Name(), message, MaxMessage)
	}
	id := k.id
	if reply {
		id |= replyBit
	}
	h := dst[start:]
	h[0], h[1] = frameMagic, Version
	binary.BigEndian.PutUint16(h[2:], id)
	binary.BigEndian.PutUint64(h[4:], req)
	binary.BigEndian.PutUint32(h[12:], uint32(message))
	binary.BigEndian.PutUint32(h[16:], uint32(payload))
	return dst, nil
}

// header is the fixed part of a frame; its fields have been checked.
type header struct {
	kind             *kind
	req              uint64
	reply            bool
	message, payload int
}

// parseHeader reads the headerSize bytes h.
func parseHeader(h []byte) (header, error) {
	if h[0] != frameMagic || h[1] != Version {
		return header{}, errs.E(errs.Corrupt, "read frame", "it starts with %#02x %#02x: want %#02x %#02x", h[0], h[1], frameMagic, Version)
	}
	id := binary.BigEndian.Uint16(h[2:])
	message, payload := binary.BigEndian.Uint32(h[12:]), binary.BigEndian.Uint32(h[16:])
	k := kindByID[id&^replyBit]
	if k == nil {
		return header{}, errs.E(errs.Corrupt, "read frame", "unknown message type %d", id&^replyBit)
	}
	if message > MaxMessage || payload > MaxPayload {
		return header{}, errs.E(errs.Corrupt, "read frame", "%s of %d bytes with a payload of %d: the most is %d and %d",
			k.typ.Name(), message, payload, MaxMessage, MaxPayload)
	}
	return header{
		kind: k, reply: id&replyBit != 0, req: binary.BigEndian.Uint64(h[4:]),
		message: int(message), payload: int(payload),
	}, nil
}
