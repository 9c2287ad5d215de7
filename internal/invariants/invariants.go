// Package invariants has the checks that only builds with the tag
// "invariants" make: conditions that must be true whatever happens, and the order
// in which locks are taken. Without the tag they cost nothing.
package invariants

import "fmt"

// Check panics in an invariants build if cond is not true. The arguments are
// evaluated in every build: keep them cheap.
func Check(cond bool, format string, args ...any) {
	if Enabled && !cond {
		panic("invariant broken: " + fmt.Sprintf(format, args...))
	}
}
