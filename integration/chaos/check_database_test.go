package chaos

import "fmt"

// checkDatabase: every transaction that was committed is there once, no other is but those of unknown outcome, and the file is sound.
func checkDatabase(all []operation) []string {
	finals, errs := sayTheSame(all)
	type row struct{ worker, i int64 }
	begun := map[row]operation{}
	for _, o := range all {
		if o.Kind == "commit" && o.Result != refused {
			begun[row{int64(o.Worker), o.N}] = o
		}
	}
	for _, f := range finals {
		if f.Err != "" {
			errs = append(errs, fmt.Sprintf("n%d: the file is damaged: %s", f.Node, f.Err))
		}
		there := map[row]bool{}
		for i := 0; i+1 < len(f.S); i += 2 {
			r := row{f.S[i], f.S[i+1]}
			if there[r] {
				errs = append(errs, fmt.Sprintf("n%d: transaction %d of worker %d is there twice", f.Node, r.i, r.worker))
			}
			there[r] = true
			if _, found := begun[r]; !found {
				errs = append(errs, fmt.Sprintf("n%d: transaction %d of worker %d is there, which was rolled back", f.Node, r.i, r.worker))
			}
		}
		for r, o := range begun {
			if o.Result == ok && o.Return < f.Call && !there[r] {
				errs = append(errs, fmt.Sprintf("n%d: a transaction that was committed is not there: %v", f.Node, o))
			}
		}
		if int(f.V) != len(there) {
			errs = append(errs, fmt.Sprintf("n%d: %d were counted, and %d rows are there", f.Node, f.V, len(there)))
		}
	}
	return errs
}
