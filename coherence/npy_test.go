package coherence

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

func TestNpyLayout(t *testing.T) {
	head := func(descr string, length int) []byte {
		text := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (3,), }", descr)
		text += strings.Repeat(" ", length-len(text)-11) + "\n"
		return append(binary.LittleEndian.AppendUint16([]byte("\x93NUMPY\x01\x00"), uint16(len(text))), text...)
	}
	at128 := func(t dsm.DType) dsm.Layout { return dsm.Layout{DType: t, DataOffset: 128} }
	for name, c := range map[string]struct {
		head []byte
		size int64
		want dsm.Layout
	}{
		"float":             {head("<f4", 128), 140, at128(dsm.DTypeF32)},
		"byte":              {head("|u1", 128), 131, at128(dsm.DTypeU8)},
		"complex":           {head("<c8", 128), 152, dsm.Layout{DType: dsm.DTypeF32, DataOffset: 128, Complex: true}},
		"long complex":      {head("<c16", 128), 176, dsm.Layout{DType: dsm.DTypeF64, DataOffset: 128, Complex: true}},
		"longer":            {head("<c32", 128), 224, dsm.Layout{}},
		"big endian":        {head(">c8", 128), 152, dsm.Layout{}},
		"text":              {head("|S3", 128), 137, dsm.Layout{}},
		"not aligned":       {head("<c16", 124), 172, dsm.Layout{}},
		"header ends early": {head("<c8", 128), 127, dsm.Layout{}},
	} {
		got, ok := npyLayout(c.head, c.size)
		if got != c.want || ok != (c.want != dsm.Layout{}) || got.Check() != nil {
			t.Errorf("%s: %+v, %v; want %+v", name, got, ok, c.want)
		}
	}
}

// FuzzNpyLayout: no header makes trouble, and what is found can be recorded.
func FuzzNpyLayout(f *testing.F) {
	f.Add([]byte("\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (100,), }"), int64(528))
	f.Add([]byte("\x93NUMPY\x02\x00\x34\x00\x00\x00{'descr':'<c16','fortran_order':False,'shape':()}    \n"), int64(1<<40))
	f.Fuzz(func(t *testing.T, head []byte, size int64) {
		if l, ok := npyLayout(head, size); ok && (l.Check() != nil || l.DataOffset > size) {
			t.Errorf("%+v of %d bytes: %v", l, size, l.Check())
		}
	})
}
