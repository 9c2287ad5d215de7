//go:build !invariants

package lockrank

import "sync"

// Mutex is a sync.Mutex with a rank.
type Mutex struct{ sync.Mutex }

// Init gives the lock its rank. It is called once, before the first use.
func (*Mutex) Init(Rank) {}

// RWMutex is a sync.RWMutex with a rank. Reading and writing count alike.
type RWMutex struct{ sync.RWMutex }

// Init gives the lock its rank. It is called once, before the first use.
func (*RWMutex) Init(Rank) {}
