package wire

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// bombs are bytes that make msgpack allocate or recurse without bound.
var bombs = map[string][]byte{
	"array of 4 G":     {0xdd, 0xff, 0xff, 0xff, 0xff},
	"bytes of 4 G":     {0xc6, 0xff, 0xff, 0xff, 0xff},
	"string of 4 G":    {0xdb, 0xff, 0xff, 0xff, 0xff},
	"map of 4 G":       {0xdf, 0xff, 0xff, 0xff, 0xff},
	"extension of 4 G": {0xc9, 0xff, 0xff, 0xff, 0xff, 0x01},
	"nested arrays":    bytes.Repeat([]byte{0x91}, MaxMessage),
	"nested maps":      bytes.Repeat([]byte{0x81, 0x01}, MaxMessage/2),
	"nested in wide":   bytes.Repeat([]byte{0xdd, 0, 0, 0, 2}, MaxMessage/5),
	"nested in struct": append([]byte{0x95}, bytes.Repeat([]byte{0x91}, 1000)...),
	"empty":            {},
	"unused code":      {0xc1},
	"two values":       {0x01, 0x02},
}

// hollow is a Subscribed whose million extents are nil: a byte each on the
// wire, 40 in memory.
func hollow(code byte) []byte {
	b := []byte{0x97, 1, 1, 1, 1, 1, 0xdd, 0, 0, 0, 0}
	n := MaxMessage - len(b) - 1
	binary.BigEndian.PutUint32(b[7:], uint32(n))
	b = append(b, bytes.Repeat([]byte{code}, n)...)
	return append(b, 0xc0)
}

// moment is a time as messages have it, in a struct: alone it would take
// msgpack's own encoding.
type moment struct{ T time.Time }

// allocated returns the bytes that f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestBombsAllocateLittle(t *testing.T) {
	check := func(name string, most uint64, f func() error) {
		t.Helper()
		var err error
		if n := allocated(func() { err = f() }); n > most {
			t.Errorf("%s: %d bytes allocated, want at most %d", name, n, most)
		}
		if !errs.Is(err, errs.Corrupt) {
			t.Errorf("%s: %v, want a corrupt message", name, err)
		}
	}
	for name, b := range bombs {
		check(name, 64<<10, func() error { var v any; return Unmarshal(b, &v) })
		check(name+" as a slice", 64<<10, func() error { var v []Subscribed; return Unmarshal(b, &v) })
		k, err := kindOf(&Subscribed{})
		if err != nil {
			t.Fatal(err)
		}
		check(name+" as a message", 64<<10, func() error { return decodeMessage(b, new(Subscribed), k) })
		if len(b) <= MaxMessage {
			frame := encode(t, &Subscribed{}, 0, false, nil)[:headerSize]
			binary.BigEndian.PutUint32(frame[12:], uint32(len(b)))
			frame = append(frame, b...)
			check(name+" in a frame", readBuffer+2*MaxMessage+64<<10, func() error {
				_, err := NewReader(bytes.NewReader(frame)).Read()
				return err
			})
		}
	}
	for _, code := range []byte{0xc0, 0x90, 0x80} {
		b := hollow(code)
		k, err := kindOf(&Subscribed{})
		if err != nil {
			t.Fatal(err)
		}
		check("hollow elements", 64<<10, func() error { return decodeMessage(b, new(Subscribed), k) })
	}
}

// The validator passes what msgpack encodes, at the bounds too.
func TestValidateAccepts(t *testing.T) {
	type nest struct{ A [][][][][][][][]int }
	deep := nest{A: [][][][][][][][]int{{{{{{{{1}}}}}}}}}
	for _, v := range []any{
		nil, true, 0, -1, -33, 1 << 40, -1 << 40, uint64(1 << 63), 1.5, float32(1.5), "", "s",
		string(make([]byte, 300)), make([]byte, 70000), []int{}, make([]string, 70000), map[string]int{"a": 1}, deep,
		moment{time.Unix(1, 2)}, dsm.AllPages,
	} {
		b, err := Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := validate(b); err != nil {
			t.Errorf("%T %.20v: %v", v, v, err)
		}
	}
	if _, err := validate(append(bytes.Repeat([]byte{0x91}, maxDepth), 0)); err != nil {
		t.Errorf("depth %d: %v", maxDepth, err)
	}
	if _, err := validate(append(bytes.Repeat([]byte{0x91}, maxDepth+1), 0)); err == nil {
		t.Errorf("depth %d is accepted", maxDepth+1)
	}
}

// Decoding what does not fit the type is an error, never a panic.
func TestUnmarshalMismatch(t *testing.T) {
	for name, c := range map[string]struct {
		b []byte
		v any
	}{
		"more fields":      {[]byte{0x94, 1, 2, 3, 4}, new(WriterSeq)},
		"fewer fields":     {[]byte{0x91, 1}, new(WriterSeq)},
		"a string":         {[]byte{0xa1, 'x'}, new(WriterSeq)},
		"short time":       {[]byte{0x91, 0xc4, 1, 0}, new(moment)},
		"long nanoseconds": {append([]byte{0x91, 0xc4, 12}, bytes.Repeat([]byte{0xff}, 12)...), new(moment)},
		"page set of two":  {[]byte{0x92, 1, 1}, new(dsm.PageSet)},
		"not a pointer":    {[]byte{1}, 5},
	} {
		if err := Unmarshal(c.b, c.v); !errs.Is(err, errs.Corrupt) {
			t.Errorf("%s: %v, want a corrupt message", name, err)
		}
	}
	for _, v := range []any{new(moment), new(WriterSeq), new(dsm.PageSet), new(dsm.Inode), new([]dsm.Inode)} {
		if err := Unmarshal([]byte{0xc0}, v); err != nil {
			t.Errorf("nil as %T: %v", v, err)
		}
	}
	if err := Unmarshal([]byte{0x91, 0xc0}, new(moment)); err != nil {
		t.Errorf("nil as a time: %v", err)
	}
}

func FuzzUnmarshal(f *testing.F) {
	for _, b := range bombs {
		f.Add(b[:min(len(b), 4096)])
	}
	for _, m := range Messages {
		b, err := Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, v := range []any{new(any), new(dsm.Inode), new(map[dsm.Ino]dsm.Inode), new(HandoverExtent)} {
			// A thousand bytes may be the size of an element; what must not happen is
			// an allocation by the lengths that the bytes claim.
			if n := allocated(func() { _ = Unmarshal(b, v) }); n > 1<<20+uint64(len(b))*1000 {
				t.Fatalf("%T: %d bytes allocated for %d", v, n, len(b))
			}
		}
	})
}

func FuzzRead(f *testing.F) {
	for _, m := range Messages {
		b := encode(f, m, 1, false, []byte("payload"))
		f.Add(b)
		f.Add(b[:len(b)-3])
	}
	for _, b := range bombs {
		frame := encode(f, &Subscribed{}, 0, false, nil)[:headerSize]
		b = b[:min(len(b), 4096)]
		binary.BigEndian.PutUint32(frame[12:], uint32(len(b)))
		f.Add(append(frame, b...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := NewReader(bytes.NewReader(b))
		for {
			fr, err := r.Read()
			if err != nil {
				return
			}
			// What was read can be written and read again.
			again := encode(t, fr.Msg, fr.Req, fr.Reply, fr.Payload)
			fr2, err := NewReader(bytes.NewReader(again)).Read()
			if err != nil {
				t.Fatalf("%T %+v: %v", fr.Msg, fr.Msg, err)
			}
			fr2.Release()
			fr.Release()
		}
	})
}
