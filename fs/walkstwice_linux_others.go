//go:build linux && !amd64

package fs

var twiceHere []int
