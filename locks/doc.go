// Package locks implements file locks for the whole cluster: flock(2), and the byte-range locks of
// fcntl(2), both those that a process owns and those that an open file owns.
//
//	lock.go table.go set.go   who has which lock, who waits, and who waits in a circle
//	book.go                   the state that all nodes agree on: part of the catalog's state machine
//	node.go wait.go news.go   the part that runs on each node
//	yield.go                  how a node gives up what it does not need
//
// # Delegation
//
// Most files are locked by the programs of one node only. So a node that opens a file for writing,
// alone, gets its locks delegated by the command of the open, and else the first node that locks a
// file gets them by a command. From then on that node grants and releases locks of
// the file by itself, without a message.
//
// When another node opens the file for writing or asks for a lock, the leader of the catalog first
// asks the node that has the delegation to yield it. A node yields unless its programs lock the file.
// The command of the other node brings that word to the book, which passes the delegation on at
// once: who opens a file that others have open, and do not lock just then, locks it without a
// message, too. What was passed on by an open and was not used is not passed on by the next.
//
// A node whose programs lock the file does not yield. Then the request recalls the delegation. The
// node that had it enters into the book which locks its programs hold and which they wait for; this
// is called the surrender. From then on each lock and unlock is a catalog command, until nobody
// holds a lock of the file or waits for one. The next node that locks the file gets it delegated
// again. An open recalls nothing, but a node that has not used what came with its own open surrenders it.
//
// All nodes see the commands in the same order, so they agree on who holds which lock.
//
// # Why no lock is given twice
//
// Only the book begins and ends a delegation, in the order of the log. Each has a number, its term.
// A node grants locks of a file only between two events of the log: one that begins a term of its
// own, and one that ends it. Where it stops before the book knows, it has said so for that term:
//
//   - It surrenders: it grants nothing more, and its command says all that it has granted.
//   - It yields: it has no lock and grants none. If it wants one, it has to ask the book, and the
//     book gives it a new term (Request.Renew). A word for the old term then means nothing.
//
// So a word that is in the log in time is true, and one that comes late has no effect. It does not
// matter who carries it: a leader that dies with it, or that was deposed and does not know, leaves
// a node that has to ask for its next lock, and nothing else. A new leader has nothing to find out.
// If the node dies after it has yielded, the command has its word, or waits for the end of its
// delegation as below.
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
// The locks of a node end when it is evicted from the cluster. A node grants locks only while its lease lasts (Cluster.MayGrant), and it
// is evicted only after that, so two nodes never both grant. A node may have been evicted although it lives, because
// it was stopped or cut off. It then fails all lock calls for the files that its programs believed
// to have locked, until they have closed these files or released all locks: that fails, too. What they store meanwhile is not published: see Node.Dropped.
package locks
