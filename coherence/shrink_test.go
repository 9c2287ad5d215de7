package coherence

import (
	"bytes"
	"context"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestWritePastAShrunkEnd: a kernel that has not heard of a smaller size
// delivers stores past it. They are dropped, whatever they start at.
func TestWritePastAShrunkEnd(t *testing.T) {
	for _, c := range []struct {
		name string
		size int64 // after the shrink
		off  int64
		data string
		kept int // bytes of data that are within the area
	}{
		{"straddling", 100, 98, "hello", 2},
		{"at the end", 100, 100, "hello", 0},
		{"in the last page", 100, 200, "hello", 0},
		{"in a later page", 100, 5000, "hello", 0},
		{"over two later pages", 100, 2*dsm.PageSize - 2, "hello", 0},
		{"in an extent cut off", 100, dsm.ExtentSize + 5000, "hello", 0},
		{"in an extent cut off, at its start", dsm.ExtentSize, dsm.ExtentSize, "hello", 0},
		{"over the end of the last extent", dsm.ExtentSize, dsm.ExtentSize - 2, "hello", 2},
		{"in an empty area", 0, 5000, "hello", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSim(t, 1, 1, dsm.Inode{Size: 2 * dsm.ExtentSize})
			n := s.nodes[0]
			n.open(true)
			s.resize(c.size)
			s.catchUp()
			if err := n.area.WriteAt(context.Background(), []byte(c.data), c.off); err != nil {
				t.Fatal(err)
			}
			publish(n)
			s.resize(2 * dsm.ExtentSize)
			s.catchUp()
			s.rested()
			got := make([]byte, len(c.data))
			n.area.mu.mem.ReadWorking(got, c.off)
			want := make([]byte, len(c.data))
			copy(want, c.data[:c.kept])
			if !bytes.Equal(got, want) {
				t.Errorf("after growing again the area has %q, want %q", got, want)
			}
		})
	}
}
