package coherence

import (
	"context"
	"encoding/binary"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestSyncThatIsGivenUp: a sync has brought an update in, and is given up before the kernel has been told. From when it has returned the
// page cache does not change: the program may be between a load and a store. The next sync tells the kernel.
func TestSyncThatIsGivenUp(t *testing.T) {
	for name, taken := range map[string]bool{"before the notice": false, "after it": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, home, replica := pairOf(t, sums(1, dsm.ApplySync))
				k := replica.kernel
				k.fault(0)
				put(t, home, 5)
				publish(home)
				s.drain()
				sync := func(ctx context.Context) error { return replica.area.Sync(ctx, true) }
				q := replica.ask("sync", sync, nil)
				s.drain()
				want(t, replica, 5)
				if taken {
					k.takeNotice()
				}
				q.giveUp()
				s.rest()
				if taken == q.over.Load() {
					t.Errorf("it has returned: %v", q.over.Load())
				}
				k.finishNotices()
				s.rest()
				c := k.fault(0)
				loaded := binary.LittleEndian.Uint32(c.data[:]) // "w[0] += 1", with what may come in between
				k.finishNotices()
				s.drain()
				if c = k.fault(0); c == nil {
					t.Fatal("the page is gone")
				}
				binary.LittleEndian.PutUint32(c.data[:], loaded+1)
				c.dirty = true
				if v := map[bool]uint32{false: 0, true: 5}[taken]; loaded != v {
					t.Errorf("the program has loaded %d, want %d", loaded, v)
				}
				k.harvest(1)
				replica.ask("sync", sync, nil)
				s.calm()
				want(t, replica, 6)
				if got := binary.LittleEndian.Uint32(k.fault(0).data[:]); got != 6 {
					t.Errorf("after a sync the program sees %d, want 6", got)
				}
			})
		})
	}
}
