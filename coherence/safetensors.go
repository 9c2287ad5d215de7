package coherence

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// A .safetensors file begins with the length of a JSON text, in 8 bytes, and the text: an object with the type, shape and place of each
// tensor, and perhaps "__metadata__". The places are counted from the end of the text. See github.com/huggingface/safetensors.

const (
	safetensorsPrefix = 8
	// mostHeader bounds the text. That of mostTensors is about as long.
	mostHeader  = 8 << 20
	mostTensors = 65536
)

// safetensorsTypes has the types that can be merged by all rules. Elements of other types are opaque, but for BOOL: of truth values the last one
// stays by any rule.
var safetensorsTypes = map[string]dsm.DType{
	"F64": dsm.DTypeF64, "F32": dsm.DTypeF32, "F16": dsm.DTypeF16, "BF16": dsm.DTypeBF16,
	"I8": dsm.DTypeI8, "I16": dsm.DTypeI16, "I32": dsm.DTypeI32, "I64": dsm.DTypeI64,
	"U8": dsm.DTypeU8, "U16": dsm.DTypeU16, "U32": dsm.DTypeU32, "U64": dsm.DTypeU64,
	"BOOL": dsm.DTypeAuto,
}

type safetensor struct {
	DType  string   `json:"dtype"`
	Shape  []int64  `json:"shape"`
	Places [2]int64 `json:"data_offsets"`
}

// safetensorsSize returns the size of the header of a file that begins with these bytes; 0 if it has none.
func safetensorsSize(first []byte) int64 {
	if len(first) <= safetensorsPrefix || first[safetensorsPrefix] != '{' {
		return 0
	}
	n := binary.LittleEndian.Uint64(first)
	if n > mostHeader {
		return 0
	}
	return safetensorsPrefix + int64(n)
}

// safetensorsLayout reads the types of the tensors from the header of a .safetensors file. It returns the zero layout if there is no header, or not all of it
// has been written yet. It fails if the file cannot have a layout, for instance because some tensor is not aligned to its type.
//
// The file may be shorter than its header says: it is being written.
func safetensorsLayout(head []byte) (dsm.Layout, error) {
	size := safetensorsSize(head)
	if size == 0 || int64(len(head)) < size {
		return dsm.Layout{}, nil
	}
	text := bytes.TrimRight(head[safetensorsPrefix:size], " ")
	var fields map[string]json.RawMessage
	if json.Unmarshal(text, &fields) != nil {
		return dsm.Layout{}, nil // of another kind, or half written
	}
	delete(fields, "__metadata__")
	if len(fields) > mostTensors {
		return dsm.Layout{}, fmt.Errorf("a .safetensors header of %d tensors: the most is %d", len(fields), mostTensors)
	}
	parts := make([]dsm.Part, 0, len(fields))
	complexOnly := len(fields) > 0
	for name, field := range fields {
		var t safetensor
		if json.Unmarshal(field, &t) != nil {
			return dsm.Layout{}, fmt.Errorf("a .safetensors header that says of %q what is no tensor", name)
		}
		p, err := t.part(size)
		if err != nil {
			return dsm.Layout{}, fmt.Errorf("tensor %q of a .safetensors file: %w", name, err)
		}
		parts = append(parts, p)
		complexOnly = complexOnly && t.DType == "C64"
	}
	slices.SortFunc(parts, func(x, y dsm.Part) int { return cmp.Or(cmp.Compare(x.From, y.From), cmp.Compare(x.To, y.To)) })
	for i := range parts {
		if i > 0 && parts[i].From < parts[i-1].To {
			return dsm.Layout{}, fmt.Errorf("tensors of a .safetensors file overlap at byte %d", parts[i].From)
		}
	}
	if complexOnly {
		if l, ok := complexLayout(parts); ok {
			return l, nil
		}
	}
	return dsm.LayoutOf(parts)
}

// complexLayout returns the layout of a file that has nothing but complex numbers of two floats of 32 bits. There is none if there
// is a gap between tensors, or they are not aligned.
func complexLayout(parts []dsm.Part) (dsm.Layout, bool) {
	halves := slices.Clone(parts)
	for i := range halves {
		halves[i].DType, halves[i].Opaque = dsm.DTypeF32, false
	}
	l, err := dsm.LayoutOf(halves)
	if err != nil || l.DType != dsm.DTypeF32 {
		return dsm.Layout{}, false
	}
	l.Complex = true
	return l, true
}

// part returns where the tensor is in a file whose data begin at byte data.
func (t safetensor) part(data int64) (dsm.Part, error) {
	begin, end := t.Places[0], t.Places[1]
	if begin < 0 || end < begin || end > dsm.MaxAreaSize-data {
		return dsm.Part{}, fmt.Errorf("it is said to be at %d to %d", begin, end)
	}
	p := dsm.Part{From: data + begin, To: data + end}
	var ok bool
	if p.DType, ok = safetensorsTypes[t.DType]; !ok {
		p.Opaque = true
		return p, nil
	}
	if n := int64(p.DType.Size()); !slices.Contains(t.Shape, 0) || begin != end {
		for _, length := range t.Shape {
			if length <= 0 || n > (end-begin)/length {
				n = -1
				break
			}
			n *= length
		}
		if n != end-begin {
			return dsm.Part{}, fmt.Errorf("shape %v of %s is not that of %d bytes", t.Shape, t.DType, end-begin)
		}
	}
	if size := int64(p.DType.Size()); p.From%size != 0 {
		return dsm.Part{}, fmt.Errorf("it begins at byte %d of the file, which is no multiple of the %d bytes of an element of type %s", p.From, size, t.DType)
	}
	return p, nil
}
