package wire

import (
	"encoding/binary"
	"reflect"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// Two types have their own encoding: page sets because every hot message has them, and times
// because msgpack's own decoder panics on a nil.
func init() {
	msgpack.Register(dsm.PageSet{}, encodePageSet, decodePageSet)
	msgpack.Register(time.Time{}, encodeTime, decodeTime)
}

// encodePageSet writes no words for the empty set, and all words otherwise.
func encodePageSet(e *msgpack.Encoder, v reflect.Value) error {
	var s dsm.PageSet
	if v.CanAddr() {
		s = *v.Addr().Interface().(*dsm.PageSet)
	} else {
		s = v.Interface().(dsm.PageSet)
	}
	if s.Empty() {
		return e.EncodeArrayLen(0)
	}
	if err := e.EncodeArrayLen(len(s)); err != nil {
		return err
	}
	for _, w := range s {
		if err := e.EncodeUint(w); err != nil {
			return err
		}
	}
	return nil
}

func decodePageSet(d *msgpack.Decoder, v reflect.Value) error {
	s := v.Addr().Interface().(*dsm.PageSet)
	*s = dsm.PageSet{}
	n, err := d.DecodeArrayLen()
	if err != nil || n <= 0 {
		return err
	}
	if n != len(s) {
		return errs.E(errs.Corrupt, "decode", "a page set of %d words", n)
	}
	for i := range s {
		if s[i], err = d.DecodeUint64(); err != nil {
			return err
		}
	}
	return nil
}

// timeSize is the size of a time: 8 bytes of seconds since 1970, 4 of
// nanoseconds.
const timeSize = 12

// encodeTime writes no bytes for the zero time (nil is for a pointer to none), and seconds and
// nanoseconds otherwise.
func encodeTime(e *msgpack.Encoder, v reflect.Value) error {
	t := v.Interface().(time.Time)
	if t.IsZero() {
		return e.EncodeBytesLen(0)
	}
	var b [timeSize]byte
	binary.BigEndian.PutUint64(b[:8], uint64(t.Unix()))
	binary.BigEndian.PutUint32(b[8:], uint32(t.Nanosecond()))
	return e.EncodeBytes(b[:])
}

// decodeTime returns times in UTC, so that equal times are equal values.
func decodeTime(d *msgpack.Decoder, v reflect.Value) error {
	t := v.Addr().Interface().(*time.Time)
	*t = time.Time{}
	n, err := d.DecodeBytesLen()
	if err != nil || n <= 0 {
		return err
	}
	if n != timeSize {
		return errs.E(errs.Corrupt, "decode", "a time of %d bytes", n)
	}
	var b [timeSize]byte
	if err := d.ReadFull(b[:]); err != nil {
		return err
	}
	nsec := binary.BigEndian.Uint32(b[8:])
	if nsec >= uint32(time.Second) {
		return errs.E(errs.Corrupt, "decode", "a time of %d ns after a second", nsec)
	}
	*t = time.Unix(int64(binary.BigEndian.Uint64(b[:8])), int64(nsec)).UTC()
	return nil
}
