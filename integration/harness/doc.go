// Package harness runs clusters of real dsmfs processes for tests and
// benchmarks: on loopback addresses or in network namespaces that can be cut
// and slowed down.
//
// It owns everything it starts and nothing else. A Cluster made by New is taken
// down in Cleanup, and what is left of it afterwards - a mount, a process, a
// namespace - is an error of the test. Every process of a cluster carries the
// cluster's tag in its environment, which is how stray ones are found.
//
// # Deadlocks
//
// The process that uses this package never touches a path below a mount: if the
// daemon hangs, so would it, in a state that no signal ends. It reads
// /proc/self/mountinfo instead, and every access goes through a child process
// that can be given up: Node.Client, Node.Python, Node.Run. Each has a timeout
// after which the kernel's end of the mount is aborted, which frees them all.
package harness
