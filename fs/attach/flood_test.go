package attach

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/groups"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/uffd"
	"golang.org/x/sys/unix"
)

// alone is the network of a node that is the only one.
type alone struct{}

func (alone) Send(dsm.NodeID, any, [][]byte, bool) {}

// listenForGroups returns a program that may join groups on a node that is alone.
func listenForGroups(t *testing.T, m Mount) testProgram {
	t.Helper()
	n := groups.NewNode(groups.Config{Self: 1, Sender: alone{}, Home: func(*dsm.View, dsm.AreaID) dsm.NodeID { return 1 }})
	n.ViewChanged(&dsm.View{Epoch: 1, Members: []dsm.Member{{ID: 1}}})
	h := &hostile{t: t, socket: filepath.Join(t.TempDir(), "attach")}
	s, err := New(Config{
		Mount: m, Groups: n, Log: slog.New(slog.DiscardHandler), Socket: h.socket, Tracking: uffd.Compare, Timeout: time.Minute, Life: t.Context(),
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Serve()
	t.Cleanup(s.Close)
	return h.dial()
}

func (p testProgram) join() uint64 {
	p.t.Helper()
	r, text := p.call(header{op: opJoin, arg: [4]uint64{1}}, "/g")
	if r.errno != 0 {
		p.t.Fatal(text)
	}
	return r.attachment
}

// roundMount has areas that count the rounds to which they contribute, and delay them.
type roundMount struct {
	openMount
	area *roundTestArea
}

type roundTestArea struct {
	idleArea
	contributed atomic.Int32
	release     chan struct{}
}

func (m *roundMount) Open(context.Context, dsm.Ino, bool) (Area, error) { return m.area, nil }

func (a *roundTestArea) Attach(context.Context, int, bool) (Attachment, *os.File, error) {
	fd, err := unix.MemfdCreate("area", unix.MFD_CLOEXEC)
	return roundTestAttachment{}, os.NewFile(uintptr(fd), "area"), err
}

func (a *roundTestArea) Contribute(context.Context, dsm.RoundID) error {
	a.contributed.Add(1)
	<-a.release
	return nil
}

func (*roundTestArea) AbandonRound(dsm.RoundID) {}

type roundTestAttachment struct{ idleAttachment }

func (roundTestAttachment) FinishRound(context.Context, dsm.RoundID, []dsm.NodeID, int) error {
	return nil
}

// TestRoundsOfAMemberTakeTurns: a member that asks for the same round again and again contributes once, and may name an area once.
func TestRoundsOfAMemberTakeTurns(t *testing.T) {
	area := &roundTestArea{release: make(chan struct{})}
	p := listenForGroups(t, &roundMount{area: area})
	id := p.join()
	r, text := p.call(header{op: opAttach, arg: [4]uint64{accessWrite}}, "/w")
	if r.errno != 0 {
		t.Fatal(text)
	}
	one := string(binary.LittleEndian.AppendUint64(nil, r.arg[1]))
	if r, text := p.call(header{op: opRound, attachment: id, arg: [4]uint64{1}}, one+one); r.errno != unix.EINVAL || !strings.Contains(text, "twice") {
		t.Errorf("an area twice: %v, %q", r.errno, text)
	}
	const rounds = 50
	for range rounds {
		if err := p.post(header{op: opRound, attachment: id, arg: [4]uint64{1}}, one); err != nil {
			t.Fatal(err)
		}
	}
	if r, text := p.call(header{op: opCount, attachment: id}, "n"); r.errno != 0 { // all have been read
		t.Fatal(text)
	}
	close(area.release)
	for range rounds {
		if r, text := p.answer(); r.errno != 0 {
			t.Error(text)
		}
	}
	if n := area.contributed.Load(); n != 1 {
		t.Errorf("%d contributions for %d requests of one round", n, rounds)
	}
}

// TestBarriersWithoutReadersAreBounded: of a program that asks again for a barrier that is over, and reads no answers, no more
// requests are read.
func TestBarriersWithoutReadersAreBounded(t *testing.T) {
	p := listenForGroups(t, &openMount{})
	id := p.join()
	before := runtime.NumGoroutine()
	sent := 0
	for ; sent < 20000; sent++ {
		if err := p.SetWriteDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if err := p.post(header{op: opBarrier, tag: uint64(sent), attachment: id, arg: [4]uint64{1}}, ""); err != nil {
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal(err)
			}
			break // nobody reads on
		}
	}
	if n := runtime.NumGoroutine() - before; n > 50 {
		t.Errorf("%d goroutines for %d barriers that are over", n, sent)
	}
	for tag := range uint64(sent) {
		if r, text := p.answer(); r.errno != 0 || r.tag != tag || r.arg[0] != 1 {
			t.Fatalf("answer %d has tag %d and number %d: %s", tag, r.tag, r.arg[0], text)
		}
	}
}
