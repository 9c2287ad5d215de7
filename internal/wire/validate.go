package wire

import (
	"encoding/binary"
	"reflect"

	"github.com/dsmfs/dsmfs/internal/errs"
)

// maxDepth bounds how deep values nest.
const maxDepth = 16

// validate walks the msgpack bytes b: exactly one value, nested at most maxDepth deep, every length
// at most the number of bytes left. So a decoder that allocates what a length says allocates no
// more elements than b has bytes. hollow counts the values without content (nil, empty arrays and
// maps): for one byte, a struct of any size may be allocated there.
func validate(b []byte) (hollow int, err error) {
	w := walker{b: b}
	if err := w.value(0); err != nil {
		return 0, err
	}
	if len(w.b) > 0 {
		return 0, errs.E(errs.Corrupt, "decode", "%d bytes after the message", len(w.b))
	}
	return w.hollow, nil
}

// walker has the bytes that are left to walk.
type walker struct {
	b      []byte
	hollow int
}

func (w *walker) value(depth int) error {
	if len(w.b) == 0 {
		return w.short(1)
	}
	c := w.b[0]
	w.b = w.b[1:]
	switch {
	case c <= 0x7f || c >= 0xe0: // fixint
		return nil
	case c <= 0x8f: // fixmap
		return w.elements(2*int(c&0x0f), depth)
	case c <= 0x9f: // fixarray
		return w.elements(int(c&0x0f), depth)
	case c <= 0xbf: // fixstr
		return w.skip(int(c & 0x1f))
	}
	switch c {
	case 0xc0: // nil
		w.hollow++
		return nil
	case 0xc2, 0xc3: // bool
		return nil
	case 0xcc, 0xd0: // 8 bits
		return w.skip(1)
	case 0xcd, 0xd1: // 16 bits
		return w.skip(2)
	case 0xca, 0xce, 0xd2: // 32 bits
		return w.skip(4)
	case 0xcb, 0xcf, 0xd3: // 64 bits
		return w.skip(8)
	case 0xc4, 0xd9: // bin8, str8
		return w.counted(1)
	case 0xc5, 0xda: // bin16, str16
		return w.counted(2)
	case 0xc6, 0xdb: // bin32, str32
		return w.counted(4)
	case 0xdc, 0xdd: // array16, array32
		n, err := w.length(2 << (c - 0xdc))
		if err != nil {
			return err
		}
		return w.elements(n, depth)
	case 0xde, 0xdf: // map16, map32
		n, err := w.length(2 << (c - 0xde))
		if err != nil {
			return err
		}
		return w.elements(2*n, depth)
	}
	// No message has extensions (0xc7..0xc9, 0xd4..0xd8) or 0xc1.
	return errs.E(errs.Corrupt, "decode", "msgpack code %#02x", c)
}

// elements walks n values, one level deeper.
func (w *walker) elements(n, depth int) error {
	if n == 0 {
		w.hollow++
		return nil
	}
	if depth+1 > maxDepth {
		return errs.E(errs.Corrupt, "decode", "values nested more than %d deep", maxDepth)
	}
	if n > len(w.b) {
		return w.short(n)
	}
	for range n {
		if err := w.value(depth + 1); err != nil {
			return err
		}
	}
	return nil
}

// counted skips the bytes whose number is in the next width bytes.
func (w *walker) counted(width int) error {
	n, err := w.length(width)
	if err != nil {
		return err
	}
	return w.skip(n)
}

// length reads a length of width bytes.
func (w *walker) length(width int) (int, error) {
	if len(w.b) < width {
		return 0, w.short(width)
	}
	var n int
	switch width {
	case 1:
		n = int(w.b[0])
	case 2:
		n = int(binary.BigEndian.Uint16(w.b))
	default:
		n = int(binary.BigEndian.Uint32(w.b))
	}
	w.b = w.b[width:]
	return n, nil
}

func (w *walker) skip(n int) error {
	if n > len(w.b) {
		return w.short(n)
	}
	w.b = w.b[n:]
	return nil
}

func (w *walker) short(n int) error {
	return errs.E(errs.Corrupt, "decode", "%d more bytes wanted where %d are left", n, len(w.b))
}

// hollowSize returns the size of the largest element or pointed-to value in t: what a decoder may
// allocate for one hollow byte.
func hollowSize(t reflect.Type) int { return largest(t, make(map[reflect.Type]bool)) }

func largest(t reflect.Type, seen map[reflect.Type]bool) int {
	if seen[t] {
		return 0
	}
	seen[t] = true
	n := 0
	switch t.Kind() {
	case reflect.Slice, reflect.Pointer:
		n = max(int(t.Elem().Size()), largest(t.Elem(), seen))
	case reflect.Map:
		n = max(int(t.Key().Size()+t.Elem().Size()), largest(t.Key(), seen), largest(t.Elem(), seen))
	case reflect.Array:
		n = largest(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			n = max(n, largest(t.Field(i).Type, seen))
		}
	}
	return n
}
