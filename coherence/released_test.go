package coherence

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestReleasedStaysReleased: of a program that has closed the file no store comes any more. That is so also when another handle for writing ends, which was Released or was not, as one that could not be opened.
func TestReleasedStaysReleased(t *testing.T) {
	for _, how := range []string{"closed", "released first"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newHomed(t, 2, sums(1, dsm.ApplySync))
				n := s.nodes[1]
				s.openAll()
				s.calm()
				n.area.Released()
				n.ask("open to write", func(ctx context.Context) error {
					_, err := n.node.Open(ctx, simArea, true)
					return err
				}, nil)
				s.calm()
				switch how {
				case "closed":
					n.area.Close(true)
				case "released first":
					n.area.Released()
					n.area.CloseReleased()
				}
				s.calm()
				n.area.mu.Lock()
				storers, writers := n.area.storersLocked(), n.area.mu.replica.writers
				n.area.mu.Unlock()
				if storers != 0 || writers != 1 {
					t.Errorf("%d of %d handles may store", storers, writers)
				}
				n.area.CloseReleased()
				n.writer = nil
				if n.area.storersLocked() != 0 {
					t.Error("no handle is left, and some may store")
				}
			})
		})
	}
}
