package chaos

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/dsmfs/dsmfs/integration/history"
)

// tokens is the number that sections of a lock read and write.
var tokens = porcupine.Model{
	Init: func() any { return int64(0) },
	Step: func(state, input, output any) (bool, any) {
		o := output.(operation)
		switch {
		case o.Result == ok:
			return o.V == state.(int64), o.V + 1
		case len(o.S) > 0: // it has read the number; what it wrote may come at any later time
			return true, o.V + 1
		}
		return true, state.(int64) + 1
	},
	DescribeOperation: func(_, output any) string { return output.(operation).String() },
}

// checkLocks: two sections that ended without an error were never in the lock at the same time, and each has read what the one before
// it wrote. A section that loses its lock, and its node, on the way says so: its unlock fails.
func checkLocks(all []operation) (errs []string) {
	byLock := map[string][]operation{}
	for _, o := range all {
		if o.Kind == "section" && o.Result != refused {
			byLock[o.A] = append(byLock[o.A], o)
		}
	}
	for name, sections := range byLock {
		clean := slices.DeleteFunc(slices.Clone(sections), func(o operation) bool { return o.Result != ok })
		slices.SortFunc(clean, func(a, b operation) int { return cmp.Compare(a.S[0], b.S[0]) })
		for i, o := range clean {
			if i > 0 && o.S[0] < clean[i-1].S[1] {
				errs = append(errs, fmt.Sprintf("%s: two are in the lock: %v and %v", name, clean[i-1], o))
			}
		}
		var ops []porcupine.Operation
		for _, o := range sections {
			ops = append(ops, porcupine.Operation{ClientId: o.Worker, Output: o, Call: o.Call, Return: o.Return})
		}
		const patience = 20 * time.Second
		result, info := porcupine.CheckOperationsVerbose(tokens, ops, patience)
		if result == porcupine.Illegal {
			errs = append(errs, fmt.Sprintf("%s: a section did not read what the one before it wrote: %s", name, history.Explain(tokens, ops, info)))
		}
	}
	return errs
}
