package wire

import (
	"bytes"
	"sync"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/dsmfs/dsmfs/internal/errs"
)

// encoder appends to buf. The msgpack encoder writes to the struct itself, so neither needs a
// reset.
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

// decode decodes the validated bytes b into what v points to. A panic of msgpack becomes an error:
// the validator does not know types, and msgpack 5.4.1 panics if it finds a nil in place of some
// struct types.
func decode(b []byte, v any) (err error) {
	d := decoders.Get().(*decoder)
	defer func() {
		if p := recover(); p != nil {
			err = errs.E(errs.Corrupt, "decode", "%T: %v", v, p)
			return // d is dropped, because its state is unknown
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

// maxHollow bounds the memory that a message can claim by values without content.
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

// Marshal returns v in msgpack, with structs as arrays. It is for the commands and snapshots of the
// catalog.
func Marshal(v any) ([]byte, error) { return appendMessage(nil, v) }

// Unmarshal validates b and decodes all of it into what v points to. The caller bounds len(b); the
// allocated memory is proportional to it, with the size of v's largest element as the factor.
func Unmarshal(b []byte, v any) error {
	if _, err := validate(b); err != nil {
		return err
	}
	return decode(b, v)
}
