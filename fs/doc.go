// Package fs is the mounted filesystem of one node. It answers the kernel's requests from the
// catalog of names (Names) and the data plane (Areas), and tells the kernel what other nodes
// changed. It is the only importer of go-fuse.
//
// The kernel knows an inode by its number in the catalog, which is never reused. It keeps names and
// attributes only for the moments in which the catalog promises that no other node changes them
// (Names.Keep); otherwise every path walk asks the catalog. Pages stay in the kernel's cache, and
// the data plane keeps them coherent.
//
// # What it owns
//
//	opens.go      one openArea for each area that a program has open here: its handles, the size
//	              that the kernel was last told, and how far its stores are published
//	interval.go   the timers that publish stores at each area's interval. A node on which nobody
//	              stores, or is attached for writing, does nothing
//	notify.go     the queue of what the kernel must be told
//	direct.go     files whose plain opens get the memory itself
//	versions.go   files of single versions of an area
//	streams.go    which version a program reads
//	nomount.go    a node without a mount
//	harvest       (package) the harvester: a child process that makes the kernel hand over, at every
//	              area's interval, what programs stored into their mappings
//	attach        (package) the memory plane, where programs get the working copy itself
//	control       (package) the tree of control files /.dsm
//
// # Deadlocks
//
// The daemon never touches its own mount. A FLUSH to itself would block its exit, and a page fault
// of its own mount while the Go runtime stops the world would block it for good. Work that needs an
// open file of the mount is done by the harvester's child.
//
// A notification blocks while a READ of the same page is unanswered and, for a dirty page, until
// its WRITE is answered. So none is sent from the handler of a READ, a WRITE or a SETATTR, nor with
// a lock held; each area has a worker for them. The handler of a WRITE waits only for the catalog,
// if the file must grow.
//
// Every request of the kernel ends by Config.FaultTimeout: an unanswered READ makes other opens of
// the file unkillable, an unanswered WRITE the exit of the process.
//
// # What is not supported
//
//   - Device nodes, sockets, fifos: EPERM.
//   - Extended attributes other than user.* and trusted.*: EOPNOTSUPP. File flags (chattr):
//     EOPNOTSUPP.
//   - Locks of directories and of the files of /.dsm count on one node only, or not at all (ENOLCK).
//   - After an append the position of the descriptor is where this node's kernel believes the end
//     to be. RWF_APPEND of pwritev2(2) is not seen: it writes there. A write(2) of more than 1 MiB
//     less a page is appended in pieces.
//   - fallocate modes other than growing and punching: EOPNOTSUPP.
//   - `..` in a working directory that another node has moved leads to where it was, until a program
//     of this node looks at the directory under its new name; for good if that is mkdir(2) or the like.
//   - A mapping of a versioned file, sendfile(2) and the like show a version while it is put in place.
//     Use versions/NUMBER.
//   - Access times do not change by reading.
package fs
