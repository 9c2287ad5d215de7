package chaos

import (
	"fmt"
	"slices"
	"strings"
)

// cells is as many as all workers of a workload share; own ones follow in the final read.
const cells = 8

// written is a store and when it was.
type written struct {
	value int64
	operation
}

// cellsOf sorts the writes and reads of each shared cell. A final read is one of all.
func cellsOf(all []operation) (writes map[string][]written, reads map[string][]written, errs []string) {
	writes, reads = map[string][]written{}, map[string][]written{}
	finals, errs := sayTheSame(all)
	for _, o := range all {
		switch {
		case o.Kind == "write" && o.Result != refused:
			writes[o.A] = append(writes[o.A], written{o.N, o})
		case o.Kind == "read" && o.Result == ok:
			reads[o.A] = append(reads[o.A], written{o.V, o})
		}
	}
	for cell := range writes {
		var i int
		if _, err := fmt.Sscanf(cell[strings.Index(cell, "/"):], "/%d", &i); err != nil || i >= cells {
			errs = append(errs, "no cell: "+cell)
			continue
		}
		for _, f := range finals {
			reads[cell] = append(reads[cell], written{f.S[i], f})
		}
	}
	return writes, reads, errs
}

// checkLast: a read returns a value that was stored, or nothing yet, and never one that an acknowledged store had followed before the
// read began.
func checkLast(all []operation) []string {
	writes, reads, errs := cellsOf(all)
	for cell, rs := range reads {
		byValue := map[int64]written{}
		for _, w := range writes[cell] {
			byValue[w.value] = w
		}
		for _, r := range rs {
			w, found := byValue[r.value]
			if r.value != 0 && (!found || w.Call > r.Return) {
				errs = append(errs, fmt.Sprintf("%s: %d was read, which nobody had stored: %v", cell, r.value, r.operation))
				continue
			}
			after := int64(-1)
			if found {
				after = w.Return
			}
			for _, newer := range writes[cell] {
				if newer.Result == ok && newer.Call > after && newer.Return < r.Call {
					errs = append(errs, fmt.Sprintf("%s: an old value was read, %v, after %v, which began after %v", cell, r.operation, newer.operation, w.operation))
					break
				}
			}
		}
	}
	return errs
}

// checkMax: a read returns a value that was stored, and none less than one that had been acknowledged before.
func checkMax(all []operation) []string {
	return checkBest(all, func(a, b int64) bool { return a > b })
}

// checkMin is checkMax the other way round.
func checkMin(all []operation) []string {
	return checkBest(all, func(a, b int64) bool { return a < b })
}

func checkBest(all []operation, better func(a, b int64) bool) []string {
	writes, reads, errs := cellsOf(all)
	for cell, rs := range reads {
		for _, r := range rs {
			stored := r.value == 0
			for _, w := range writes[cell] {
				stored = stored || w.value == r.value && w.Call < r.Return
				if w.Result == ok && w.Return < r.Call && better(w.value, r.value) {
					errs = append(errs, fmt.Sprintf("%s: %v returned less than was acknowledged before: %v", cell, r.operation, w.operation))
				}
			}
			if !stored {
				errs = append(errs, fmt.Sprintf("%s: %d was read, which nobody had stored: %v", cell, r.value, r.operation))
			}
		}
	}
	return errs
}

// adder is what one worker of a sum has added.
type adder struct {
	ops       []operation // that may have stored
	confirmed int         // as many of these were acknowledged, by themselves or by a later one of the same worker
}

// checkSum: what was acknowledged is in the sum once, what has an unknown outcome once or not at all.
func checkSum(all []operation) (errs []string) {
	finals, errs := sayTheSame(all)
	adders := map[int]*adder{}
	for _, o := range all {
		if o.Kind != "add" || o.Result == refused {
			continue
		}
		a := adders[o.Worker]
		if a == nil {
			a = &adder{}
			adders[o.Worker] = a
		}
		a.ops = append(a.ops, o)
		if o.Result == ok {
			a.confirmed = len(a.ops)
		}
	}
	for _, o := range all {
		if o.Kind == "add" && o.Result == ok {
			errs = append(errs, checkAdded(adders, o)...)
		}
	}
	for _, f := range finals {
		for cell := range cells {
			var least, most int64
			for _, a := range adders {
				least += count(a.ops[:a.confirmed], cell)
				most += count(a.ops, cell)
			}
			if v := f.S[cell]; v < least || v > most {
				errs = append(errs, fmt.Sprintf("cell %d is %d when all is quiet; %d were acknowledged, %d begun: %v", cell, v, least, most, short(f)))
			}
		}
		for w, a := range adders {
			if v := f.S[cells+w]; v < int64(a.confirmed) || v > int64(len(a.ops)) {
				errs = append(errs, fmt.Sprintf("worker %d added %d, of which %d are acknowledged, and its cell is %d: %v", w, len(a.ops), a.confirmed, v, short(f)))
			}
		}
	}
	return errs
}

// checkAdded looks at what a worker saw when its sync came back: all that had been acknowledged before, and its own; not more than was begun.
func checkAdded(adders map[int]*adder, o operation) (errs []string) {
	if a := adders[o.Worker]; o.V > int64(1+slices.IndexFunc(a.ops, func(p operation) bool { return p.ID == o.ID })) {
		errs = append(errs, fmt.Sprintf("more in its own cell than it added: %v", o))
	}
	for i, cell := range cellsIn(o.N) {
		var least, most int64
		for _, a := range adders {
			for _, p := range a.ops {
				if p.N&(1<<cell) == 0 {
					continue
				}
				if p.Result == ok && p.Return < o.Call {
					least++
				}
				if p.Call < o.Return {
					most++
				}
			}
		}
		if v := o.S[i]; v < least+1 || v > most {
			errs = append(errs, fmt.Sprintf("cell %d: a sync shows %d; %d were acknowledged before it and one is its own, %d begun before its end: %v", cell, v, least, most, o))
		}
	}
	return errs
}

func cellsIn(mask int64) (all []int) {
	for cell := range cells {
		if mask&(1<<cell) != 0 {
			all = append(all, cell)
		}
	}
	return all
}

func count(all []operation, cell int) (n int64) {
	for _, o := range all {
		n += o.N >> cell & 1
	}
	return n
}

func differ(a, b operation) string {
	for i := range min(len(a.S), len(b.S)) {
		if a.S[i] != b.S[i] {
			return fmt.Sprintf("cell %d is %d on n%d and %d on n%d", i, a.S[i], a.Node, b.S[i], b.Node)
		}
	}
	return fmt.Sprintf("%v and %v", short(a), short(b))
}

// short leaves out most of the values of a final read.
func short(o operation) operation {
	o.S = o.S[:min(len(o.S), cells)]
	return o
}
