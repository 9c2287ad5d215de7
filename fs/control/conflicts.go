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
	Number uint64 // counts those of the area on its node, from 1
	Time   time.Time
	Off    int64
	Kept   []byte // the values that were given up
	Taken  []byte // those that are in the file in their place, if they are short
}

// KeptConflicts is what a node keeps of the conflicts of an area.
type KeptConflicts struct {
	Node   string     // its name
	List   []Conflict // oldest first
	Lost   int64      // bytes that it had no room for
	More   bool       // it keeps more than the list has
	Silent bool       // it has not answered
}

// conflictText returns one line for each conflict, with the time when it was found in seconds since 1970, and behind those of a node one for the bytes that
// it had no room for, one if there are more, and one if it has not answered.
func conflictText(nodes []KeptConflicts) string {
	var text strings.Builder
	for _, n := range nodes {
		for _, x := range n.List {
			fmt.Fprintf(&text, "%s/%d time=%.6f offset=%d length=%d kept=%x", n.Node, x.Number, float64(x.Time.UnixMicro())/1e6, x.Off, len(x.Kept), x.Kept)
			if len(x.Taken) > 0 {
				fmt.Fprintf(&text, " taken=%x", x.Taken)
			}
			text.WriteByte('\n')
		}
		if n.Lost > 0 {
			fmt.Fprintf(&text, "lost node=%s bytes=%d\n", n.Node, n.Lost)
		}
		if n.More {
			fmt.Fprintf(&text, "more node=%s\n", n.Node)
		}
		if n.Silent {
			fmt.Fprintf(&text, "silent node=%s\n", n.Node)
		}
	}
	return text.String()
}

// parseClear returns which conflicts are to be dropped: those that a node keeps up to a number, or with number 0 all, of every node. Without a node a
// number is one of this node.
func parseClear(value string) (node string, upTo uint64, err error) {
	word, which, some := strings.Cut(value, " ")
	number, named := which, false
	if i := strings.LastIndexByte(which, '/'); i >= 0 {
		node, number, named = which[:i], which[i+1:], true
	}
	if some {
		upTo, err = strconv.ParseUint(number, 10, 64)
	}
	if word != "clear" || err != nil || some && upTo == 0 || named && node == "" {
		return "", 0, errs.E(errs.Invalid, "clear conflicts", "%q: want clear, or clear NODE/NUMBER", value)
	}
	return node, upTo, nil
}
