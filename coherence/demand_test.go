package coherence

import (
	"bytes"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestKeepPages: a node that ends takes nothing from programs that keep what they have
// mapped, however long it takes to leave the cluster.
func TestKeepPages(t *testing.T) {
	for _, ino := range []dsm.Inode{{Size: dsm.ExtentSize}, onDemand(dsm.Inode{Size: dsm.ExtentSize})} {
		t.Run(ino.Spec.Residency.String(), func(t *testing.T) {
			s := newSim(t, 1, 1, ino)
			n := s.nodes[0]
			n.open(true)
			for !n.here(0) {
				s.drain()
			}
			put(t, n, 5)
			publish(n)
			s.settle()
			want := bytes.Clone(n.area.mu.mem.Working(0))
			program, err := n.area.mu.mem.OpenWorking(false)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = program.Close() }() // only read
			n.node.KeepPages()
			n.area.step(func() {
				if gone := n.area.evict(0, dsm.AllPages, true); !gone.Empty() {
					t.Errorf("pages %x were evicted", gone)
				}
			})
			n.kernel.finishNotices()
			n.area.Close(true)
			n.area.Close(false)
			n.area.expire()
			s.drain()
			n.node.Close()
			got := make([]byte, len(want))
			if _, err := program.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
				t.Errorf("the program has %x, %v; want %x", got[:16], err, want[:16])
			}
		})
	}
}
