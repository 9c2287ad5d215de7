package locks

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestSignsOfLifeWhileFilesCome: a node that locks a file more all the time shows signs of life as
// often as any other.
func TestSignsOfLifeWhileFilesCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newBench(t, 1)
		a := c.members[0]
		began := time.Now()
		for ino := dsm.Ino(1); time.Since(began) < 10*renewEvery; ino++ {
			a.must(ino, lock(a.owner(1), Write, 0, 9))
			<-time.After(renewEvery / 3)
		}
		if n := a.signs.Load(); n < 9 {
			t.Errorf("%d signs of life in %v", n, time.Since(began))
		}
	})
}
