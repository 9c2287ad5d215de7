// Package pages keeps the memory of the areas on this node.
//
// It owns three nouns. An Area is the two copies that a node has of an area: the
// working copy that programs see and store into, and the base copy that their
// stores are compared with. In an area of demand kind only some pages are here: Install brings
// pages, Evict gives them up. Cached is the ledger of what the kernel's page cache
// was last given, which is the third baseline beside the base copy and the home. Tracking
// knows what attached programs have mapped for writing, and finds what they stored.
// How elements merge is pages/merge; which pages should leave first says pages/residency.
//
// # Concurrency
//
// The package is pure memory: it does no network, starts no goroutine and takes
// no lock but that of a Filler of internal/uffd. Whoever calls it (coherence) holds the lock of the area for every
// call on the area's Area and Cached; a Tracking is under a lock of its own, for its
// Sources make system calls that may wait. Programs that
// attached store into working copies and hold no lock: Cached.SetShared, and what
// pages/merge has for shared memory, are for that.
//
// # Memory
//
// Pages are slices of exactly dsm.PageSize bytes. Those that an Area hands out
// are page-aligned windows of its mappings: they are valid until the Area's next
// Resize or Close, and never beyond the caller's hold of the lock.
package pages
