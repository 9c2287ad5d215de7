package main

import (
	"os"
	"runtime/debug"
)

const (
	// besideHeap is what of a node's margin is neither for Go's heap nor for pages: its child processes, what the kernel keeps for all of
	// them (6 MiB of it with 3000 files), and what of their code must stay in memory. Go's limit is a goal, which it passes by a few MiB while memory is asked for quickly.
	besideHeap = 24 << 20
	// leastHeap is what Go's heap may take in any case. With less a node would do little else than collect garbage.
	leastHeap = 32 << 20
)

// boundHeap bounds the garbage in Go's heap, so that all that a node takes stays within --memory and its margin (withMargin), and returns
// what is to be called when the bytes that pages take have changed: pages are not in Go's heap, and it may have what they leave. Without the
// bound there is as much garbage as there is data. Whoever sets GOMEMLIMIT bounds the heap himself.
func boundHeap(memory int64) (taken func(pages int64)) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return nil
	}
	taken = func(pages int64) { debug.SetMemoryLimit(heapLimit(memory, pages)) }
	taken(0)
	return taken
}

// heapLimit returns how much Go may take while pages take so much.
func heapLimit(memory, pages int64) int64 { return max(withMargin(memory)-besideHeap-pages, leastHeap) }
