package history

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"
)

// Explain prints the end of the longest order that the model accepts, and the
// earliest operations that do not fit behind it.
func Explain(model porcupine.Model, ops []porcupine.Operation, info porcupine.LinearizationInfo) string {
	var longest []porcupine.Operation
	for _, partition := range info.PartialLinearizationsOperations() {
		for _, order := range partition {
			if len(order) > len(longest) {
				longest = order
			}
		}
	}
	key := func(o porcupine.Operation) [2]int64 { return [2]int64{int64(o.ClientId), o.Call} }
	placed := map[[2]int64]bool{}
	for _, o := range longest {
		placed[key(o)] = true
	}
	rest := slices.DeleteFunc(slices.Clone(ops), func(o porcupine.Operation) bool { return placed[key(o)] })
	slices.SortFunc(rest, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	var b strings.Builder
	show := func(o porcupine.Operation) {
		fmt.Fprintf(&b, "  client %d, %.3f..%.3f ms: %s\n", o.ClientId, float64(o.Call)/1e6, float64(o.Return)/1e6, model.DescribeOperation(o.Input, o.Output))
	}
	const some = 15
	fmt.Fprintf(&b, "%d of %d operations fit in this order:\n", len(longest), len(ops))
	for _, o := range longest[max(0, len(longest)-some):] {
		show(o)
	}
	b.WriteString("and none of these next:\n")
	for _, o := range rest[:min(some, len(rest))] {
		show(o)
	}
	return b.String()
}
