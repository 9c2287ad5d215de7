package lockrank

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Rank names a kind of lock: PACKAGE.TYPE.
type Rank string

//go:embed order.txt
var orderText string

// order is a parsed text: for each rank, the ranks that may be taken while it is held.
type order map[Rank]map[Rank]bool

// parse reads an order. Each rank has a line: "a < b c" if b and c may be taken while a is held,
// "a" alone if nothing may. "#" starts a comment. The result is transitively closed; a cycle is an
// error.
func parse(text string) (order, error) {
	direct := order{}
	declared := map[Rank]bool{}
	number := 0
	for line := range strings.Lines(text) {
		number++
		line, _, _ = strings.Cut(line, "#")
		left, right, relation := strings.Cut(line, "<")
		names := strings.Fields(left)
		if len(names) == 0 && !relation {
			continue
		}
		inner := strings.Fields(right)
		if len(names) != 1 || relation && len(inner) == 0 {
			return nil, fmt.Errorf("order.txt:%d: want \"rank\" or \"rank < rank ...\"", number)
		}
		outer := Rank(names[0])
		if declared[outer] {
			return nil, fmt.Errorf("order.txt:%d: %s has a line already", number, outer)
		}
		declared[outer] = true
		direct[outer] = map[Rank]bool{}
		for _, b := range inner {
			direct[outer][Rank(b)] = true
		}
	}
	for a, inner := range direct {
		for b := range inner {
			if !declared[b] {
				return nil, fmt.Errorf("order.txt: %s < %s: %s has no line", a, b, b)
			}
		}
	}
	return direct.closed()
}

// closed returns the transitive closure.
func (o order) closed() (order, error) {
	all := order{}
	for a := range o {
		reach := map[Rank]bool{}
		todo := slices.Collect(maps.Keys(o[a]))
		for len(todo) > 0 {
			b := todo[len(todo)-1]
			todo = todo[:len(todo)-1]
			if reach[b] {
				continue
			}
			reach[b] = true
			todo = slices.AppendSeq(todo, maps.Keys(o[b]))
		}
		if reach[a] {
			return nil, fmt.Errorf("order.txt: %s is before itself", a)
		}
		all[a] = reach
	}
	return all, nil
}
