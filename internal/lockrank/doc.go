// Package lockrank is the order in which locks are taken: declared once, as
// text, and checked at run time in builds with the tag "invariants".
//
// A Mutex or RWMutex of this package has a rank, given by Init before the first
// use. A goroutine that takes a lock of rank b while it holds one of rank a is
// right only if the text (order.txt) says a < b, directly or through others;
// anything else panics with both ranks and where the first one was taken, whether or not
// the other goroutine that would make it a deadlock exists in this run. Two locks of
// one rank are never held together.
//
// Without the tag the types are those of package sync with one empty method
// more, and cost the same.
//
// # How the text is kept true
//
// A rank is named PACKAGE.TYPE after the struct that contains the lock. The
// test of this package reads the source of the whole tree: every struct with a
// lock in it is in the text and has an Init with its name, its lock is one of this
// package, and every name in the text is such a struct. While a lock without a "<" is
// held none is taken.
//
// When not to use it: in tests, in commands of one goroutine, and for locks that
// never leave one function.
package lockrank
