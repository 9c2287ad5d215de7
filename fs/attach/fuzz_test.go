package attach

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/groups"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/head"
	"github.com/dsmfs/dsmfs/internal/uffd"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// yesMount is a filesystem that does whatever a program asks for.
type yesMount struct{ makingMount }

func (m *yesMount) Create(_ context.Context, _ *dsm.Credentials, _ dsm.Inode, _ string, n dsm.Inode, settings []dsm.Setting) (dsm.Inode, error) {
	_, n, err := m.CreateUnnamed(context.Background(), nil, dsm.Inode{}, n, settings)
	return n, err
}

func (m *yesMount) CreateUnnamed(ctx context.Context, who *dsm.Credentials, dir, n dsm.Inode, settings []dsm.Setting) (Area, dsm.Inode, error) {
	_, n, err := m.makingMount.CreateUnnamed(ctx, who, dir, n, settings)
	return yesArea{}, n, err
}

func (m *yesMount) Lookup(ctx context.Context, dir dsm.Ino, _ string) (dsm.Inode, error) {
	return m.openMount.Lookup(ctx, dir, "")
}
func (*yesMount) IsOpen(dsm.Ino) bool                                 { return true }
func (*yesMount) Rounds(dsm.Ino) groups.Area                          { return yesArea{} }
func (*yesMount) Open(context.Context, dsm.Ino, bool) (Area, error)   { return yesArea{}, nil }
func (*yesMount) CheckSetting(key string) error                       { _, err := dsm.Spec{}.With(key, "auto"); return err }
func (yesArea) Contribute(context.Context, dsm.RoundID) error         { return nil }
func (yesArea) AbandonRound(dsm.RoundID)                              {}
func (yesArea) Direct() bool                                          { return false }
func (yesArea) MayAccumulate(context.Context, int64, int64) error     { return nil }
func (yesArea) Stats() string                                         { return "" }
func (yesArea) Publish(context.Context) error                         { return nil }
func (yesArea) BeginFault(int64, func()) bool                         { return false }
func (yesArea) Fault(context.Context, int64, func()) error            { return errs.E(errs.NotExist, "fault", "") }
func (yesAttachment) Track(Source, int64, int64) (stop func())        { return func() {} }
func (yesAttachment) Sync(context.Context) error                      { return nil }
func (yesAttachment) Acquire(context.Context) error                   { return nil }
func (yesAttachment) Expect(ctx context.Context, v dsm.Version) error { return nil }
func (yesAttachment) PublishReleased(context.Context) error           { return nil }
func (yesAttachment) Own() bool                                       { return false }
func (yesAttachment) Watch(*head.Line)                                {}
func (yesAttachment) Unwatch(*head.Line)                              {}

type yesArea struct{ idleArea }

func (yesArea) Accumulate(context.Context, dsm.RoundID, int64, int64, func(at, size int64) (*wire.Shared, error)) error {
	return nil
}
func (yesArea) FinishRound(context.Context, dsm.RoundID, []dsm.NodeID, int) error {
	return nil
}

func (yesArea) Grown(context.Context, int64, int64) error { return nil }
func (yesArea) Resize(_ context.Context, size int64) (dsm.Inode, error) {
	return dsm.Inode{Ino: 7, Kind: dsm.KindFile, Perm: 0o666, Size: size}, nil
}

func (yesArea) Attach(ctx context.Context, pid int, write bool) (Attachment, *os.File, error) {
	_, f, err := idleArea{}.Attach(ctx, pid, write)
	return yesAttachment{}, f, err
}

type yesAttachment struct{ idleAttachment }

func (yesAttachment) FinishRound(context.Context, dsm.RoundID, []dsm.NodeID, int) error { return nil }

type nobody struct{}

func (nobody) Send(dsm.NodeID, any, [][]byte, bool) {}

// FuzzRequests gives the daemon packets of a program. The first two bytes of each say how long it is. Whatever they are, the daemon answers what it
// has taken, another program attaches, and nobody is remembered when all have gone.
func FuzzRequests(f *testing.F) {
	packet := func(q header, payload string) []byte {
		b := q.encode([]byte(payload))
		return append([]byte{byte(len(b)), byte(len(b) >> 8)}, b...)
	}
	attached := packet(header{op: opAttach, arg: [4]uint64{accessWrite}}, "/w")
	f.Add(attached[:40])
	for o := opAttach; o <= opResume+1; o++ {
		f.Add(append(attached, packet(header{op: o, tag: 2, attachment: 1, arg: [4]uint64{1, 4096, 4096}}, "/w\nmerge sum\n")...))
	}
	join := packet(header{op: opJoin, arg: [4]uint64{1, 5}}, "/w")
	for o := opLeave; o <= opAccumulate; o++ {
		f.Add(append(join, packet(header{op: o, tag: 2, attachment: 1, arg: [4]uint64{1, 1}}, "\x08\x00\x00\x00\x00\x00\x00\x00")...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h := &hostile{t: t, socket: filepath.Join(t.TempDir(), "attach")}
		g := groups.NewNode(groups.Config{Self: 1, Sender: nobody{}, Home: func(*dsm.View, dsm.AreaID) dsm.NodeID { return 1 }})
		g.ViewChanged(&dsm.View{Epoch: 1, Members: []dsm.Member{{ID: 1}}})
		defer g.Close()
		m := &yesMount{}
		s, err := New(Config{Mount: m, Groups: g, Log: slog.New(slog.DiscardHandler), Socket: h.socket, Tracking: uffd.Compare, Timeout: time.Minute, Life: t.Context()})
		if err != nil {
			t.Fatal(err)
		}
		s.Serve()
		defer func() {
			s.Close()
			m.background.Wait()
			if n := len(s.mu.users); n != 0 {
				t.Errorf("%d users are remembered when all have gone", n)
			}
		}()
		p := h.dial()
		heard := make(chan error, 1)
		go func() { heard <- p.hear() }()
		for i := 0; i < 32 && len(b) >= 2; i++ {
			n := min(int(b[0])|int(b[1])<<8, len(b)-2)
			if _, err := p.Write(b[2:][:n]); err != nil {
				break // the daemon has closed the connection
			}
			b = b[2+n:]
		}
		_ = p.CloseWrite()
		if err := <-heard; err != nil {
			t.Error(err)
		}
		if _, e, text := h.dial().attach(); e != 0 {
			t.Errorf("another program attaches: %v %s", e, text)
		}
	})
}

// hear reads answers until the daemon closes the connection.
func (p testProgram) hear() error {
	for {
		packet, fds, err := receive(p.UnixConn, make([]byte, headSize+maxPayload))
		closeAll(fds)
		if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) || errors.Is(err, unix.ECONNRESET) || packet == nil {
			return nil
		}
		if _, _, err := decode(packet); err != nil {
			return err
		}
	}
}
