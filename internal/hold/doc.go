// Package hold keeps what must outlive a daemon that is killed: one memfd, which a small process, the holder, keeps open beside
// /dev/fuse. A daemon writes to it while it works; the next daemon finds there what the kernel and the programs rely on.
//
//	head        a page of numbers and strings: who the node is, what was negotiated with the kernel
//	requests    which number a request of the kernel had as a command of the catalog
//	journals    the catalog's log, and what is open: records that are appended, and now and then written anew
//	areas       where the copies of each area are
//	tags        what the frames have
//	frames      single pages of an area that are in neither copy, and values that were given up
//	pages       the copies themselves
//
// The file is sparse, and the parts are far apart in it. A process that is killed stops between two instructions, and the machine
// goes on: so what was stored before is there, in order, and a store of eight bytes is whole. Nothing here survives the machine.
//
// Only one daemon has a Memory at a time. A Journal expects that its user has a lock.
package hold
