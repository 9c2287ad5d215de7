package coherence

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestDropsOutliveTheMemory: the kernel is being told to drop pages while the area gives its memory back and gets it anew. The page
// cache may lose them until that ends, also of the new memory.
func TestDropsOutliveTheMemory(t *testing.T) {
	for _, before := range []bool{true, false} { // whether it begins while the area has memory
		synctest.Test(t, func(t *testing.T) {
			s, _, n := pair(t, dsm.ApplyArrival)
			n.node.cfg.Linger = time.Second
			var ended func()
			if before {
				ended = n.area.KernelDrops()
			}
			n.leaveAll()
			s.drain()
			time.Sleep(time.Minute)
			synctest.Wait()
			s.drain()
			if n.area.mu.mem != nil {
				t.Fatal("the area has memory that nobody uses")
			}
			if !before {
				ended = n.area.KernelDrops()
			}
			n.startOpen(true)
			s.drain()
			write := func(b byte) (sure bool) {
				n.area.mu.cached.Read(0, make([]byte, dsm.PageSize))
				if err := n.area.write(t.Context(), []byte{b}, 0, writtenThrough); err != nil {
					t.Fatal(err)
				}
				return n.area.mu.cached.Sure(0, 1)
			}
			n.area.mu.cached.Read(0, make([]byte, dsm.PageSize))
			n.area.mu.cached.EndWrite()
			if write(5) {
				t.Error("sure of a page that may have been dropped since the write(2) before")
			}
			ended()
			for x, ok := n.area.NextNotice(); ok; x, ok = n.area.NextNotice() {
				n.area.NoticeDone(x)
			}
			n.area.mu.cached.EndWrite()
			if !write(6) {
				t.Error("unsure of a page that nothing can have dropped")
			}
			n.area.Close(true)
		})
	}
}
