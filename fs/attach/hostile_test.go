package attach

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/uffd"
)

// openMount is a filesystem in which every name is that of a file that anybody may use.
type openMount struct {
	Mount
	background sync.WaitGroup
}

func (*openMount) Getattr(_ context.Context, ino dsm.Ino) (dsm.Inode, error) {
	return fileOfRoot(ino, 0o777), nil
}

// fileOfRoot is a directory or a file of root, which others may use as perm says; nobody executes files.
func fileOfRoot(ino dsm.Ino, perm uint32) dsm.Inode {
	if ino == dsm.RootIno {
		return dsm.Inode{Ino: ino, Kind: dsm.KindDir, Perm: perm}
	}
	return dsm.Inode{Ino: ino, Kind: dsm.KindFile, Perm: perm &^ 0o111, Size: dsm.PageSize}
}

func (m *openMount) Lookup(ctx context.Context, _ dsm.Ino, _ string) (dsm.Inode, error) {
	return m.Getattr(ctx, dsm.RootIno+1)
}

func (*openMount) Open(context.Context, dsm.Ino, bool) (Area, error) { return idleArea{}, nil }
func (m *openMount) Release(f func())                                { m.background.Go(f) }
func (m *openMount) Background(f func())                             { m.background.Go(f) }
func (*openMount) Lasting() (context.Context, context.CancelFunc) {
	return context.WithCancel(context.Background())
}

// idleArea is an area of which nothing comes.
type idleArea struct{ Area }

func (idleArea) Attach(context.Context, int, bool) (Attachment, *os.File, error) {
	fd, err := unix.MemfdCreate("area", unix.MFD_CLOEXEC)
	return idleAttachment{}, os.NewFile(uintptr(fd), "area"), err
}

type idleAttachment struct{ Attachment }

func (idleAttachment) Released()                             {}
func (idleAttachment) Killed()                               {}
func (idleAttachment) PublishReleased(context.Context) error { return nil }
func (idleAttachment) Detach()                               {}

func (idleAttachment) Memory() (*os.File, error) { return nil, errs.E(errs.NotExist, "memory", "") }

func (idleArea) Close(bool)                                {}
func (idleArea) Demand() bool                              { return false }
func (idleArea) Direct() bool                              { return false }
func (idleArea) Size() int64                               { return dsm.PageSize }
func (idleArea) Grown(context.Context, int64, int64) error { return nil }
func (idleArea) Version() dsm.Version                      { return 1 }
func (idleArea) Publish(context.Context) error             { return nil }
func (idleArea) PublishNow(_ time.Duration, done func(error)) bool {
	done(nil)
	return true
}
func (idleAttachment) Wait(ctx context.Context, _ dsm.Version) error {
	<-ctx.Done()
	return &errs.Error{Op: "wait", Kind: errs.Timeout, Err: ctx.Err()}
}

type hostile struct {
	t      *testing.T
	socket string
	log    *bytes.Buffer
}

func listenHostile(t *testing.T, l limits) *hostile {
	t.Helper()
	m := &openMount{}
	return listenHostileWith(t, l, m, m)
}

// listenHostileWith is listenHostile for a mount that consists of an openMount and more.
func listenHostileWith(t *testing.T, l limits, mount Mount, m *openMount) *hostile {
	t.Helper()
	h := &hostile{t: t, socket: filepath.Join(t.TempDir(), "attach"), log: new(bytes.Buffer)}
	s, err := newWithin(l, Config{
		Mount: mount, Log: slog.New(slog.NewTextHandler(h.log, nil)), Socket: h.socket, Tracking: uffd.Compare, Timeout: time.Minute, Life: t.Context(),
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Serve()
	t.Cleanup(func() {
		s.Close()
		m.background.Wait()
		if n := s.remembered(); n != 0 {
			t.Errorf("%d users are remembered when all have gone", n)
		}
		if n := strings.Count(h.log.String(), "level=WARN"); n > 1 {
			t.Errorf("the log has %d warnings:\n%s", n, h.log)
		}
	})
	return h
}

// remembered returns how many users are remembered when the last descriptors have been closed.
func (s *Server) remembered() (n int) {
	for end := time.Now().Add(time.Minute); ; runtime.Gosched() {
		s.mu.Lock()
		n = len(s.mu.users)
		s.mu.Unlock()
		if n == 0 || time.Now().After(end) {
			return n
		}
	}
}

// program is one connection.
type testProgram struct {
	t *testing.T
	*net.UnixConn
}

func (h *hostile) dial() testProgram {
	h.t.Helper()
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: h.socket, Net: "unixpacket"})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { c.Close() })
	return testProgram{h.t, c}
}

func (p testProgram) post(q header, payload string) error {
	_, err := p.Write(q.encode([]byte(payload)))
	return err
}

// answer returns the next answer, and the text of its error.
func (p testProgram) answer() (header, string) {
	p.t.Helper()
	packet, fds, err := receive(p.UnixConn, make([]byte, headSize+maxPayload))
	closeAll(fds)
	if err != nil {
		p.t.Fatal(err)
	}
	h, text, err := decode(packet)
	if err != nil {
		p.t.Fatal(err)
	}
	h.errno = unix.Errno(binary.LittleEndian.Uint32(packet[60:])) // the daemon takes it from nobody
	return h, string(text)
}

func (p testProgram) call(q header, payload string) (header, string) {
	p.t.Helper()
	if err := p.post(q, payload); err != nil {
		p.t.Fatal(err)
	}
	return p.answer()
}

func (p testProgram) attach() (uint64, unix.Errno, string) {
	p.t.Helper()
	h, text := p.call(header{op: opAttach, arg: [4]uint64{accessRead}}, "/w")
	return h.attachment, h.errno, text
}

// floods is how many requests flood posts at most.
const floods = 150000

// flood posts a request again and again, until nobody reads on, and returns how often.
func (p testProgram) flood(h header) (sent int) {
	p.t.Helper()
	for ; sent < floods; sent++ {
		h.tag = uint64(sent)
		if err := p.SetWriteDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
			p.t.Fatal(err)
		}
		if err := p.post(h, ""); err != nil {
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				p.t.Fatal(err)
			}
			break
		}
	}
	return sent
}

// TestWaitsAreBounded: who posts WAITs and reads no answers makes the daemon do no more than it may.
func TestWaitsAreBounded(t *testing.T) {
	l := defaultLimits
	l.waits = 100
	h := listenHostile(t, l)
	before := runtime.NumGoroutine()
	p := h.dial()
	id, e, text := p.attach()
	if e != 0 {
		t.Fatal(text)
	}
	sent := p.flood(header{op: opWait, attachment: id, arg: [4]uint64{5}})
	if n := runtime.NumGoroutine() - before; n > l.waits+50 {
		t.Errorf("%d goroutines for %d WAITs", n, sent)
	}
	if got, text := p.answer(); got.errno != unix.EAGAIN || !strings.Contains(text, "more than 100 WAITs of one user at once") {
		t.Errorf("one WAIT too many: %v, %q", got.errno, text)
	}
	other := h.dial() // of the same user: it may do all but wait
	if _, e, text := other.attach(); e != 0 {
		t.Errorf("attach of another program: %s", text)
	}
}

// TestConnectionsAndAttachmentsAreBounded: who passes a bound is told in words which, and may go on when
// something has ended.
func TestConnectionsAndAttachmentsAreBounded(t *testing.T) {
	l := defaultLimits
	l.conns, l.attachments = 8, 10
	h := listenHostile(t, l)
	var all []testProgram
	for range l.conns {
		p := h.dial()
		if _, e, text := p.attach(); e != 0 {
			t.Fatal(text)
		}
		all = append(all, p)
	}
	if _, e, text := h.dial().attach(); e != unix.EMFILE || !strings.Contains(text, "more than 8 connections of one user") {
		t.Errorf("one connection too many: %v, %q", e, text)
	}
	for range l.attachments - l.conns {
		if _, e, text := all[0].attach(); e != 0 {
			t.Fatal(text)
		}
	}
	id, e, text := all[0].attach()
	if e != unix.EMFILE || !strings.Contains(text, "more than 10 attachments of one user") {
		t.Errorf("one attachment too many: %v, %d, %q", e, id, text)
	}
	all[1].Close()
	for end := time.Now().Add(time.Minute); ; runtime.Gosched() {
		if _, e, text = all[0].attach(); e == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("an attachment has ended, but: %s", text)
		}
	}
}
