package wire

import (
	"bytes"
	"sync"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/dsmfs/dsmfs/internal/errs"
)

// encoder appends to buf. The msgpack encoder writes to the struct itself, so
// neither is ever reset.
type encoder struct {
	buf []byte
	enc *msgpack.Encoder
}

func (e *encoder) Write(b []byte) (int, error) {
	e.buf = append(e.buf, b...)
	return len(b), nil
}

func (e *encoder) WriteByte(b byte) error {
	e.buf = append(e.buf, b)
	return nil
}

var encoders = sync.Pool{New: func() any {
	e := new(encoder)
	e.enc = msgpack.NewEncoder(e)
	e.enc.UseArrayEncodedStructs(true)
	e.enc.UseCompactInts(true)
	return e
}}

// appendMessage appends m to dst.
func appendMessage(dst []byte, m any) ([]byte, error) {
	e := encoders.Get().(*encoder)
	e.buf = dst
	err := e.enc.Encode(m)
	dst, e.buf = e.buf, nil
	encoders.Put(e)
	if err != nil {
		return dst, errs.E(errs.Invalid, "encode", "%T: %w", m, err)
	}
	return dst, nil
}

// decoder reads from r.
type decoder struct {
	r   bytes.Reader
	dec *msgpack.Decoder
}

var decoders = sync.Pool{New: func() any {
	d := new(decoder)
	d.dec = msgpack.NewDecoder(&d.r)
	return d
}}

// decode decodes the validated bytes b into what v points to. A panic of msgpack
// becomes an error: the validator knows nothing of types, and msgpack 5.4.1
// panics where a nil stands for some struct types.
func decode(b []byte, v any) (err error) {
	d := decoders.Get().(*decoder)
	defer func() {
		if p := recover(); p != nil {
			err = errs.E(errs.Corrupt, "decode", "%T: %v", v, p)
			return // with d, whose state is unknown, dropped
		}
		d.r.Reset(nil)
		decoders.Put(d)
	}()
	d.r.Reset(b)
	if err := d.dec.Decode(v); err != nil {
		return errs.E(errs.Corrupt, "decode", "%T: %w", v, err)
	}
	if d.r.Len() > 0 {
		return errs.E(errs.Corrupt, "decode", "%T: %d bytes too many", v, d.r.Len())
	}
	return nil
}

// maxHollow bounds what a message can make of bytes that hold nothing.
const maxHollow = 16 << 20

// decodeMessage validates and decodes the message of a frame.
func decodeMessage(b []byte, m any, k *kind) error {
	hollow, err := validate(b)
	if err != nil {
		return err
	}
	if hollow*k.hollow > maxHollow {
		return errs.E(errs.Corrupt, "decode", "%s: %d empty values", k.typ.Name(), hollow)
	}
	return decode(b, m)
}

// Marshal returns v in msgpack, structs as arrays: for the commands and
// snapshots of the catalog.
func Marshal(v any) ([]byte, error) { return appendMessage(nil, v) }

// Unmarshal decodes b, all of it and validated first, into what v points to.
// The caller bounds len(b); what is allocated is proportional to it, with the size
// of v's largest element as the factor.
func Unmarshal(b []byte, v any) error {
	if _, err := validate(b); err != nil {
		return err
	}
	return decode(b, v)
}
