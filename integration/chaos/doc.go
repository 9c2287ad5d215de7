// Package chaos runs programs on a cluster while a nemesis kills, stops, cuts off and slows down its nodes, and checks what the programs
// saw against what docs/design.md promises.
//
// A round is a cluster, some workloads, and a schedule of faults, all drawn from one seed. Each workload has a process on every node (package
// workers, in Python) that records each operation before and after it. When the schedule is over all faults are undone. Then every
// workload must work again on every node within a bound, all copies must be equal, and the checker of each workload judges the whole
// history. What stands against which fault is the table of workloads.
//
// go test ./integration/chaos -seed N repeats the round of a seed: the same workloads and faults, at the same times. What the processes do in
// between is up to the machine. make chaos HOURS=n goes on with the seeds that follow.
package chaos
