// Package merge knows how the elements of an area merge.
//
// A Kernel is the rule by which they do: an immutable value. A Delta is the changed elements of one
// extent, as they travel from a replica to the home. The package is pure computation
// on bytes that its callers own and guard; no function keeps any.
//
// # Memory
//
// Pages are slices of exactly dsm.PageSize bytes. They are cast to arrays of words, which works for any alignment that
// amd64 and arm64 can load from, which is all, and is fastest on aligned pages.
// Memory that other processes store to at the same moment must be aligned, and is for the functions of
// shared.go only.
// Elements are little-endian in memory and in deltas, as .npy files and both
// architectures have them.
package merge
