// Package fs is the mounted filesystem of one node: it answers the kernel's
// requests out of the catalog of names (Names) and the data plane (Areas), and
// tells the kernel what other nodes changed. It is the only importer of go-fuse.
//
// The kernel knows an inode by its number in the catalog, which is never used
// twice. It keeps names and attributes only for the moments in which the catalog
// says that no other node changes them (Names.Keep): else every path walk asks the
// catalog. Pages stay in the kernel's cache, and these the data plane keeps coherent.
//
// # What it owns
//
// One openArea per area that a program has open here (opens.go): its handles,
// the size that the kernel was last told, and how far its stores are published.
// The harvester (package harvest), a child process that by itself makes the kernel hand
// over at every area's interval what programs stored into their mappings, and the
// timers by which that is published (interval.go); a node on which nobody stores, or is
// attached for writing, does nothing. The memory plane (package attach), where programs get
// the working copy itself; it works without a mount too (nomount.go). The files that
// plain opens get as the memory itself (direct.go). The queue of what the kernel must be told (notify.go). The tree of
// control files /.dsm (package control).
//
// # Deadlocks
//
// The daemon never touches its own mount: a FLUSH to itself hangs its exit, and a page fault of
// its own mount while the Go runtime stops the world hangs it for good. What
// needs an open file of the mount is done by the harvester's child.
//
// A notification blocks while a READ of the same page is unanswered and, for a
// dirty page, until its WRITE is answered. So none is sent from the handler of a READ, a WRITE or a
// SETATTR, nor with a lock held; each area has a worker for them. The handler of a
// WRITE waits for nothing but, if the file must grow, the catalog.
//
// Every request of the kernel ends by Config.FaultTimeout: an unanswered READ makes other
// opens of the file unkillable, an unanswered WRITE the exit of the process.
//
// # What is not supported
//
//   - Device nodes, sockets, fifos: EPERM.
//   - Extended attributes other than user.* and trusted.*: EOPNOTSUPP. File flags (chattr): EOPNOTSUPP.
//   - Locks of directories and of the files of /.dsm hold on one node only, or not at all (ENOLCK).
//   - After an append the position of the descriptor is where this node's kernel believes the end to be. RWF_APPEND
//     of pwritev2(2) is not seen: it writes there. A write(2) of more than 1 MiB less a page is appended in pieces.
//   - fallocate modes other than growing and punching: EOPNOTSUPP.
//   - access times do not change by reading.
package fs
