// Package merge defines how the elements of an area merge.
//
// A Kernel is the merge rule with the type of the elements, an immutable value. A Delta is the
// changed elements of one extent, as they travel from a replica to the home. The package only
// computes on bytes, which its callers own and guard; no function keeps a reference.
//
// # Memory
//
// Pages are slices of exactly dsm.PageSize bytes. They are cast to arrays of words. That works for
// any alignment, because amd64 and arm64 can load from any address, but is fastest on aligned
// pages. Memory that other processes may be storing to must be aligned, and only the functions of
// shared.go may be used on it. Elements are little-endian in memory and in deltas, as in .npy files
// and on both architectures.
package merge
