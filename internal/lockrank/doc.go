// Package lockrank declares the order in which locks are taken, once, as text, and checks it at run
// time in builds with the tag "invariants".
//
// A Mutex or RWMutex of this package has a rank, which Init sets before the first use. A goroutine
// that holds a lock of rank a may take one of rank b only if the text (order.txt) says a < b,
// directly or through other ranks. Otherwise it panics with both ranks and with where the first
// lock was taken, whether or not this run has the other goroutine that would make it a deadlock. No
// goroutine holds two locks of one rank.
//
// Without the tag the types are those of package sync with one additional empty method, and cost
// the same.
//
// # How the text is kept true
//
// A rank is named PACKAGE.TYPE after the struct that contains the lock. The test of this package
// reads the source of the whole tree: every struct with a lock in it is in the text and calls Init
// with its name, its lock is one of this package, and every name in the text is such a struct. While
// a lock whose line has no "<" is held, no other lock is taken.
//
// When not to use it: in tests, in commands with one goroutine, and for locks that never leave a
// function.
package lockrank
