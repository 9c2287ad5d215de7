// Command dsmfs mounts shared memory: every file of the mount is memory that all nodes of a cluster
// share and store into.
//
// This package is the command line and the wiring. It owns flags, verbs, exit codes (exitcodes.go),
// the state directory of a mount (state.go), the background process (background.go) and the order
// in which a node is built up and taken down (node.go). It is the only importer of pflag. Only its
// function main calls os.Exit.
//
// # Hanging mounts
//
// A process that touches a path below a mount whose daemon does not answer cannot be ended by any
// signal. So no verb does that. Verbs read /proc/self/mountinfo and the state directory; what must
// be read from the mount itself is read by a child process that can be left behind (supervise.go).
package main
