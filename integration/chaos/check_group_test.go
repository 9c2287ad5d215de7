package chaos

import "fmt"

// checkGroup: no two additions to a counter have the same answer, a later one has a greater, and none is more than were begun. Nobody leaves a
// barrier before all have come who were there, and each member's barriers are in order.
func checkGroup(all []operation) (errs []string) {
	var counts []operation
	meetings := map[int64][]operation{}
	last := map[int]operation{}
	for _, o := range all {
		switch {
		case o.Kind == "count" && o.Result != refused:
			counts = append(counts, o)
		case o.Kind == "barrier" && o.Result == ok:
			meetings[o.V] = append(meetings[o.V], o)
			if before := last[o.Worker]; o.V <= before.V {
				errs = append(errs, fmt.Sprintf("not a later barrier: %v after %v", o, before))
			}
			last[o.Worker] = o
		}
	}
	for _, o := range counts {
		if o.Result != ok {
			continue
		}
		begun := int64(0)
		for _, p := range counts {
			if p.Call < o.Return {
				begun++
			}
			if p.Result == ok && (p.V == o.V && p.Call > o.Call || p.V > o.V && p.Return < o.Call) {
				errs = append(errs, fmt.Sprintf("counted out of order: %v and %v", p, o))
			}
		}
		if o.V > begun {
			errs = append(errs, fmt.Sprintf("%d were begun: %v", begun, o))
		}
	}
	for _, met := range meetings {
		for _, o := range met {
			for _, p := range met {
				if o.Call > p.Return {
					errs = append(errs, fmt.Sprintf("one has left the barrier before another came: %v and %v", p, o))
				}
			}
		}
	}
	return errs
}
