package dsm

import (
	"slices"
	"strings"
	"testing"
)

func TestLayoutOf(t *testing.T) {
	f32 := func(from, to int64) Part { return Part{From: from, To: to, DType: DTypeF32} }
	i64 := func(from, to int64) Part { return Part{From: from, To: to, DType: DTypeI64} }
	var many []Part
	for i := range int64(MaxParts + 1) {
		many = append(many, Part{From: i, To: i + 1, DType: []DType{DTypeU8, DTypeI8}[i%2]})
	}
	for name, c := range map[string]struct {
		parts []Part
		want  []Part // nil: no parts
		one   Layout
		fails string
	}{
		"nothing":                 {},
		"untyped":                 {parts: []Part{{From: 8, To: 17}}},
		"one type":                {parts: []Part{f32(8, 16), f32(16, 40), f32(40, 40)}, one: Layout{DType: DTypeF32, DataOffset: 8}},
		"two types":               {parts: []Part{f32(8, 16), i64(16, 24)}, want: []Part{f32(8, 16), i64(16, 24)}},
		"one type with a gap":     {parts: []Part{f32(8, 16), f32(20, 24)}, want: []Part{f32(8, 16), {From: 16, To: 20}, f32(20, 24)}},
		"untyped between":         {parts: []Part{f32(8, 16), {From: 16, To: 17}, i64(24, 32)}, want: []Part{f32(8, 16), {From: 16, To: 24}, i64(24, 32)}},
		"untyped at the end":      {parts: []Part{f32(8, 16), i64(16, 24), {From: 24, To: 25}}, want: []Part{f32(8, 16), i64(16, 24), {From: 24, To: 25}}},
		"a type and untyped":      {parts: []Part{f32(8, 16), {From: 16, To: 17}}, want: []Part{f32(8, 16), {From: 16, To: 17}}},
		"untyped and a type":      {parts: []Part{{From: 8, To: 16}, f32(16, 24)}, one: Layout{DType: DTypeF32, DataOffset: 16}},
		"opaque":                  {parts: []Part{{From: 8, To: 11, Opaque: true}}, want: []Part{{From: 8, To: 11, Opaque: true}}},
		"as many as there can be": {parts: many[:MaxParts], want: many[:MaxParts]},
		"not aligned":             {parts: []Part{f32(6, 16), i64(16, 24)}, fails: "elements of f32 begin at byte 6, which is no multiple of their size of 4 bytes"},
		"one that is not":         {parts: []Part{f32(6, 16)}, fails: "header of 6 bytes is no multiple"},
		"too many":                {parts: many, fails: "tells of 4097 parts"},
		"past all areas":          {parts: []Part{f32(8, 16), i64(16, MaxAreaSize+8)}, fails: "elements of type"},
	} {
		l, err := LayoutOf(c.parts)
		if c.fails != "" {
			if err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%s: %v, want %q", name, err, c.fails)
			}
			continue
		}
		if c.want == nil {
			if l != c.one || err != nil {
				t.Errorf("%s: %+v, %v", name, l, err)
			}
			continue
		}
		if got := slices.Collect(l.All()); err != nil || !slices.Equal(got, c.want) || l.DType != DTypeAuto || l.DataOffset != c.want[0].From {
			t.Errorf("%s: %v %v, %v", name, l, got, err)
		}
		if len(l.Parts) > 50<<10 {
			t.Errorf("%s: %d bytes", name, len(l.Parts))
		}
	}
}

func TestLayoutCheckEnd(t *testing.T) {
	l, err := LayoutOf([]Part{{From: 8, To: 16, DType: DTypeF32}, {From: 16, To: 32, DType: DTypeF64}})
	if err != nil {
		t.Fatal(err)
	}
	for size, ok := range map[int64]bool{0: true, 5: true, 8: true, 10: false, 12: true, 16: true, 20: false, 24: true, 32: true, 33: true} {
		if err := l.CheckEnd(size); (err == nil) != ok {
			t.Errorf("%d: %v", size, err)
		}
	}
	if err := (Layout{DType: DTypeF32, DataOffset: 8}).CheckEnd(14); err == nil {
		t.Error("6 bytes of f32")
	}
}

func TestLayoutOfComplexNumbers(t *testing.T) {
	for l, ok := range map[Layout]bool{
		{DType: DTypeF32, DataOffset: 64, Complex: true}: true,
		{DType: DTypeF64, DataOffset: 64, Complex: true}: true,
		{DType: DTypeI32, DataOffset: 64, Complex: true}: false,
		{Complex: true}: false,
		{DataOffset: 8, Parts: "\x02\x08\x08\x08", Complex: true}: false,
	} {
		if err := l.Check(); (err == nil) != ok {
			t.Errorf("%+v: %v", l, err)
		}
	}
}

// FuzzLayoutCheck: what Check accepts can be read, and has one form.
func FuzzLayoutCheck(f *testing.F) {
	f.Add(uint8(0), int64(8), "\x02\x08\x08\x08")
	f.Add(uint8(2), int64(8), "")
	f.Add(uint8(0), int64(0), "\x80\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")
	f.Fuzz(func(t *testing.T, dtype uint8, off int64, parts string) {
		l := Layout{DType: DType(dtype), DataOffset: off, Parts: Parts(parts)}
		if l.Check() != nil || parts == "" {
			return
		}
		if again, err := LayoutOf(slices.Collect(l.All())); err != nil || again != l {
			t.Fatalf("%+v is also %+v, %v", l, again, err)
		}
	})
}
