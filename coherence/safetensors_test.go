package coherence

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// safetensorsHead returns the header of a .safetensors file, padded to a length.
func safetensorsHead(text string, length int) []byte {
	text += strings.Repeat(" ", max(0, length-len(text)))
	return append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...)
}

func TestSafetensorsLayout(t *testing.T) {
	tensor := func(name, dtype, shape string, from, to int) string {
		return fmt.Sprintf(`%q:{"dtype":%q,"shape":%s,"data_offsets":[%d,%d]}`, name, dtype, shape, from, to)
	}
	file := func(tensors ...string) []byte { return safetensorsHead("{"+strings.Join(tensors, ",")+"}", 504) }
	for name, c := range map[string]struct {
		head  []byte
		want  []dsm.Part // counted from the end of the header
		one   dsm.DType
		pairs bool // of one are complex numbers
		fails string
	}{
		"one type":          {head: file(tensor("a", "F32", "[2,3]", 0, 24), tensor("b", "F32", "[]", 24, 28)), one: dsm.DTypeF32},
		"metadata":          {head: file(`"__metadata__":{"format":"pt"}`, tensor("a", "BF16", "[3]", 0, 6)), one: dsm.DTypeBF16},
		"types, unordered":  {head: file(tensor("z", "BF16", "[2]", 40, 44), tensor("n", "I64", "[1]", 0, 8), tensor("a", "F32", "[8]", 8, 40)), want: []dsm.Part{{From: 0, To: 8, DType: dsm.DTypeI64}, {From: 8, To: 40, DType: dsm.DTypeF32}, {From: 40, To: 44, DType: dsm.DTypeBF16}}},
		"truth values":      {head: file(tensor("a", "F32", "[2]", 0, 8), tensor("m", "BOOL", "[3]", 8, 11)), want: []dsm.Part{{From: 0, To: 8, DType: dsm.DTypeF32}, {From: 8, To: 11}}},
		"complex":           {head: file(tensor("a", "F32", "[2]", 0, 8), tensor("c", "C64", "[1]", 8, 16)), want: []dsm.Part{{From: 0, To: 8, DType: dsm.DTypeF32}, {From: 8, To: 16, Opaque: true}}},
		"complex only":      {head: file(tensor("a", "C64", "[2]", 0, 16), tensor("c", "C64", "[1]", 16, 24)), one: dsm.DTypeF32, pairs: true},
		"complex, a gap":    {head: file(tensor("a", "C64", "[1]", 0, 8), tensor("c", "C64", "[1]", 12, 20)), want: []dsm.Part{{From: 0, To: 8, Opaque: true}, {From: 8, To: 12}, {From: 12, To: 20, Opaque: true}}},
		"complex, unfit":    {head: safetensorsHead("{"+tensor("a", "C64", "[1]", 0, 8)+"}", 504-1), want: []dsm.Part{{From: -1, To: 7, Opaque: true}}},
		"f8":                {head: file(tensor("w", "F8_E4M3", "[5]", 0, 5)), want: []dsm.Part{{From: 0, To: 5, Opaque: true}}},
		"none":              {head: file()},
		"empty":             {head: file(tensor("a", "F32", "[0,5]", 0, 0), tensor("b", "F32", "[5,0]", 0, 0))},
		"another file":      {head: []byte("{}{}{}{}{}{}{}")},
		"half written":      {head: safetensorsHead(`{"a":{"dtype":"F3`, 504)},
		"ends early":        {head: file(tensor("a", "F32", "[2]", 0, 8))[:100]},
		"not aligned":       {head: safetensorsHead("{"+tensor("a", "F32", "[2]", 0, 8)+"}", 501), fails: `tensor "a" of a .safetensors file: it begins at byte 509 of the file, which is no multiple of the 4 bytes of an element of type F32`},
		"not aligned in it": {head: file(tensor("m", "BOOL", "[3]", 0, 3), tensor("a", "F32", "[2]", 3, 11)), fails: "byte 515"},
		"overlapping":       {head: file(tensor("a", "F32", "[2]", 0, 8), tensor("b", "F32", "[2]", 4, 12)), fails: "overlap at byte 516"},
		"wrong shape":       {head: file(tensor("a", "F32", "[3]", 0, 8)), fails: "is not that of 8 bytes"},
		"huge shape":        {head: file(tensor("a", "F32", "[4611686018427387904,4]", 0, 0)), fails: "is not that of 0 bytes"},
		"backwards":         {head: file(tensor("a", "F32", "[2]", 8, 0)), fails: "said to be at 8 to 0"},
		"beyond all":        {head: file(tensor("a", "U8", "[2]", 0, 1<<62)), fails: "said to be at"},
		"no tensor":         {head: file(`"a":5`), fails: `says of "a" what is no tensor`},
	} {
		l, err := safetensorsLayout(c.head)
		if c.fails != "" {
			if err == nil || !strings.Contains(err.Error(), c.fails) || l != (dsm.Layout{}) {
				t.Errorf("%s: %+v, %v; want %q", name, l, err, c.fails)
			}
			continue
		}
		var want dsm.Layout
		if c.one != dsm.DTypeAuto {
			want = dsm.Layout{DType: c.one, DataOffset: 512, Complex: c.pairs}
		}
		for i := range c.want {
			c.want[i].From, c.want[i].To = c.want[i].From+512, c.want[i].To+512
		}
		if c.want != nil {
			if got := slices.Collect(l.All()); err != nil || !slices.Equal(got, c.want) {
				t.Errorf("%s: %v, %v; want %v", name, got, err, c.want)
			}
		} else if err != nil || l != want {
			t.Errorf("%s: %+v, %v; want %+v", name, l, err, want)
		}
	}
}

// TestSafetensorsOfMany: as many tensors as a header may have, of two types, in the order in which the library writes them, are two parts.
func TestSafetensorsOfMany(t *testing.T) {
	fields := make(map[string]safetensor)
	at := int64(0)
	for i := range mostTensors {
		x := safetensor{DType: "F32", Shape: []int64{1}, Places: [2]int64{at, at + 4}}
		if i >= mostTensors/2 {
			x = safetensor{DType: "F16", Shape: []int64{1, 1}, Places: [2]int64{at, at + 2}}
		}
		fields[fmt.Sprintf("model.layers.%d.weight", i)] = x
		at = x.Places[1]
	}
	read := func() (dsm.Layout, error) {
		text, err := json.Marshal(fields)
		if err != nil {
			t.Fatal(err)
		}
		return safetensorsLayout(safetensorsHead(string(text), (len(text)+7)&^7))
	}
	l, err := read()
	if parts := slices.Collect(l.All()); err != nil || len(parts) != 2 || len(l.Parts) > 10 {
		t.Errorf("%d parts, %v", len(parts), err)
	}
	fields["one more"] = safetensor{DType: "F16", Shape: []int64{1}, Places: [2]int64{at, at + 2}}
	if _, err := read(); err == nil || !strings.Contains(err.Error(), "65537 tensors") {
		t.Errorf("%v", err)
	}
}

// FuzzSafetensorsLayout: no header makes trouble, and what is found can be recorded.
func FuzzSafetensorsLayout(f *testing.F) {
	f.Add(safetensorsHead(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"I64","shape":[1],"data_offsets":[8,16]}}`, 120))
	f.Add(safetensorsHead(`{"__metadata__":{},"a":{"dtype":"C64","shape":[],"data_offsets":[0,8]}}`, 120))
	f.Fuzz(func(t *testing.T, head []byte) {
		if l, err := safetensorsLayout(head); err == nil && l.Check() != nil {
			t.Errorf("%+v: %v", l, l.Check())
		}
	})
}
