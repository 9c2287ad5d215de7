package chaos

import (
	"slices"
	"testing"
)

// did is an operation of a history that a test makes up.
func did(worker int, call, back int64, kind, a string, n, v int64, s ...int64) operation {
	return operation{Worker: worker, Node: worker, ID: int(call), Kind: kind, A: a, N: n, V: v, S: s, Call: call, Return: back, Result: ok}
}

// as changes how it ended.
func (o operation) as(result, err string) operation {
	if o.Result, o.Err = result, err; result == unknown {
		o.Return = never
	}
	return o
}

// sums is what a final read of sums returns: the shared cells, then those of workers 0, 1, ...
func sums(shared map[int]int64, own ...int64) []int64 {
	all := make([]int64, cells)
	for i, v := range shared {
		all[i] = v
	}
	return append(all, own...)
}

// shared is what a final read of other cells returns.
func shared(first int64) []int64 { return sums(map[int]int64{0: first}) }

// example is a history that a checker must accept, and what makes it one that it must not.
type example struct {
	name  string
	check func([]operation) []string
	good  []operation
	bad   map[string]func(all []operation) []operation
}

// change returns a mutation of the operation i.
func change(i int, do func(*operation)) func([]operation) []operation {
	return func(all []operation) []operation {
		do(&all[i])
		return all
	}
}

// without leaves an operation out.
func without(i int) func([]operation) []operation {
	return func(all []operation) []operation { return slices.Delete(all, i, i+1) }
}

var examples = []example{
	{"names", checkNames, []operation{
		did(1, 0, 10, "create", "d/x", 0, 7),
		did(2, 5, 15, "stat", "d/x", 0, 0).as(refused, "ENOENT"),
		did(2, 20, 30, "create", "d/x", 0, 0).as(refused, "EEXIST"),
		did(3, 40, 0, "unlink", "d/x", 0, 0).as(unknown, "EIO"),
		did(2, 50, 60, "stat", "d/x", 0, 7),
		did(2, 70, 80, "stat", "d/x", 0, 0).as(refused, "ENOENT"),
		did(2, 90, 95, "create", "d/y", 0, 0).as(refused, "ENOSPC"),
	}, map[string]func([]operation) []operation{
		"two exclusive creates":       change(2, func(o *operation) { o.Result, o.Err, o.V = ok, "", 8 }),
		"an old inode":                change(4, func(o *operation) { o.V = 6 }),
		"gone without an unlink":      without(3),
		"gone, and there again":       change(4, func(o *operation) { o.Call, o.Return = 85, 88 }),
		"gone before it was unlinked": change(2, func(o *operation) { *o = did(2, 20, 30, "stat", "d/x", 0, 0).as(refused, "ENOENT") }),
		"an unlink without effect":    change(3, func(o *operation) { o.Result, o.Return = ok, 45 }),
	}},
	{"sizes", checkSizes, []operation{
		did(1, 0, 10, "append", "f", 5, 5),
		did(2, 5, 15, "append", "f", 3, 3),
		did(3, 20, 30, "getsize", "f", 0, 8),
		did(1, 40, 0, "append", "f", 4, 0).as(unknown, "EIO"),
		did(3, 50, 60, "getsize", "f", 0, 12),
		did(2, 70, 80, "setsize", "f", 2, 0),
		did(3, 90, 95, "getsize", "f", 0, 2),
	}, map[string]func([]operation) []operation{
		"an append is lost":            change(2, func(o *operation) { o.V = 5 }),
		"an append of nobody":          without(3),
		"an append counts twice":       change(4, func(o *operation) { o.V = 16 }),
		"a truncate is lost":           change(6, func(o *operation) { o.V = 12 }),
		"a size from before":           change(4, func(o *operation) { o.V = 3 }),
		"a truncate after its refusal": change(5, func(o *operation) { *o = o.as(refused, "ENOSPC") }),
	}},
	{"last", checkLast, []operation{
		did(1, 0, 10, "write", "last/0", 101, 0),
		did(2, 5, 15, "write", "last/0", 102, 0),
		did(3, 20, 30, "read", "last/0", 0, 101),
		did(2, 40, 50, "write", "last/0", 103, 0),
		did(1, 60, 0, "write", "last/0", 104, 0).as(unknown, "EIO"),
		did(3, 70, 80, "read", "last/0", 0, 103),
		did(1, 90, 91, "final", "", 0, 0, shared(104)...),
		did(2, 92, 93, "final", "", 0, 0, shared(104)...),
	}, map[string]func([]operation) []operation{
		"of nobody":                   change(2, func(o *operation) { o.V = 99 }),
		"from the future":             change(2, func(o *operation) { o.V = 103 }),
		"an old value":                change(5, func(o *operation) { o.V = 102 }),
		"never stored to":             change(5, func(o *operation) { o.V = 0 }),
		"two copies":                  change(7, func(o *operation) { o.S = shared(103) }),
		"acknowledged, then lost":     change(7, func(o *operation) { o.S = shared(101) }),
		"all gone in the end":         change(6, func(o *operation) { o.S = shared(0) }),
		"refused, and there all same": change(4, func(o *operation) { *o = o.as(refused, "EACCES") }),
	}},
	{"max", checkMax, []operation{
		did(1, 0, 10, "write", "max/0", 50, 0),
		did(2, 5, 15, "write", "max/0", 40, 0),
		did(1, 20, 0, "write", "max/0", 60, 0).as(unknown, "EIO"),
		did(3, 30, 40, "read", "max/0", 0, 50),
		did(1, 90, 91, "final", "", 0, 0, shared(60)...),
		did(2, 92, 93, "final", "", 0, 0, shared(60)...),
	}, map[string]func([]operation) []operation{
		"less than acknowledged": change(3, func(o *operation) { o.V = 40 }),
		"of nobody":              change(3, func(o *operation) { o.V = 55 }),
		"less in the end":        change(5, func(o *operation) { o.S = shared(40) }),
		"two copies":             change(5, func(o *operation) { o.S = shared(50) }),
	}},
	{"min", checkMin, []operation{
		did(1, 0, 10, "write", "min/0", -50, 0),
		did(2, 5, 15, "write", "min/0", -40, 0),
		did(3, 30, 40, "read", "min/0", 0, -50),
	}, map[string]func([]operation) []operation{
		"more than acknowledged": change(2, func(o *operation) { o.V = -40 }),
		"never stored to":        change(2, func(o *operation) { o.V = 0 }),
	}},
	{"sum", checkSum, []operation{
		did(1, 0, 10, "add", "", 1, 1, 1),
		did(2, 5, 15, "add", "", 1, 1, 2),
		did(1, 20, 0, "add", "", 1, 0).as(unknown, "EIO"), // confirmed by the next
		did(1, 40, 50, "add", "", 1, 3, 4),
		did(2, 60, 0, "add", "", 1, 0).as(unknown, "EIO"),
		did(1, 70, 71, "final", "", 0, 0, sums(map[int]int64{0: 5}, 0, 3, 2)...),
		did(2, 72, 73, "final", "", 0, 0, sums(map[int]int64{0: 5}, 0, 3, 2)...),
	}, map[string]func([]operation) []operation{
		"one lost":                func(all []operation) []operation { return ends(all, sums(map[int]int64{0: 3}, 0, 3, 1)) },
		"one lost of its own":     func(all []operation) []operation { return ends(all, sums(map[int]int64{0: 4}, 0, 2, 1)) },
		"one counted twice":       func(all []operation) []operation { return ends(all, sums(map[int]int64{0: 6}, 0, 3, 2)) },
		"own cell counted twice":  func(all []operation) []operation { return ends(all, sums(map[int]int64{0: 5}, 0, 4, 2)) },
		"two copies":              change(6, func(o *operation) { o.S = sums(map[int]int64{0: 4}, 0, 3, 1) }),
		"a sync shows too little": change(3, func(o *operation) { o.S = []int64{2} }),
		"a sync shows too much":   change(1, func(o *operation) { o.S = []int64{3} }),
		"a cell of nobody":        change(6, func(o *operation) { o.S = sums(map[int]int64{0: 5, 3: 1}, 0, 3, 2) }),
	}},
	{"locks", checkLocks, []operation{
		did(1, 0, 10, "section", "flock", 0, 0, 2, 8),
		did(2, 5, 20, "section", "flock", 0, 1, 11, 18),
		did(3, 6, 0, "section", "flock", 0, 2, 21, 0).as(unknown, "unlock: EIO"),
		did(1, 30, 40, "section", "flock", 0, 3, 31, 38),
	}, map[string]func([]operation) []operation{
		"two in the lock":      change(1, func(o *operation) { o.S = []int64{7, 18} }),
		"a token twice":        change(1, func(o *operation) { o.V = 0 }),
		"a token of before":    change(3, func(o *operation) { o.V = 1 }),
		"a token of nobody":    change(3, func(o *operation) { o.V = 9 }),
		"written by a refusal": change(2, func(o *operation) { o.Result = refused }),
	}},
	{"versioned", checkVersioned, []operation{
		did(1, 0, 10, "publish", "", 101, 0),
		did(2, 12, 14, "open", "", 0, 101),
		did(1, 20, 30, "publish", "", 102, 0),
		did(3, 25, 28, "read", "", 0, 101),
		did(2, 40, 50, "open", "", 0, 102),
		did(1, 60, 0, "publish", "", 103, 0).as(unknown, "EIO"),
		did(2, 70, 71, "final", "", 0, 103),
		did(3, 72, 73, "final", "", 0, 103),
	}, map[string]func([]operation) []operation{
		"torn":                    change(4, func(o *operation) { o.S = []int64{40_000, 101} }),
		"of nobody":               change(4, func(o *operation) { o.V = 99 }),
		"from the future":         change(1, func(o *operation) { o.V = 102 }),
		"older than before":       change(4, func(o *operation) { o.V = 0 }),
		"acknowledged, not seen":  change(4, func(o *operation) { o.V = 101 }),
		"acknowledged, then lost": func(all []operation) []operation { all[6].V, all[7].V, all[4].V = 101, 101, 101; return all },
		"two copies":              change(7, func(o *operation) { o.V = 102 }),
	}},
	{"sqlite", checkDatabase, []operation{
		did(1, 0, 10, "commit", "", 1, 1),
		did(2, 5, 15, "commit", "", 1, 2),
		did(2, 20, 25, "commit", "", 2, 0).as(refused, "database is locked"),
		did(1, 30, 0, "commit", "", 2, 0).as(unknown, "disk I/O error"),
		did(1, 40, 41, "final", "", 0, 3, 1, 1, 1, 2, 2, 1),
		did(2, 42, 43, "final", "", 0, 3, 1, 1, 1, 2, 2, 1),
	}, map[string]func([]operation) []operation{
		"a commit is lost":  func(all []operation) []operation { return ends(all, []int64{1, 1, 1, 2}) },
		"rolled back":       func(all []operation) []operation { return ends(all, []int64{1, 1, 1, 2, 2, 1, 2, 2}) },
		"twice":             func(all []operation) []operation { return ends(all, []int64{1, 1, 1, 1, 2, 1}) },
		"counted wrongly":   func(all []operation) []operation { all[4].V, all[5].V = 2, 2; return all },
		"damaged":           change(5, func(o *operation) { o.Err = "row 3 missing from index" }),
		"two copies":        change(5, func(o *operation) { o.S = []int64{1, 1, 2, 1}; o.V = 2 }),
		"an update is lost": func(all []operation) []operation { return ends(all, []int64{1, 1, 2, 1}) },
	}},
	{"group", checkGroup, []operation{
		did(1, 0, 10, "count", "", 0, 1),
		did(2, 5, 15, "count", "", 0, 2),
		did(3, 6, 0, "count", "", 0, 0).as(unknown, "ETIMEDOUT"),
		did(1, 20, 40, "barrier", "", 0, 1, 0, 1),
		did(2, 25, 35, "barrier", "", 0, 1, 0, 1),
		did(1, 50, 60, "count", "", 0, 4),
		did(1, 70, 80, "barrier", "", 0, 2, 0, 1),
	}, map[string]func([]operation) []operation{
		"a number twice":             change(1, func(o *operation) { o.V = 1 }),
		"more than were counted":     change(5, func(o *operation) { o.V = 5 }),
		"less than before":           change(0, func(o *operation) { o.V = 3; o.Return = 4 }),
		"left before all were there": change(4, func(o *operation) { o.Call, o.Return = 41, 45 }),
		"a barrier twice":            change(6, func(o *operation) { o.V = 1 }),
	}},
}

// ends gives all final reads these values.
func ends(all []operation, values []int64) []operation {
	for i := range all {
		if all[i].Kind == "final" {
			all[i].S = values
		}
	}
	return all
}

// TestCheckersFindErrors gives each checker a history that it must accept, and changed ones that it must refuse.
func TestCheckersFindErrors(t *testing.T) {
	for _, h := range examples {
		clone := func() []operation {
			all := slices.Clone(h.good)
			for i := range all {
				all[i].S = slices.Clone(all[i].S)
			}
			return all
		}
		if errs := h.check(clone()); len(errs) > 0 {
			t.Errorf("%s: a good history is refused: %v", h.name, errs)
		}
		for what, mutate := range h.bad {
			all := mutate(clone())
			byCall(all)
			if errs := h.check(all); len(errs) == 0 {
				t.Errorf("%s: %s: nothing is found", h.name, what)
			}
		}
	}
	for _, w := range workloads {
		if !slices.ContainsFunc(examples, func(h example) bool { return h.name == w.name || w.name == "attached" && h.name == "sum" }) {
			t.Errorf("no bad history of %s", w.name)
		}
	}
}
