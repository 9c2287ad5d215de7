package main

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestLeftovers: memory is given back once after many files were removed, when no more are.
func TestLeftovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var freed []time.Duration
		began := time.Now()
		l := &leftovers{free: func() { freed = append(freed, time.Since(began)) }}
		remove := func(n int) {
			for range n {
				l.add()
			}
		}
		remove(manyRemoved - 1)
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(freed) != 0 {
			t.Fatalf("after few files: %v", freed)
		}
		for range 10 {
			remove(manyRemoved)
			time.Sleep(removeQuiet / 2)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(freed) != 1 || freed[0] < time.Minute+5*removeQuiet || freed[0] > time.Minute+7*removeQuiet {
			t.Fatalf("freed at %v, want once, when it was quiet", freed)
		}
		remove(manyRemoved)
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(freed) != 2 {
			t.Errorf("the next time: %v", freed)
		}
	})
}
