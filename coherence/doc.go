// Package coherence keeps the copies of an area on several nodes coherent. It
// is the data plane of dsmfs: it owns the directory (which node holds which
// page at which version), the publishes under way, and the handing over of
// slots. The bytes themselves are pages', names and sizes are the catalog's.
//
// An area on a node plays up to two parts:
//
//   - the replica (replica.go, handle.go, publish.go, attach.go) serves the
//     programs of the node: it subscribes to the area's homes, merges what they
//     push into the working copy, and publishes local changes;
//   - the home (home.go, push.go, handover.go) orders the publishes to the extents whose
//     slot the view assigns to this node, merges them, gives them versions and
//     pushes the result to the subscribers.
//
// A node talks to itself as to any other: a message to self is handled before
// the step that sent it ends, with no copy of the pages.
//
// # The step function
//
// Everything an area does is a step: an event (a message, a call of fs, a change of
// the view or of the catalog, a broken session) taken under the area's lock
// turns state into state and messages. A step does no I/O, reads no clock but
// the one it is given and leaves no goroutine behind (several extents are diffed at once, and what
// comes of it does not depend on which was first); its messages are handed to the
// Sender after the lock is released. A publish of much is several steps. So the same code runs in the
// simulator of the tests, where the order of events comes from a seed.
// What has to wait (a reader for a page, an fsync for its acks) waits outside; the steps that change the area
// look whether its wait is over, and wake it only then (await).
//
// # The baselines
//
// Three values of a page must never be mixed up; each has its own keeper.
//
//   - The base copy is what the home had: always some exact value that the home
//     published. working - base is what this node has not published.
//   - A publish under way (publication) stays apart from the base until its
//     ack. A push says up to which of the receiver's publishes its bytes contain; a
//     publication not among them is overlaid on the pushed bytes, so that own
//     stores in flight are neither dropped nor counted twice.
//   - What the kernel's page cache was last given is kept by pages.Cached.
//
// # Locks
//
// Area.mu guards one area; Node.mu guards the map of areas and is never held
// while an area is locked. attached.mu guards what attached programs have mapped; it is held over
// scans of their memory, and Area.mu is taken under it (Area.note). handovers.mu
// guards which slots are on their way. No lock is held over Send, a kernel notification,
// a callback, or the catalog but for a look into its memory.
//
// Nearly every unexported method of Area runs within a step and so with Area.mu held. Those that
// take it themselves, or take steps, are step, stepBriefly, steps, oneStep, note, await, collect, scan, readyToAttach, fetchAll,
// request, bring, bringAhead, write, detectLayout, blame, expire and handOver.
package coherence
