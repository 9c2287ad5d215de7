// Package pages keeps the memory of the areas on this node.
//
// It owns three nouns. An Area is the two copies that a node has of an area: the working copy,
// which programs see and store into, and the base copy, with which their stores are compared. In an
// area on demand only some pages are here: Install brings pages, Evict removes them. Cached is the
// ledger of what the kernel's page cache was last given, the third baseline beside the base copy
// and the home. Tracking knows what attached programs have mapped for writing, and finds what they
// stored.
//
// How elements merge is in pages/merge; which pages should leave first is decided by
// pages/residency.
//
// # Concurrency
//
// The package only handles memory: it does not use the network and starts no goroutine. Its user,
// coherence, has the area's lock for every call on an Area or a Cached. For calls on a Tracking it has another lock, because Sources make system calls that may
// wait. The package itself takes two locks: that of the memory of small copies (arena), and that of a Filler of internal/uffd. Attached programs store into
// working copies and have no lock; Cached.SetShared and the functions of pages/merge for shared memory handle that.
//
// # Memory
//
// Pages are slices of exactly dsm.PageSize bytes. Those that an Area returns are page-aligned parts
// of its mappings. They are valid until the Area's next Resize, OpenWorking, EndReplica or Close, and
// only as long as the caller has the lock.
package pages
