// Command dsmfs mounts shared memory that many machines store into: every file
// of the mount is memory that all nodes of a cluster share.
//
// This package is the command line and the wiring. It owns flags, verbs, exit
// codes (exitcodes.go), the state directory of a mount (state.go), the
// background process (background.go) and the order in which a node is
// built up and taken down (node.go). It is the only importer of pflag and the only
// caller of os.Exit, which main alone does.
//
// # Hanging mounts
//
// A process that touches a path below a mount whose daemon does not answer
// cannot be ended by any signal. So no verb does: they read
// /proc/self/mountinfo and the state directory, and what must be read of the mount itself is read
// by a child process that can be left behind (supervise.go).
package main
