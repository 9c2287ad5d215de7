package transport

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// briefPair returns the two ends of a connection, both brief.
func briefPair(t *testing.T) (a, b *brief) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	d, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); d.Close() })
	return briefly(c).(*brief), briefly(d).(*brief)
}

// TestBriefCarriesAll writes pieces of all sizes, more than the socket takes at once, to a reader that reads with all sizes of buffers.
func TestBriefCarriesAll(t *testing.T) {
	a, b := briefPair(t)
	var sent []byte
	for n := 1; n <= 4<<20; n *= 3 {
		sent = append(sent, bytes.Repeat([]byte{byte(n)}, n)...)
	}
	done := make(chan error)
	go func() {
		rest := sent
		for n := 1; len(rest) > 0; n = n*5 + 1 {
			m, err := a.Write(rest[:min(n, len(rest))])
			if rest = rest[m:]; err != nil {
				done <- err
				return
			}
		}
		done <- a.Conn.(*net.TCPConn).CloseWrite()
	}()
	var got []byte
	for n := 1; ; n = min(n*2, 1<<20) {
		p := make([]byte, n)
		m, err := b.Read(p)
		if got = append(got, p[:m]...); err == io.EOF {
			break
		}
		if err != nil || m == 0 {
			t.Fatalf("read %d bytes: %v", m, err)
		}
	}
	if err := <-done; err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes arrived of %d, equal: %v; %v", len(got), len(sent), bytes.Equal(got, sent), err)
	}
}

func TestBriefEnds(t *testing.T) {
	a, b := briefPair(t)
	if err := b.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read past the deadline: %v", err)
	}
	if err := a.SetWriteDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	full := make([]byte, briefBytes)
	var err error
	for range 4096 { // nobody reads
		if _, err = a.Write(full); err != nil {
			break
		}
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("write past the deadline: %v", err)
	}
	b.Close()
	if _, err := b.Read(full); !errors.Is(err, net.ErrClosed) {
		t.Errorf("read of a closed connection: %v", err)
	}
}
