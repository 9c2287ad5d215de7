//go:build !amd64

package pages

// prefetch does nothing here: see that of amd64.
func prefetch([]byte) {}
