//go:build race

package pagetest

// Race says whether the race detector is on.
const Race = true
