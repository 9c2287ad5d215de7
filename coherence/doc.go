// Package coherence keeps the copies of an area on several nodes coherent. It is the data plane of
// dsmfs: it owns the directory (which node has which page at which version), the publishes under
// way, and the handing over of slots. Package pages keeps the bytes; the catalog keeps names and
// sizes.
//
// An area on a node plays up to two parts:
//
//   - The replica (replica.go, handle.go, publish.go, attach.go) serves the programs of the node:
//     it subscribes to the area's homes, merges what they push into the working copy, and publishes
//     local changes.
//   - The home (home.go, push.go, handover.go) orders the publishes to the extents whose slot the
//     view assigns to this node, merges them, gives them versions and pushes the result to the
//     subscribers.
//
// A node talks to itself as to any other node, but the pages are not copied. A message of its home to its replica is handled at the place where it is sent; a
// request of its replica to its home is handled before the step ends. Only a subscription to much takes several steps.
//
// # The step function
//
// Everything that an area does is a step: an event (a message, a call of fs, a change of the view
// or of the catalog, a broken session), handled under the area's lock, changes the state and makes
// messages. A step does no I/O, reads no clock but the one it is given, and leaves no goroutine
// behind. (Several extents are diffed concurrently, but the result does not depend on their order.)
// The messages are handed to the Sender after the lock is released. A large publish takes several
// steps, and so does what a home has to push to its own node. So the simulator of the tests runs the
// same code, with an order of events that comes from a seed.
//
// What has to wait (a reader for a page, an fsync for its acks) waits outside of steps. The steps
// that change the area check whether its wait is over, and wake it only then (await).
//
// # The baselines
//
// Three values of a page must never be mixed up; each is kept in its own place.
//
//   - The base copy is what the home had: always some exact value that the home published.
//     The working copy minus the base is what this node has not published.
//   - A publish under way (publication) stays apart from the base until its ack. A push says up to
//     which of the receiver's publishes its bytes contain. A publication that they do not contain
//     is overlaid on the pushed bytes, so that the node's own stores under way are neither dropped
//     nor counted twice.
//   - What the kernel's page cache was last given is kept by pages.Cached.
//
// # Locks
//
// Area.mu guards one area. Node.mu guards the map of areas and is never held while an area is
// locked. attached.mu guards what attached programs have mapped; it is held over scans of their
// memory, and Area.mu is taken under it (Area.note). handovers.mu guards which slots are being
// handed over. No lock is held over Send, a kernel notification or a callback, nor over calls of
// the catalog that do more than look into its memory.
//
// Methods of Area whose names end in Locked run within a step: they expect that Area.mu is held. All
// others take it, run steps, or need no lock.
package coherence
