package chaos

import "fmt"

// checkVersioned: what is read is whole and was published; nobody sees an older version than before; an open shows every version that had
// been acknowledged when it began.
func checkVersioned(all []operation) []string {
	_, errs := sayTheSame(all)
	begun := map[int64]operation{}
	for _, o := range all {
		if o.Kind == "publish" && o.Result != refused {
			begun[o.N] = o
		}
	}
	seen := map[int]operation{}
	for _, o := range all {
		if o.Kind == "publish" || o.Result != ok {
			continue
		}
		p, found := begun[o.V]
		switch {
		case len(o.S) > 0:
			errs = append(errs, fmt.Sprintf("not whole: %v", o))
			continue
		case o.V != 0 && (!found || p.Call > o.Return):
			errs = append(errs, fmt.Sprintf("nobody had published this: %v", o))
		case o.V < seen[o.Worker].V:
			errs = append(errs, fmt.Sprintf("an older version than before: %v after %v", o, seen[o.Worker]))
		}
		seen[o.Worker] = o
		if o.Kind == "read" {
			continue // of a descriptor that was opened before: how old it may be is another promise
		}
		for _, p := range begun {
			if p.Result == ok && p.Return < o.Call && p.N > o.V {
				errs = append(errs, fmt.Sprintf("a version that was acknowledged before is not seen: %v after %v", o, p))
				break
			}
		}
	}
	return errs
}
