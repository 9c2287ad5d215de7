package attach

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/groups"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/head"
)

// readableMount is a filesystem of files of root, which all others may only read.
type readableMount struct{ yesMount }

func (*readableMount) Getattr(_ context.Context, ino dsm.Ino) (dsm.Inode, error) {
	return fileOfRoot(ino, 0o755), nil
}

func (m *readableMount) Lookup(ctx context.Context, _ dsm.Ino, _ string) (dsm.Inode, error) {
	return m.Getattr(ctx, dsm.RootIno+1)
}

// connOf is a connection of a program of the user.
func connOf(t *testing.T, m Mount, uid uint32) *conn {
	s := &Server{cfg: Config{Mount: m, Groups: noGroups{}, Timeout: time.Minute}, limits: defaultLimits, log: slog.New(slog.DiscardHandler)}
	s.mu.Init("attach.Server")
	s.mu.users, s.mu.conns = make(map[uint32]*user), make(map[*conn]struct{})
	a := &conn{s: s, who: program{dsm.Credentials{UID: uid, GID: uid}, os.Getpid(), 0}, ctx: t.Context()}
	a.mu.Init("attach.conn")
	a.mu.attachments, a.mu.members = make(map[uint64]*attachment), make(map[uint64]*membership)
	a.user = s.userLocked(uid)
	s.mu.conns[a] = struct{}{}
	return a
}

// TestWhoMayOnlyRead gets memory to read, and nothing by which it could store.
func TestWhoMayOnlyRead(t *testing.T) {
	a := connOf(t, &readableMount{}, 1000)
	refused := func(what string, err error) {
		t.Helper()
		if errnoOf(err) != unix.EACCES {
			t.Errorf("%s: %v, want EACCES", what, err)
		}
	}
	_, err := a.attach(t.Context(), &request{payload: "/w", header: header{arg: [4]uint64{accessWrite}}})
	refused("attach for writing", err)
	_, err = a.join(t.Context(), &request{payload: "/w", header: header{arg: [4]uint64{1}}})
	refused("join", err)
	refused("round", a.mayRound(t.Context(), dsm.RootIno+1))

	r, err := a.attach(t.Context(), &request{payload: "/w", header: header{arg: [4]uint64{accessRead}}})
	if err != nil {
		t.Fatal(err)
	}
	_ = r.file.Close() // nothing was written to it
	x := a.mu.attachments[r.attachment]
	_, err = x.track(t.Context(), &request{header: header{arg: [4]uint64{dsm.PageSize, dsm.PageSize, 0}}})
	refused("track", err)
	refused("accumulate", x.mayAdd(t.Context()))
	if x.adds.Load() {
		t.Error("what it accumulates is taken all the same")
	}
	x.conn = connOf(t, &readableMount{}, 0)
	if err := x.mayAdd(t.Context()); err != nil || !x.adds.Load() {
		t.Errorf("who may write the file cannot accumulate: %v", err)
	}
}

// countingAttachment counts publishes.
type countingAttachment struct {
	yesAttachment
	published *int
}

func (a countingAttachment) PublishReleased(context.Context) error { *a.published++; return nil }

// TestLastStoresArePublished: when an attachment for writing ends, also if its program has died.
func TestLastStoresArePublished(t *testing.T) {
	for _, write := range []bool{false, true} {
		m := &readableMount{}
		a := connOf(t, m, 0)
		published := 0
		x := &attachment{conn: a, area: yesArea{}, at: countingAttachment{published: &published}, write: write}
		x.mu.Init("attach.attachment")
		x.overdue.mu.Init("attach.overdue")
		x.end()
		m.background.Wait()
		if published > 0 != write {
			t.Errorf("for writing: %v: published %d times", write, published)
		}
	}
}

// TestWatchOfOneThatEnds: who asks to watch an area while the attachment ends is refused, and no line stays in use.
func TestWatchOfOneThatEnds(t *testing.T) {
	a := connOf(t, &readableMount{}, 0)
	a.s.keeper = head.NewKeeper()
	t.Cleanup(a.s.keeper.Close)
	x := &attachment{conn: a, file: 7, at: yesAttachment{}}
	x.mu.Init("attach.attachment")
	x.mu.ended = true
	if _, err := x.watch(); errnoOf(err) != unix.ENOTCONN {
		t.Errorf("%v, want ENOTCONN", err)
	}
	if n := len(a.user.heads.lines); n > 0 {
		t.Errorf("%d lines stay in use", n)
	}
	if err := a.user.heads.pages.Close(); err != nil {
		t.Error(err)
	}
}

// TestDescriptorsOfNoUse: a descriptor that no request takes is refused, with the connection: a program could have any number of them closed.
func TestDescriptorsOfNoUse(t *testing.T) {
	for _, op := range []op{opTrack, opAccumulate, opPublish} {
		h := listenHostile(t, defaultLimits)
		p := h.dial()
		id, e, text := p.attach()
		if e != 0 {
			t.Fatal(text)
		}
		null, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		q := header{op: op, attachment: id, arg: [4]uint64{dsm.PageSize, dsm.PageSize}}
		err = transmit(p.UnixConn, q.encode(nil), null)
		_ = null.Close() // nothing was written to it
		if err != nil {
			t.Fatal(err)
		}
		if got, text := p.answer(); got.errno != unix.EINVAL {
			t.Errorf("request %d: %v, %q", op, got.errno, text)
		}
		if _, _, err := receive(p.UnixConn, make([]byte, headSize)); err == nil {
			t.Errorf("request %d: the connection stays", op)
		}
	}
}

// noGroups lets nobody join.
type noGroups struct{}

func (noGroups) Join(context.Context, dsm.AreaID, int) (*groups.Member, error) {
	return nil, errs.E(errs.Unsupported, "join", "")
}
