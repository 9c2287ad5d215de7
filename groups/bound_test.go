package groups

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestRoundOfManyAreasIsBounded: few areas are put together at the same time, those of the lowest numbers first, so that nodes that name
// the same ones do not wait for each other.
func TestRoundOfManyAreasIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		areas := make(map[dsm.AreaID]Area)
		for id := range dsm.AreaID(512) {
			areas[id] = idArea{id: id}
		}
		var runs, later atomic.Int32
		release := make(chan struct{})
		over := make(chan error, 1)
		go func() {
			over <- each(t.Context(), time.Minute, areas, func(_ context.Context, a Area) error {
				if a.(idArea).id >= areasAtOnce {
					later.Add(1)
				}
				runs.Add(1)
				<-release
				return nil
			})
		}()
		synctest.Wait()
		if runs.Load() != areasAtOnce || later.Load() != 0 {
			t.Errorf("%d areas at once, %d of them not of the first", runs.Load(), later.Load())
		}
		close(release)
		if err := <-over; err != nil || runs.Load() != 512 {
			t.Errorf("%d areas: %v", runs.Load(), err)
		}
	})
}

type idArea struct {
	Area
	id dsm.AreaID
}
