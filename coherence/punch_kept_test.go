package coherence

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// punchedAndKilled has a node punch a hole into pages that are full of 5, from within page 0 to within page 2, and its daemon be killed before that is published. sent says
// that it was sent by then.
func punchedAndKilled(t *testing.T, sent bool, f func(s *sim, home, n *simNode)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, home, n := heldBesideHome(t, dsm.Inode{Size: 4 * dsm.PageSize})
		if err := home.area.WriteAt(t.Context(), bytes.Repeat([]byte{5}, 4*dsm.PageSize), 0); err != nil {
			t.Fatal(err)
		}
		publish(home)
		s.calm()
		if _, err := n.area.Punch(t.Context(), 100, 2*dsm.PageSize); err != nil {
			t.Fatal(err)
		}
		if sent {
			publish(n)
		}
		n.kernel.reading[0] = &reading{valid: dsm.PageSize} // so notices of the page wait
		n.follow()
		f(s, home, n)
	})
}

// TestHoleOutlivesTheDaemon: a hole that was not published when the daemon was killed is published by the next one.
func TestHoleOutlivesTheDaemon(t *testing.T) {
	for _, sent := range []bool{false, true} {
		punchedAndKilled(t, sent, func(s *sim, home, n *simNode) {
			delete(n.kernel.reading, 0)
			s.calm()
			publish(n)
			s.calm()
			want := bytes.Repeat([]byte{5}, 4*dsm.PageSize)
			clear(want[100:][:2*dsm.PageSize])
			for _, o := range s.nodes {
				for p := range dsm.PageIndex(4) {
					if !bytes.Equal(o.area.mu.mem.Working(p), want[p*dsm.PageSize:][:dsm.PageSize]) {
						t.Errorf("sent %v: node %d has page %d without the hole", sent, o.i, p)
					}
				}
			}
		})
	}
}

// TestReadOfAHoleAfterAKill: a READ of the page in which a hole begins waits when the daemon is killed. Another node stores to the hole. The kernel clears the hole in what the next daemon
// answers: that is no store, and the page shows what the other node has stored in the end.
func TestReadOfAHoleAfterAKill(t *testing.T) {
	punchedAndKilled(t, true, func(s *sim, home, n *simNode) {
		s.calm()
		if err := home.area.WriteAt(t.Context(), []byte{6}, 200); err != nil {
			t.Fatal(err)
		}
		publish(home)
		s.calm()
		b := make([]byte, dsm.PageSize)
		read := func() {
			t.Helper()
			if _, err := n.area.ReadAt(t.Context(), b, 0); err != nil {
				t.Fatal(err)
			}
		}
		read()
		clear(b[100:]) // by the kernel
		b[50] = 9
		if err := n.area.WriteBack(t.Context(), b, 0); err != nil {
			t.Fatal(err)
		}
		publish(n)
		s.calm()
		for _, o := range s.nodes {
			if w := o.area.mu.mem.Working(0); w[50] != 9 || w[99] != 5 || w[100] != 0 || w[200] != 6 {
				t.Errorf("node %d has %d, %d, %d and %d", o.i, w[50], w[99], w[100], w[200])
			}
		}
		if read(); b[200] != 0 {
			t.Error("a READ brings what the kernel may still clear")
		}
		delete(n.kernel.reading, 0)
		n.ask("acquire", func(ctx context.Context) error { return n.area.Acquire(ctx, false) }, nil)
		s.calm()
		if read(); b[50] != 9 || b[200] != 6 {
			t.Errorf("after an acquire a READ brings %d and %d", b[50], b[200])
		}
	})
}
