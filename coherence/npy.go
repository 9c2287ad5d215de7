package coherence

import (
	"bytes"
	"encoding/binary"
	"regexp"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

var npyDescr = regexp.MustCompile(`'descr':\s*'([<|=])([a-z])(\d+)'`)

// npyTypes are the types of elements; of complex numbers, whose letter is c, that of a half.
var npyTypes = map[string]dsm.DType{
	"c16": dsm.DTypeF64, "c8": dsm.DTypeF32,
	"f8": dsm.DTypeF64, "f4": dsm.DTypeF32, "f2": dsm.DTypeF16,
	"i1": dsm.DTypeI8, "i2": dsm.DTypeI16, "i4": dsm.DTypeI32, "i8": dsm.DTypeI64,
	"u1": dsm.DTypeU8, "u2": dsm.DTypeU16, "u4": dsm.DTypeU32, "u8": dsm.DTypeU64,
}

const npyMagic = "\x93NUMPY"

func isNpy(head []byte) bool { return bytes.HasPrefix(head, []byte(npyMagic)) }

// npyLayout reads the element type from the header of a NumPy array file, given its first page (NEP
// 1: magic, version, length of the header, header as a Python dict literal). It accepts only
// little-endian types that dsmfs can merge. A header longer than a page belongs to a structured
// type, which is not one of these.
func npyLayout(head []byte, size int64) (dsm.Layout, bool) {
	if min(size, int64(len(head))) < 16 || !isNpy(head) {
		return dsm.Layout{}, false
	}
	off := 10
	n := int(binary.LittleEndian.Uint16(head[8:]))
	if head[6] >= 2 {
		off = 12
		n = int(binary.LittleEndian.Uint32(head[8:]))
	}
	end := off + n
	if n < 0 || end > len(head) || int64(end) > size {
		return dsm.Layout{}, false
	}
	m := npyDescr.FindSubmatch(head[off:end])
	if m == nil {
		return dsm.Layout{}, false
	}
	t, ok := npyTypes[string(m[2])+string(m[3])]
	if !ok || end%t.Size() != 0 {
		return dsm.Layout{}, false
	}
	return dsm.Layout{DType: t, DataOffset: int64(end), Complex: m[2][0] == 'c'}, true
}
