package main

import (
	"testing"
	"time"
)

// TestPauses: a node that was evicted joins again at once, unless that was not long ago; then it waits longer and longer.
func TestPauses(t *testing.T) {
	pause := time.Duration(-1)
	for i, x := range []struct{ lasted, want time.Duration }{
		{0, 0}, {calm - 1, time.Second}, {0, 2 * time.Second}, {0, 4 * time.Second}, {calm, 0}, {calm / 2, time.Second},
	} {
		if pause = nextPause(pause, x.lasted); pause != x.want {
			t.Errorf("step %d: a pause of %v, want %v", i, pause, x.want)
		}
	}
	for range 10 {
		pause = nextPause(pause, 0)
	}
	if pause != mostWait {
		t.Errorf("the longest pause is %v, want %v", pause, mostWait)
	}
}
