package main

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestNotMovedNamesTheSilentOwner(t *testing.T) {
	for _, errno := range []unix.Errno{unix.EIO, unix.ETIMEDOUT} {
		err := &os.PathError{Op: "write", Path: "owner", Err: errno}
		for owner, want := range map[string]string{
			"n2": "the owner, node n2, or the node that is to own it does not answer; the file may still be moved later",
			"-":  "too few nodes that vote on names answer",
			"":   "too few nodes that vote on names answer",
		} {
			if got := notMoved(err, owner); !strings.Contains(got, want) {
				t.Errorf("%v, owner %q: %q, want %q", errno, owner, got, want)
			}
		}
	}
}
