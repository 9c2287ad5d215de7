package fs

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// kernelRelease returns the release of the running kernel, "" if it does not say.
func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// locksForUnknownNames reports whether a kernel of the release has the lock of a directory before it says
// that it does not know a name there (K52). It is known of Linux up to 6.18. Later ones may look for the name first.
func locksForUnknownNames(release string) bool {
	numbers := strings.SplitN(release, ".", 3)
	if len(numbers) < 2 {
		return false
	}
	minor, _, _ := strings.Cut(numbers[1], "-")
	a, err := strconv.Atoi(numbers[0])
	b, err2 := strconv.Atoi(minor)
	return err == nil && err2 == nil && (a < 6 || a == 6 && b <= 18)
}
