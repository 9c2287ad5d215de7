package chaos

import "slices"

// promise is how much of a workload stands against a kind of fault.
type promise int

const (
	// right: nothing that is read is wrong, but operations may fail for good, and data may be gone.
	right promise = iota
	// whole: when the fault is over every operation works again, all copies are equal, and nothing that was acknowledged is gone.
	whole
)

// workload is one kind of program and what it may expect.
type workload struct {
	name  string
	check func([]operation) []string
	// data: it has bytes, of which one copy is lost when the daemon dies that is their home. Whoever wants them gets EIO then.
	data bool
	// publishes: when all is quiet, each node publishes what its programs have left behind, and reads all.
	publishes bool
	// rival: programs of this workload wait for each other, so how long an operation takes says nothing about a fault.
	rival bool
}

var workloads = []workload{
	{name: "names", check: checkNames},
	{name: "sizes", check: checkSizes, data: true},
	{name: "last", check: checkLast, data: true, publishes: true},
	{name: "max", check: checkMax, data: true, publishes: true},
	{name: "min", check: checkMin, data: true, publishes: true},
	{name: "sum", check: checkSum, data: true, publishes: true},
	{name: "attached", check: checkSum, data: true, publishes: true},
	{name: "locks", check: checkLocks, data: true, rival: true},
	{name: "versioned", check: checkVersioned, data: true},
	{name: "sqlite", check: checkDatabase, data: true, rival: true},
	{name: "group", check: checkGroup, data: true, rival: true},
}

// promised is what stands of a workload after all faults.
func (p plan) promised(w workload) promise {
	if w.data && p.copies == 1 && slices.ContainsFunc(p.faults, func(f fault) bool { return f.kind == kill }) {
		return right
	}
	return whole
}

// sayTheSame tells whether the final reads of all nodes have the same values.
func sayTheSame(all []operation) (finals []operation, errs []string) {
	for _, o := range all {
		if o.Kind != "final" || o.Result != ok {
			continue
		}
		if len(finals) > 0 && (o.V != finals[0].V || !slices.Equal(o.S, finals[0].S)) {
			errs = append(errs, "when all was quiet two nodes had different bytes: "+differ(finals[0], o))
		}
		finals = append(finals, o)
	}
	return finals, errs
}
