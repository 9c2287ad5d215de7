package uffd

import (
	"fmt"

	"github.com/dsmfs/dsmfs/internal/errs"
)

// Mode is how the pages that a program stored to are found. The values appear in the reply to TRACK
// (docs/attach.md).
type Mode uint8

// The modes, best first.
const (
	Async   Mode = 1 // the kernel records the store and goes on; PAGEMAP_SCAN asks it
	Sync    Mode = 2 // the first store to a page waits until this process has recorded it
	Compare Mode = 3 // no userfaultfd: the caller compares the area with its base copy
)

// String returns the mode as flags and /.dsm spell it.
func (m Mode) String() string {
	switch m {
	case Async:
		return "async"
	case Sync:
		return "sync"
	case Compare:
		return "compare"
	}
	return fmt.Sprintf("mode %d", uint8(m))
}

// Choose returns the best mode that works with the features, or the one named by forced unless that
// is empty. Forcing one that does not work is an error of kind Unsupported.
func Choose(f Features, forced string) (Mode, error) {
	async := f.Async
	if async.OK && !f.Dropped.OK {
		// Swap may be off now, but can be turned on at any time.
		async = Feature{Reason: "stores to pages that are swapped out later would be lost: " + f.Dropped.Reason}
	}
	switch forced {
	case "":
		switch {
		case async.OK:
			return Async, nil
		case f.Sync.OK:
			return Sync, nil
		}
		return Compare, nil
	case Async.String():
		if !async.OK {
			return 0, errs.E(errs.Unsupported, "choose tracking", "async does not work here: %s", async.Reason)
		}
		return Async, nil
	case Sync.String():
		if !f.Sync.OK {
			return 0, errs.E(errs.Unsupported, "choose tracking", "sync does not work here: %s", f.Sync.Reason)
		}
		return Sync, nil
	case Compare.String():
		return Compare, nil
	}
	return 0, errs.E(errs.Invalid, "choose tracking", "%q: want async, sync or compare", forced)
}
