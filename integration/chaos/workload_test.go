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

// dataSurvivesKill is what the bytes of a file promise when the daemon dies that is their home. There are no replicas: they are lost, and
// whoever wants them gets EIO.
const dataSurvivesKill = right

// workload is one kind of program and what it may expect.
type workload struct {
	name  string
	check func([]operation) []string
	// stands: against all other kinds of faults the promise is whole.
	stands map[kind]promise
	// publishes: when all is quiet, each node publishes what its programs have left behind, and reads all.
	publishes bool
	// rival: programs of this workload wait for each other, so how long an operation takes says nothing about a fault.
	rival bool
}

var ofData = map[kind]promise{kill: dataSurvivesKill}

var workloads = []workload{
	{name: "names", check: checkNames},
	{name: "sizes", check: checkSizes, stands: ofData},
	{name: "last", check: checkLast, stands: ofData, publishes: true},
	{name: "max", check: checkMax, stands: ofData, publishes: true},
	{name: "min", check: checkMin, stands: ofData, publishes: true},
	{name: "sum", check: checkSum, stands: ofData, publishes: true},
	{name: "attached", check: checkSum, stands: ofData, publishes: true},
	{name: "locks", check: checkLocks, stands: ofData, rival: true},
	{name: "versioned", check: checkVersioned, stands: ofData},
	{name: "sqlite", check: checkDatabase, stands: ofData, rival: true},
	{name: "group", check: checkGroup, stands: ofData, rival: true},
}

// promised is what stands after all these faults.
func (w workload) promised(all []fault) promise {
	least := whole
	for _, f := range all {
		if p, found := w.stands[f.kind]; found {
			least = min(least, p)
		}
	}
	return least
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
