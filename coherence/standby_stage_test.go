package coherence

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// TestStagedByAnotherHome: the home of a versioned area moves when a backup has some of a version, of which it never hears that it is whole. Nothing of that counts when the next home tells of a version.
func TestStagedByAnotherHome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newOwnCase(t, 4, dsm.Spec{})
		c.copies = 3
		c.changeView(c.assign)
		owner := c.nodes[0]
		if err := c.opens(owner); err != nil {
			t.Fatal(err)
		}
		c.publishes(owner, 9, 1)
		c.publishes(owner, dsm.PageSize+9, 1)
		c.calm()
		row := func() *dsm.SlotHome { return c.lastView().Row(c.lastView().Placed(simArea)) }
		backups := slices.Collect(row().InSync())
		if len(backups) < 2 {
			t.Fatalf("in sync are %v", backups)
		}
		backup := c.nodes[backups[0]-1]
		stamp := wire.Stamp{Area: simArea, Gen: backup.area.mu.ino.Gen, Rev: backup.area.mu.ino.Rev, Epoch: row().Epoch}
		backup.area.step(func() {
			v := backup.area.mu.standby.extents[0].version + 1
			backup.area.stageForStandbyLocked(&wire.ReplicatePages{Stamp: stamp, Version: v, Pages: dsm.Range(0, 1), Versions: []dsm.Version{v}}, make([]byte, dsm.PageSize))
		})
		next := c.nodes[backups[1]-1]
		owner.area.Close(true)
		if err := c.does(next, func(ctx context.Context) error { return next.node.Transfer(ctx, simArea, next.id) }); err != nil {
			t.Fatal(err)
		}
		if err := c.opens(next); err != nil {
			t.Fatal(err)
		}
		c.calm()
		if !slices.Contains(slices.Collect(row().InSync()), backup.id) {
			t.Fatal("it is no backup any more")
		}
		c.publishes(next, 2*dsm.PageSize+9, 1)
		c.calm()
		c.checkStandbys()
	})
}
