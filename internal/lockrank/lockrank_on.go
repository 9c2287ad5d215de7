//go:build invariants

package lockrank

import "sync"

// Mutex is a sync.Mutex with a rank.
type Mutex struct {
	mu   sync.Mutex
	rank Rank
}

// Init gives the lock its rank. It is called once, before the first use.
func (m *Mutex) Init(r Rank) { m.rank = declared(r) }

// Lock takes the lock.
func (m *Mutex) Lock() {
	acquire(m, m.rank)
	m.mu.Lock()
}

// TryLock takes the lock if it is free. It cannot deadlock itself, but counts as held for the locks
// taken after it.
func (m *Mutex) TryLock() bool {
	if !m.mu.TryLock() {
		return false
	}
	acquire(m, m.rank)
	return true
}

// Unlock gives the lock back.
func (m *Mutex) Unlock() {
	release(m)
	m.mu.Unlock()
}

// RWMutex is a sync.RWMutex with a rank. Reading and writing count alike.
type RWMutex struct {
	mu   sync.RWMutex
	rank Rank
}

// Init gives the lock its rank. It is called once, before the first use.
func (m *RWMutex) Init(r Rank) { m.rank = declared(r) }

// Lock takes the lock for writing.
func (m *RWMutex) Lock() {
	acquire(m, m.rank)
	m.mu.Lock()
}

// Unlock gives the lock back after Lock.
func (m *RWMutex) Unlock() {
	release(m)
	m.mu.Unlock()
}

// RLock takes the lock for reading.
func (m *RWMutex) RLock() {
	acquire(m, m.rank)
	m.mu.RLock()
}

// RUnlock gives the lock back after RLock.
func (m *RWMutex) RUnlock() {
	release(m)
	m.mu.RUnlock()
}
