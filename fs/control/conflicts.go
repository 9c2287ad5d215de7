package control

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/dsmfs/dsmfs/internal/errs"
)

// Conflict is a run of elements that were changed on both sides of a partition.
type Conflict struct {
	Number uint64 // counts those of the area on this node, from 1
	Time   time.Time
	Off    int64
	Kept   []byte // the values that were given up
	Taken  []byte // those that are in the file in their place, if they are short
}

// conflictText returns one line for each conflict, with the time when it was found in seconds since 1970, and one for the bytes that were not
// kept, if there are any.
func conflictText(list []Conflict, lost int64) string {
	var text strings.Builder
	for _, x := range list {
		fmt.Fprintf(&text, "%d time=%.6f offset=%d length=%d kept=%x", x.Number, float64(x.Time.UnixMicro())/1e6, x.Off, len(x.Kept), x.Kept)
		if len(x.Taken) > 0 {
			fmt.Fprintf(&text, " taken=%x", x.Taken)
		}
		text.WriteByte('\n')
	}
	if lost > 0 {
		fmt.Fprintf(&text, "lost bytes=%d\n", lost)
	}
	return text.String()
}

// parseClear returns the number up to which conflicts are to be dropped, 0 for all.
func parseClear(value string) (upTo uint64, err error) {
	word, number, some := strings.Cut(value, " ")
	if some {
		upTo, err = strconv.ParseUint(number, 10, 64)
	}
	if word != "clear" || err != nil || some && upTo == 0 {
		return 0, errs.E(errs.Invalid, "clear conflicts", "%q: want clear, or clear NUMBER", value)
	}
	return upTo, nil
}
