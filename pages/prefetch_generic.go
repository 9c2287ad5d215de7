//go:build !amd64

package pages

// prefetch does nothing here: it exists for amd64 only.
func prefetch([]byte) {}
