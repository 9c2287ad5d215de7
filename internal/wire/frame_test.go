package wire

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"reflect"
	"testing"
	"testing/iotest"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// encode returns the bytes of a frame with its payload.
func encode(t testing.TB, m any, req uint64, reply bool, payload []byte) []byte {
	t.Helper()
	b, err := Append(nil, m, req, reply, len(payload))
	if err != nil {
		t.Fatal(err)
	}
	return append(b, payload...)
}

// Every registered message survives the wire, whatever is in it.
func TestEveryMessageRoundTrips(t *testing.T) {
	r := newRand(t)
	for id, m := range Messages {
		for range 50 {
			in := reflect.New(reflect.TypeOf(m).Elem())
			fill(r, in.Elem())
			payload := make([]byte, r.IntN(3)*r.IntN(10000))
			for i := range payload {
				payload[i] = byte(r.Uint32())
			}
			req, reply := r.Uint64(), r.IntN(2) == 0
			f, err := NewReader(bytes.NewReader(encode(t, in.Interface(), req, reply, payload))).Read()
			if err != nil {
				t.Fatalf("message %d %T: %v", id, m, err)
			}
			if !reflect.DeepEqual(f.Msg, in.Interface()) {
				t.Fatalf("message %d: sent %+v, got %+v", id, in.Interface(), f.Msg)
			}
			if f.Req != req || f.Reply != reply || !bytes.Equal(f.Payload, payload) {
				t.Fatalf("message %d: request %d %v with %d bytes became %d %v with %d bytes", id, req, reply, len(payload), f.Req, f.Reply, len(f.Payload))
			}
			f.Release()
		}
	}
}

// A stream of frames comes out in order however the bytes are split.
func TestStream(t *testing.T) {
	r := newRand(t)
	var stream []byte
	sizes := []int{0, 1, 4096, readBuffer, 1 << 20, MaxPayload}
	for i, n := range sizes {
		stream = append(stream, encode(t, PushAck{ID: uint64(i)}, 0, false, bytes.Repeat([]byte{byte(i)}, n))...)
	}
	big := &Publish{Index: bytes.Repeat([]byte("x"), readBuffer+5)}
	stream = append(stream, encode(t, big, 0, false, nil)...)
	for name, src := range map[string]io.Reader{
		"whole": bytes.NewReader(stream), "halves": iotest.HalfReader(bytes.NewReader(stream)),
		"pieces": &pieces{bytes.NewReader(stream), r}, "with the error": iotest.DataErrReader(bytes.NewReader(stream)),
	} {
		rd := NewReader(src)
		for i, n := range sizes {
			f, err := rd.Read()
			if err != nil {
				t.Fatalf("%s: frame %d: %v", name, i, err)
			}
			if f.Msg.(*PushAck).ID != uint64(i) || len(f.Payload) != n || n > 0 && f.Payload[n-1] != byte(i) {
				t.Fatalf("%s: frame %d is %+v with %d bytes", name, i, f.Msg, len(f.Payload))
			}
			f.Release()
		}
		if f, err := rd.Read(); err != nil || len(f.Msg.(*Publish).Index) != len(big.Index) {
			t.Fatalf("%s: large message: %v", name, err)
		}
		if _, err := rd.Read(); err != io.EOF {
			t.Fatalf("%s: after the last frame: %v, want io.EOF", name, err)
		}
	}
}

// stops is a connection that now and then has nothing.
type stops struct {
	io.Reader
	n *rand.Rand
}

func (s stops) Read(b []byte) (int, error) {
	if s.n.IntN(3) == 0 {
		return 0, ErrNothing
	}
	return s.Reader.Read(b[:min(len(b), 1+s.n.IntN(300))])
}

// Now returns the frames that fit in the buffer, in whatever pieces they come, leaves others to Read, and keeps the end.
func TestNow(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	var stream []byte
	sizes := []int{0, 5, readBuffer + 5, 100, readBuffer - 100, 0}
	for i, n := range sizes {
		stream = append(stream, encode(t, &PushAck{ID: uint64(i)}, 0, false, make([]byte, n))...)
	}
	for _, short := range []int{0, 1} { // the last frame is whole, or not
		from := bytes.NewReader(stream[:len(stream)-short])
		s := stops{from, r}
		rd := NewReader(s)
		for i := 0; ; {
			f, whole, err := rd.Now()
			switch {
			case err != nil:
				if want := []error{io.EOF, io.ErrUnexpectedEOF}[short]; err != want || i != len(sizes)-short {
					t.Fatalf("after %d frames: %v, want %v", i, err, want)
				}
			case !whole:
				rd.r.Reset(io.MultiReader(bytes.NewReader(peeked(rd)), from)) // it has all of it
				if f, err = rd.Read(); err != nil {
					t.Fatal(err)
				}
				rd.r.Reset(io.MultiReader(bytes.NewReader(peeked(rd)), s))
			}
			if err != nil {
				break
			}
			if f != nil {
				if f.Msg.(*PushAck).ID != uint64(i) || len(f.Payload) != sizes[i] || whole == (sizes[i] >= readBuffer) {
					t.Fatalf("frame %d is %+v with %d bytes, whole %v", i, f.Msg, len(f.Payload), whole)
				}
				f.Release()
				i++
			}
		}
	}
}

// peeked returns a copy of what has been read ahead.
func peeked(r *Reader) []byte {
	b, _ := r.r.Peek(r.r.Buffered())
	return bytes.Clone(b)
}

// pieces reads a random number of bytes at a time.
type pieces struct {
	r io.Reader
	n *rand.Rand
}

func (p *pieces) Read(b []byte) (int, error) {
	return p.r.Read(b[:min(len(b), 1+p.n.IntN(100000))])
}

// A frame that ends early is an unexpected end wherever it ends.
func TestTruncatedFrame(t *testing.T) {
	whole := encode(t, &Push{Version: 7, Pages: dsm.AllPages}, 9, false, []byte("payload"))
	for n := range len(whole) {
		_, err := NewReader(bytes.NewReader(whole[:n])).Read()
		want := io.ErrUnexpectedEOF
		if n == 0 {
			want = io.EOF
		}
		if !errors.Is(err, want) {
			t.Fatalf("%d of %d bytes: %v, want %v", n, len(whole), err, want)
		}
	}
}

func TestBadHeader(t *testing.T) {
	good := encode(t, PushAck{}, 0, false, nil)
	for name, change := range map[string]func(b []byte){
		"magic":   func(b []byte) { b[0] ^= 1 },
		"version": func(b []byte) { b[1]++ },
		"type":    func(b []byte) { b[2], b[3] = 0x7f, 0xff },
		"message": func(b []byte) { b[12] = 1 },
		"payload": func(b []byte) { b[16] = 1 },
	} {
		b := bytes.Clone(good)
		change(b)
		_, err := NewReader(bytes.NewReader(b)).Read()
		if !errs.Is(err, errs.Corrupt) {
			t.Errorf("%s: %v, want a corrupt message", name, err)
		}
	}
}

func TestAppendRefuses(t *testing.T) {
	before := []byte("before")
	for name, c := range map[string]struct {
		m       any
		payload int
		kind    errs.Kind
	}{
		"an unknown type":   {struct{ A int }{}, 0, errs.Invalid},
		"nil":               {nil, 0, errs.Invalid},
		"too large":         {&Publish{Index: make([]byte, MaxMessage)}, 0, errs.TooLarge},
		"too large payload": {&Publish{}, MaxPayload + 1, errs.TooLarge},
	} {
		b, err := Append(before, c.m, 0, false, c.payload)
		if !errs.Is(err, c.kind) || string(b) != "before" {
			t.Errorf("%s: %q, %v, want kind %q", name, b, err, c.kind)
		}
	}
}

func TestAllocSizes(t *testing.T) {
	for _, n := range []int{0, 1, 4096, 4097, 1 << 20, MaxPayload, MaxPayload + 1} {
		b := Alloc(n)
		if len(b) != n {
			t.Fatalf("Alloc(%d) has %d bytes", n, len(b))
		}
		Free(b)
	}
	Free(nil)
	Free(make([]byte, 10))
}

// What the catalog stores survives Marshal and Unmarshal.
// TestShared counts the references to a buffer: the last one makes it free, not before.
func TestShared(t *testing.T) {
	s := Share(100)
	if len(s.Bytes) != 100 {
		t.Fatalf("%d bytes", len(s.Bytes))
	}
	b := s.Bytes
	b[7] = 42
	held := s.Retain()
	s.Release()
	if held != s || s.Bytes == nil || s.Bytes[7] != 42 {
		t.Error("the buffer is free while there is a reference to it")
	}
	held.Release()
	if s.Bytes != nil {
		t.Error("the buffer is not free after the last release")
	}
}

func TestMarshalRoundTrips(t *testing.T) {
	r := newRand(t)
	for _, typ := range []reflect.Type{
		reflect.TypeFor[dsm.Inode](), reflect.TypeFor[dsm.SetAttr](), reflect.TypeFor[map[dsm.Ino]*dsm.Inode](),
		reflect.TypeFor[[]dsm.Member](), reflect.TypeFor[map[string][]byte](),
	} {
		for range 100 {
			in, out := reflect.New(typ), reflect.New(typ)
			fill(r, in.Elem())
			b, err := Marshal(in.Interface())
			if err != nil {
				t.Fatal(err)
			}
			if err := Unmarshal(b, out.Interface()); err != nil {
				t.Fatalf("%v: %v", typ, err)
			}
			if !reflect.DeepEqual(in.Interface(), out.Interface()) {
				t.Fatalf("%v: %+v became %+v", typ, in.Elem(), out.Elem())
			}
		}
	}
}
