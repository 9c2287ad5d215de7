package catalog

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// counting is a Caller that counts questions for the read index.
type counting struct {
	Caller
	asked atomic.Int64
}

func (c *counting) Call(ctx context.Context, addr string, req any) (any, error) {
	if _, is := req.(*wire.ReadIndex); is {
		c.asked.Add(1)
	}
	return c.Caller.Call(ctx, addr, req)
}

// TestReadsUnderALeaseAskNobody reads many times on a node that does not lead, while nobody
// changes anything, and then while it makes all changes itself.
func TestReadsUnderALeaseAskNobody(t *testing.T) {
	nodes := cluster(t, 3)
	n := follower(t, nodes)
	c := &counting{Caller: n.net}
	n.via.use(c)
	ctx := patient(t)
	for _, what := range []struct {
		name   string
		change func(i int)
	}{
		{"reads", func(int) {}},
		{"own changes", func(i int) {
			_, err := n.Create(ctx, dsm.RootIno, fmt.Sprint(i), file, true)
			ok(t, err)
		}},
	} {
		before, began := c.asked.Load(), time.Now()
		const reads = 2000
		for i := range reads {
			if i%10 == 0 {
				what.change(i)
			}
			_, err := n.Getattr(ctx, dsm.RootIno)
			ok(t, err)
		}
		// One for each renewal, and one more where the lease ran out before it.
		most := 4 + 4*int64(time.Since(began)/leaseTime)
		if asked := c.asked.Load() - before; asked > most {
			t.Errorf("%s: %d reads asked the leader %d times in %v", what.name, reads, asked, time.Since(began))
		}
	}
}

// follower returns a node that does not lead.
func follower(t testing.TB, nodes []*node) *node {
	lead := leaderOf(t, nodes)
	for _, n := range nodes {
		if n != lead {
			return n
		}
	}
	return nil
}

// TestChangesWaitForWhatTheKernelKeeps has a node promise its kernel that what it read stays
// true: no other node's change is made before that is over.
func TestChangesWaitForWhatTheKernelKeeps(t *testing.T) {
	nodes := cluster(t, 3)
	ctx := patient(t)
	for _, reader := range nodes {
		for _, writer := range nodes {
			if reader == writer {
				continue
			}
			for reader.Keep() == 0 { // by the first read at the latest, unless a change has just waited
				_, err := reader.Getattr(ctx, dsm.RootIno)
				ok(t, err)
			}
			promised, promise := time.Now(), reader.Keep()
			name := fmt.Sprint(reader.self.ID, writer.self.ID)
			if _, err := reader.Lookup(ctx, dsm.RootIno, name); !errs.Is(err, errs.NotExist) {
				t.Fatal(err)
			}
			if promise == 0 {
				t.Log("recalled by the change of somebody else")
				continue
			}
			_, err := writer.Create(ctx, dsm.RootIno, name, file, false)
			ok(t, err)
			if after := time.Since(promised); after < promise {
				t.Errorf("a change took place %v after another node was promised %v without", after, promise)
			}
			if reader.Keep() != 0 {
				t.Error("the kernel may keep things at once after a change had to wait")
			}
			if _, err := reader.Lookup(ctx, dsm.RootIno, name); err != nil {
				t.Errorf("a change of another node is not seen: %v", err)
			}
		}
	}
}

// TestSilentNodeWithALease stops a node that has a lease without a word: changes wait until it has run out.
func TestSilentNodeWithALease(t *testing.T) {
	nodes := cluster(t, 3)
	lead, n := leaderOf(t, nodes), follower(t, nodes)
	ctx := patient(t)
	for {
		if _, valid, _ := n.lease.valid(); valid {
			break
		}
		_, err := n.Getattr(ctx, dsm.RootIno)
		ok(t, err)
	}
	n.lease.mu.Lock()
	until := n.lease.mu.until
	n.lease.mu.Unlock()
	n.stop()
	_, err := lead.Create(ctx, dsm.RootIno, "f", file, false)
	ok(t, err)
	if now := time.Now(); now.Before(until) {
		t.Errorf("a change took place %v before the lease of a silent node ended", until.Sub(now))
	}
}

// TestGivenUpChange gives a change up that the leader may still make: until it cannot happen
// any more, reads do not rest on the lease.
func TestGivenUpChange(t *testing.T) {
	nodes := cluster(t, 3)
	n := follower(t, nodes)
	ctx := patient(t)
	_, err := n.Getattr(ctx, dsm.RootIno)
	ok(t, err)
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := n.Create(gone, dsm.RootIno, "f", file, false); err == nil {
		t.Skip("it was made before it was given up")
	}
	if !n.calls.undecided() || n.leased(ctx) || n.Keep() != 0 {
		t.Error("a change that was given up may still happen, and reads rest on the lease")
	}
	// A command of the node itself that began before may still be waited for: then the first later
	// change says nothing yet.
	for i := 0; n.calls.undecided(); i++ {
		if _, err := n.Create(ctx, dsm.RootIno, fmt.Sprint("later", i), file, false); err != nil {
			t.Fatalf("%d later changes were made, and the one before them still counts as possible: %v", i, err)
		}
	}
}

// TestNoReadIsOlderThanOneBefore has one node change a size again and again while others read it, one
// after the other and on every node in turn: what one has seen the next sees, too.
func TestNoReadIsOlderThanOneBefore(t *testing.T) {
	nodes := cluster(t, 3)
	ctx := patient(t)
	for _, writer := range nodes {
		in, err := writer.Create(ctx, dsm.RootIno, writer.self.Name, file, false)
		ok(t, err)
		const changes, readers = 300, 2
		var tasks sync.WaitGroup
		done := make(chan struct{})
		tasks.Go(func() {
			defer close(done)
			for i := range changes {
				if _, err := writer.SetAttr(ctx, in.Ino, dsm.SetAttr{Size: ptr(int64(i + 1))}); err != nil {
					t.Error(err)
					return
				}
			}
		})
		for range readers {
			tasks.Go(func() {
				var seen int64
				for i := 0; ; i++ {
					select {
					case <-done:
						return
					default:
					}
					got, err := nodes[i%3].Getattr(ctx, in.Ino)
					if err != nil {
						t.Error(err)
						return
					}
					if got.Size < seen {
						t.Errorf("%s writes: size %d on %s after %d elsewhere", writer.self.Name, got.Size, nodes[i%3].self.Name, seen)
						return
					}
					seen = got.Size
				}
			})
		}
		tasks.Wait()
	}
}
