package attach

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/groups"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/uffd"
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
	s, err := Listen(Config{
		Mount: m, Groups: n, Log: slog.New(slog.DiscardHandler), Socket: h.socket, Tracking: uffd.Compare, Timeout: time.Minute, Life: t.Context(),
	})
	if err != nil {
		t.Fatal(err)
	}
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
