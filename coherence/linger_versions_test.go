package coherence

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestLeftIsPublishedWhole: what is left of a closed handle is published at once only if nobody may store meanwhile. Else half of what another program is storing would be a version.
func TestLeftIsPublishedWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, n := newBackedCase(t)
		released := func() (published bool) {
			t.Helper()
			n.area.Released()
			err := c.does(n, func(ctx context.Context) (err error) {
				published, err = n.area.PublishReleased(ctx)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			n.area.Close(true)
			return published
		}
		newest := func() string {
			v := n.area.Versions()
			newest := v[len(v)-1].Version
			return n.byteOf(newest, 0) + n.byteOf(newest, dsm.PageSize)
		}
		if err := c.opens(n); err != nil {
			t.Fatal(err)
		}
		c.stores(n, 0, 7)
		if released() {
			t.Error("what a program was storing is published when another one has closed the file")
		}
		if got := newest(); got != "10" {
			t.Errorf("the newest version has %s, want 10", got)
		}
		c.publishes(n, dsm.PageSize, 7)
		if got := newest(); got != "77" {
			t.Errorf("the newest version has %s, want 77", got)
		}
		c.stores(n, 0, 8)
		c.stores(n, dsm.PageSize, 8)
		if !released() {
			t.Error("what is left is not published, and nobody else has the file open to store")
		}
		if got := newest(); got != "88" {
			t.Errorf("the newest version has %s, want 88", got)
		}
	})
}

// TestOpenWaitsForWhatIsLeft: a program that opens a file may store only when what was left of it is published.
func TestOpenWaitsForWhatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newOwnCase(t, 1, dsm.Spec{})
		n := c.nodes[0]
		if err := c.opens(n); err != nil {
			t.Fatal(err)
		}
		n.area.Released()
		n.area.step(func() { n.area.mu.whole.serial = true }) // another publish goes on
		var published, opened atomic.Bool
		for range 256 { // a program that ends has had so many descriptors
			n.ask("call", func(ctx context.Context) error {
				is, err := n.area.PublishReleased(ctx)
				published.Store(is)
				return err
			}, nil)
		}
		synctest.Wait()
		n.ask("call", func(ctx context.Context) error {
			_, err := n.node.Open(ctx, simArea, true)
			opened.Store(true)
			return err
		}, nil)
		synctest.Wait()
		if published.Load() || opened.Load() {
			t.Errorf("published %v, opened %v, want neither", published.Load(), opened.Load())
		}
		n.area.step(n.area.versionPublishedLocked)
		c.calm()
		if !published.Load() || !opened.Load() {
			t.Errorf("published %v, opened %v, want both", published.Load(), opened.Load())
		}
	})
}

// TestSyncsOfReadersPublishNothing: a program that only reads, and calls msync or fsync for what others have published, does not publish half of what a program of the node is storing. What is left it does publish.
func TestSyncsOfReadersPublishNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, n := newBackedCase(t)
		syncs := func(storing bool, versions int) {
			t.Helper()
			if err := c.does(n, func(ctx context.Context) error { return n.area.Sync(ctx, storing) }); err != nil {
				t.Fatal(err)
			}
			if v := n.area.Versions(); n.byteOf(v[len(v)-1].Version, 0) != fmt.Sprint(versions) {
				t.Errorf("storing %v: the newest version has %s, want %d", storing, n.byteOf(v[len(v)-1].Version, 0), versions)
			}
		}
		c.stores(n, 0, 2)
		syncs(false, 1)
		syncs(true, 2)
		c.stores(n, 0, 3)
		n.area.Released()
		syncs(false, 3)
		n.area.Close(true)
	})
}

// TestLeftIsPublishedWhileProgramsRead: what could not be published at a close is published later, also if programs of the node have the area open to read all the time.
func TestLeftIsPublishedWhileProgramsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, n := newBackedCase(t)
		n.node.cfg.Linger = 10 * time.Second
		c.stores(n, 0, 2)
		n.area.Released()
		n.area.Close(true)
		time.Sleep(11 * time.Second)
		c.calm()
		if v := n.area.Versions(); n.byteOf(v[len(v)-1].Version, 0) != "2" {
			t.Errorf("the newest version has %s, want 2", n.byteOf(v[len(v)-1].Version, 0))
		}
	})
}

// TestKilledProgramPublishesNothing: what a program has stored since its last publish is taken back when it is killed, and kept as conflicts. If another program may store, it is not known whose stores are whose.
func TestKilledProgramPublishesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, n := newBackedCase(t)
		newest := func() string {
			v := n.area.Versions()
			return n.byteOf(v[len(v)-1].Version, 0) + n.byteOf(v[len(v)-1].Version, dsm.PageSize)
		}
		dies := func() {
			t.Helper()
			n.area.Killed()
			if err := c.does(n, func(ctx context.Context) error {
				_, err := n.area.PublishReleased(ctx)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			n.area.Close(true)
			c.calm()
		}
		if err := c.opens(n); err != nil {
			t.Fatal(err)
		}
		c.stores(n, 0, 7)
		dies() // another program has it open
		c.publishes(n, dsm.PageSize, 7)
		if got := newest(); got != "77" {
			t.Errorf("the newest version has %s, want 77", got)
		}
		c.stores(n, 0, 8)
		dies()
		n.area.node.cfg.Linger = time.Second
		n.openReader()
		c.calm()
		if got := newest(); got != "77" {
			t.Errorf("the newest version has %s, want 77: a program was killed in the midst of the next", got)
		}
		if got := n.area.mu.mem.Working(0)[0]; got != 7 {
			t.Errorf("programs see %d, want 7", got)
		}
		if !n.keeps(0) {
			t.Error("what was stored is not kept as a conflict")
		}
		if err := c.opens(n); err != nil {
			t.Fatal(err)
		}
		c.publishes(n, dsm.PageSize, 9)
		if got := newest(); got != "79" {
			t.Errorf("the newest version has %s, want 79", got)
		}
		c.stores(n, 0, 8)
		n.area.Killed() // and nobody has taken that back yet
		if err := c.opens(n); err != nil {
			t.Fatal(err)
		}
		c.publishes(n, dsm.PageSize, 10)
		if got := newest(); got != "710" {
			t.Errorf("the newest version has %s, want 710: the next program has opened it before", got)
		}
	})
}
