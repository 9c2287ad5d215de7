package coherence

import (
	"bytes"
	"context"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// TestPublishIsLent: where a publish of the home's own node has all bytes of its pages, and the last store wins, subscribers get these bytes. No copy is made of what the home has.
func TestPublishIsLent(t *testing.T) {
	all := bytes.Repeat([]byte{7}, 3*dsm.PageSize)
	bytewise := dsm.Inode{Size: dsm.ExtentSize}
	for _, c := range []struct {
		what  string
		ino   dsm.Inode
		store []byte
		lent  bool
	}{
		{"all bytes", bytewise, all, true},
		{"all but one", bytewise, all[1:], false},
		{"a page of zeroes", bytewise, append(bytes.Clone(all), make([]byte, dsm.PageSize)...), false},
		{"sums", sumOf(dsm.DTypeI32, dsm.ApplyArrival), all, false},
	} {
		s := newHomed(t, 3, c.ino)
		home := s.nodes[0]
		s.openAll()
		s.drain()
		var data *wire.Shared
		for _, b := range [][]byte{bytes.Repeat([]byte{1}, len(c.store)), c.store} {
			if err := home.area.WriteAt(context.Background(), b, 0); err != nil {
				t.Fatal(err)
			}
			s.drain()
			home.area.step(func() {
				home.area.requestPublishLocked()
				data = home.area.extentLocked(0).pub.data
			})
			var sent []*wire.Shared
			for _, to := range []int{1, 2} {
				for _, f := range s.net[link{0, to}] {
					if _, ok := f.msg.(*wire.Push); ok {
						sent = append(sent, f.shared)
					}
				}
			}
			if len(sent) != 2 || sent[0] != sent[1] || b[0] == 7 && (sent[0] == data) != c.lent {
				t.Errorf("%s: pushes of %p, the publish has %p", c.what, sent, data)
			}
			s.drain()
		}
		for _, n := range s.nodes {
			for p := range dsm.PageIndex(4) {
				if !bytes.Equal(n.area.mu.mem.Working(p), home.area.mu.mem.Home(p)) || !bytes.Equal(n.area.mu.mem.Base(p), home.area.mu.mem.Home(p)) {
					t.Errorf("%s: page %d of node %d has %d", c.what, p, n.i, n.area.mu.mem.Working(p)[:4])
				}
			}
		}
		if home.area.mu.home.pushed != nil {
			t.Errorf("%s: copies are kept for nobody", c.what)
		}
	}
}
