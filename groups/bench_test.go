package groups

import (
	"testing"
)

// BenchmarkBarrier is a barrier of the largest group, with all members on one node and the coordinator on another.
func BenchmarkBarrier(b *testing.B) {
	c := newCluster(b, 2)
	on := make([]int, MaxSize)
	for i := range on {
		on[i] = 1
	}
	members := c.join(MaxSize, on...)
	done := make(chan error, MaxSize)
	number := uint64(0)
	for b.Loop() {
		number++
		for _, m := range members {
			if err := m.Arrive(number, func(_ Result, err error) { done <- err }); err != nil {
				b.Fatal(err)
			}
		}
		for range members {
			if err := <-done; err != nil {
				b.Fatal(err)
			}
		}
	}
}
