// Package locks implements file locks for the whole cluster: flock(2), and the byte-range locks of
// fcntl(2), both those that a process owns and those that an open file owns.
//
//	lock.go table.go set.go   who has which lock, who waits, and who waits in a circle
//	book.go                   the state that all nodes agree on: part of the catalog's state machine
//	node.go wait.go news.go   the part that runs on each node
//
// # Delegation
//
// Most files are locked by the programs of one node only. So a node that opens a file for writing,
// alone, gets its locks delegated by the command of the open, and else the first node that locks a
// file gets them by a command. From then on that node grants and releases locks of
// the file by itself, without a message. When another node asks for a lock, the delegation is
// recalled. The node that had it then enters into the book which locks its programs hold and which
// they wait for; this is called the surrender. From then on each lock and unlock is a catalog
// command, until nobody holds a lock of the file or waits for one. The next node that locks the
// file gets it delegated again. What came with an open and was not used is surrendered as soon as
// another node opens the file for writing.
//
// All nodes see the commands in the same order, so they agree on who holds which lock.
//
// # Who gets a lock
//
// The rules are those of Linux on one machine. A lock that conflicts with no other lock is granted
// at once, even if others wait. Whenever a lock is released, the waiting requests are tried in the
// order in which they came. A process that would wait for itself, through any number of others and
// files, gets EDEADLK; flock has no such check. Changing the type of a flock first releases the old
// lock.
//
// Locks owned by a process and locks owned by an open file are treated alike, because the kernel
// does not tell which kind a request is for. So a circle of open-file locks is EDEADLK too.
//
// # A node that dies
//
// The leader of the catalog drops the locks of a node from which it has heard nothing for
// DropAfter. A node grants locks only if the leader has answered it within GrantFor, which is
// shorter, so two nodes never both grant. A node may have been dropped although it lives, because
// it was stopped or cut off. It then fails all lock calls for the files that its programs believed
// to have locked, until they have closed these files.
package locks
