// Package pages keeps the memory of the areas on this node and knows how
// their elements merge.
//
// It owns six nouns. An Area is the two copies that a node has of an area: the
// working copy that programs see and store into, and the base copy that their
// stores are compared with. In an area of demand kind only some pages are here: Install brings
// pages, Evict gives them up. A Kernel is the rule by which the elements of an
// area merge. A Delta is the changed elements of one extent, as they travel from
// a replica to the home. Cached is the ledger of what the kernel's page cache
// was last given, which is the third baseline beside the base copy and the home. Tracking
// knows what attached programs have mapped for writing, and finds what they stored. Residency, for all
// areas of the node, says which pages should leave first.
//
// # Concurrency
//
// The package is pure memory: it does no network, starts no goroutine and takes
// no lock but that of a Filler of internal/uffd. (A Residency is the exception: it has a lock of
// its own, and the goroutines of ristretto.) Whoever calls it (coherence) holds the lock of the area for every
// call on the area's Area and Cached; a Tracking is under a lock of its own, for its
// Sources make system calls that may wait. A Kernel is an immutable value. Programs that
// attached store into working copies and hold no lock: shared.go and
// Cached.SetShared are for that.
//
// # Memory
//
// Pages are slices of exactly dsm.PageSize bytes. Those that an Area hands out
// are page-aligned windows of its mappings: they are valid until the Area's next
// Resize or Close, and never beyond the caller's hold of the lock. The merge
// functions cast pages to arrays of words; they work for any alignment that
// amd64 and arm64 can load from, which is all, and are fastest on aligned pages;
// memory that others store to must be aligned.
// Elements are little-endian in memory and in deltas, as .npy files and both
// architectures have them.
package pages
