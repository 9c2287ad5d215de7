//go:build invariants

package lockrank

// goroutine returns the address of what the runtime knows of the calling goroutine. Another one may have it later, but not while
// this one holds a lock.
func goroutine() uintptr
