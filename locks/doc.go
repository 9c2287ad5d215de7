// Package locks is the locks of files: flock(2), and the byte ranges of fcntl(2), those of
// a process and those of an open file, as one cluster sees them.
//
//	lock.go table.go set.go   who holds what, who waits, and who waits in a circle
//	book.go                   what all nodes agree on: part of the catalog's state machine
//	node.go wait.go news.go   a node's side
//
// # Delegation
//
// Most files are locked by the programs of one node only. So the first node that
// locks a file is delegated its locks: one command of the catalog, and from then on that node
// grants and takes back locks of the file by itself, without a message. When another
// node wants a lock the delegation is recalled. Its holder then enters what its programs hold, and
// what they wait for, into the book (surrender), and until nobody holds a lock of the
// file or waits for one, each lock and unlock is a command. The next node that locks it is delegated it again.
//
// All nodes see the commands in one order, so that there is one answer to who holds a lock.
//
// # Who gets a lock
//
// What Linux does on one machine. A lock that nobody's lock is in the way of is granted at once, also if
// others wait. Those that wait are looked at in their order whenever a lock goes. A process that would wait
// for itself through others, over any files, gets EDEADLK; flock knows no such thing. A flock that changes its
// kind is given up first.
//
// Locks of a process and those of an open file are the same here: the kernel does not
// tell which one is asked for. So a circle of the latter is EDEADLK, too.
//
// # A node that dies
//
// The leader of the catalog drops the locks of a node that it has not heard of for DropAfter. A node
// grants nothing unless the leader has answered it within GrantFor, which is less, so two nodes never both
// grant. A node that was dropped nevertheless (it was stopped, or cut off) fails
// all lock calls for the files of which its programs believed to hold locks, until these have closed them.
package locks
