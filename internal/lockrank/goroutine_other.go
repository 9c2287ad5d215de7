//go:build invariants && !amd64

package lockrank

import (
	"bytes"
	"fmt"
	"runtime"
	"strconv"
)

// goroutine returns the number of the calling goroutine. The runtime shows it only at the head of a stack trace,
// "goroutine 18 [running]:", and writes all of the trace for it: that took three quarters of the simulations' time.
func goroutine() uintptr {
	var buf [32]byte
	text := bytes.TrimPrefix(buf[:runtime.Stack(buf[:], false)], []byte("goroutine "))
	number, _, _ := bytes.Cut(text, []byte(" "))
	n, err := strconv.ParseUint(string(number), 10, 64)
	if err != nil {
		panic(fmt.Sprintf("lockrank: no goroutine number in %q", text))
	}
	return uintptr(n)
}
