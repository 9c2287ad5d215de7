package wire

import (
	"bufio"
	"io"
	"reflect"

	"github.com/dsmfs/dsmfs/internal/errs"
)

// readBuffer is the size of a Reader's buffer. Payloads that are larger than their buffered part
// are read straight into their own memory.
const readBuffer = 64 << 10

// Reader reads the frames of one connection. It is for one goroutine.
type Reader struct {
	r    *bufio.Reader
	most int // bytes of a frame; 0: those of the protocol
}

// NewReader returns a Reader that reads ahead on r.
func NewReader(r io.Reader) *Reader {
	return &Reader{r: bufio.NewReaderSize(r, readBuffer)}
}

// NewShortReader returns a Reader that takes no frame of more than so many bytes: of somebody who has
// not said yet who it is.
func NewShortReader(r io.Reader, most int) *Reader {
	return &Reader{r: bufio.NewReaderSize(r, most+headerSize), most: most}
}

// Read reads the next frame. The error is io.EOF if the stream ended between two frames, has kind
// Corrupt if the bytes are not a frame, and is the connection's error otherwise. After an error the
// stream cannot be used any more.
func (r *Reader) Read() (*Frame, error) {
	h, err := r.header()
	if err != nil {
		return nil, err
	}
	f := &Frame{Req: h.req, Reply: h.reply, Msg: reflect.New(h.kind.typ).Interface()}
	if err := r.message(h, f.Msg); err != nil {
		return nil, err
	}
	if h.payload > 0 {
		f.alloc(h.payload)
		if _, err := io.ReadFull(r.r, f.Payload); err != nil {
			f.Release()
			return nil, truncated(err)
		}
	}
	return f, nil
}

// nothing is the error of a read that would wait.
type nothing struct{}

// ErrNothing is what a connection returns to Now when there is nothing to read yet.
var ErrNothing error = nothing{}

func (nothing) Error() string   { return "nothing to read" }
func (nothing) Timeout() bool   { return false }
func (nothing) Temporary() bool { return true }

// Now is Read of a frame that is in the buffer as a whole, or comes with one read of what there is. It returns nil, and keeps what has
// come, if the connection has no more now, and its Read returns ErrNothing. whole is false if the frame does not
// fit in the buffer: Read it.
func (r *Reader) Now() (f *Frame, whole bool, err error) {
	h, err := r.peek()
	if err == nil {
		n := headerSize + h.message + h.payload
		if n > readBuffer {
			return nil, false, nil
		}
		if _, err = r.r.Peek(n); err == nil {
			f, err = r.Read()
			return f, true, err
		}
		err = truncated(err)
	}
	if err == ErrNothing {
		err = nil
	}
	return nil, true, err
}

// Empty reports whether nothing has been read ahead.
func (r *Reader) Empty() bool { return r.r.Buffered() == 0 }

// peek returns the header of the next frame, which stays in the buffer.
func (r *Reader) peek() (header, error) {
	b, err := r.r.Peek(headerSize)
	if err != nil {
		if len(b) > 0 {
			err = truncated(err)
		}
		return header{}, err
	}
	return parseHeader(b)
}

func (r *Reader) header() (header, error) {
	h, err := r.peek()
	if err == nil && r.most > 0 && h.message+h.payload > r.most {
		err = errs.E(errs.Corrupt, "read frame", "%s of %d bytes: the most is %d here", h.kind.typ.Name(), h.message+h.payload, r.most)
	}
	if err == nil {
		_, err = r.r.Discard(headerSize)
	}
	return h, err
}

// message decodes the message into m, in the buffer if it fits in there.
func (r *Reader) message(h header, m any) error {
	if h.message <= readBuffer {
		b, err := r.r.Peek(h.message)
		if err != nil {
			return truncated(err)
		}
		if err := decodeMessage(b, m, h.kind); err != nil {
			return err
		}
		_, err = r.r.Discard(h.message)
		return err
	}
	b := Alloc(h.message)
	defer Free(b)
	if _, err := io.ReadFull(r.r, b); err != nil {
		return truncated(err)
	}
	return decodeMessage(b, m, h.kind)
}

// truncated turns the end of the stream within a frame into the error for that.
func truncated(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
