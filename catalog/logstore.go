package catalog

import (
	"github.com/hashicorp/raft"

	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// logConf is a configuration and its index in the log; 0: not known to be in it.
type logConf struct {
	index uint64
	conf  raft.Configuration
}

// logStore keeps the log of raft in memory, from the last snapshots on. It is raft's LogStore and
// StableStore; the package comment says why it need not outlive the process.
type logStore struct {
	mu struct {
		lockrank.RWMutex
		first   uint64 // index of entries[0]
		entries []raft.Log
		// conf is the newest configuration in the log, and before is the one before that. A leader
		// makes no other until conf is committed, so if conf is deleted, before is the newest.
		conf, before logConf
		values       map[string][]byte
		numbers      map[string]uint64
		held         heldLog
	}
}

func newLogStore() *logStore {
	s := new(logStore)
	s.mu.Init("catalog.logStore")
	s.mu.values = make(map[string][]byte)
	s.mu.numbers = make(map[string]uint64)
	return s
}

func (s *logStore) FirstIndex() (uint64, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if len(s.mu.entries) == 0 {
		return 0, nil
	}
	return s.mu.first, nil
}

func (s *logStore) LastIndex() (uint64, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if len(s.mu.entries) == 0 {
		return 0, nil
	}
	return s.mu.first + uint64(len(s.mu.entries)) - 1, nil
}

func (s *logStore) GetLog(index uint64, l *raft.Log) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if index < s.mu.first || index-s.mu.first >= uint64(len(s.mu.entries)) {
		return raft.ErrLogNotFound
	}
	*l = s.mu.entries[index-s.mu.first]
	return nil
}

func (s *logStore) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

// StoreLogs appends entries. It replaces existing entries from the first one's index on. A gap
// means that a snapshot was installed, and the entries before it are of no use.
func (s *logStore) StoreLogs(logs []*raft.Log) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.held.journal != nil {
		records := make([]heldRecord, len(logs))
		for i, l := range logs {
			records[i] = entryRecord(l)
		}
		if err := s.mu.held.add(records...); err != nil {
			return err
		}
	}
	for _, l := range logs {
		if n := l.Index - s.mu.first; l.Index >= s.mu.first && n <= uint64(len(s.mu.entries)) {
			s.mu.entries = s.mu.entries[:n]
		} else {
			s.mu.entries = nil
		}
		if len(s.mu.entries) == 0 {
			s.mu.first = l.Index
		}
		s.mu.entries = append(s.mu.entries, *l)
		s.uncoverLocked(l.Index)
		if l.Type == raft.LogConfiguration {
			s.mu.before, s.mu.conf = s.mu.conf, logConf{l.Index, raft.DecodeConfiguration(l.Data)}
		}
	}
	return nil
}

// DeleteRange deletes a head or a tail of the log: raft deletes nothing else.
func (s *logStore) DeleteRange(low, high uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	end := s.mu.first + uint64(len(s.mu.entries)) // end of the log, exclusive
	if err := s.mu.held.add(heldRecord{Kind: heldDelete, Index: low, Last: high}); err != nil {
		return err
	}
	switch {
	case low > high || high < s.mu.first || low >= end:
	case low <= s.mu.first:
		keep := s.mu.entries[min(high+1, end)-s.mu.first:]
		s.mu.entries = append([]raft.Log(nil), keep...) // the rest is freed
		s.mu.first = min(high+1, end)
		return s.compactLocked()
	default:
		clear(s.mu.entries[low-s.mu.first:])
		s.mu.entries = s.mu.entries[:low-s.mu.first]
		s.uncoverLocked(low)
	}
	return nil
}

// uncoverLocked forgets configurations at the index or later.
func (s *logStore) uncoverLocked(index uint64) {
	for s.mu.conf.index >= index {
		s.mu.conf, s.mu.before = s.mu.before, logConf{}
	}
}

// follows reports whether an entry that comes after the one with the index and term comes right
// after this log's end. Then this whole log is also that of the leader which sent it. It also
// returns the newest configuration in the log.
func (s *logStore) follows(index, term uint64) (raft.Configuration, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	n := len(s.mu.entries)
	if n == 0 || s.mu.conf.index == 0 {
		return raft.Configuration{}, false
	}
	last := &s.mu.entries[n-1]
	return s.mu.conf.conf, last.Index == index && last.Term == term
}

// restored says that a snapshot has brought a configuration that the log may not have.
func (s *logStore) restored(index uint64, conf raft.Configuration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if index > s.mu.conf.index {
		s.mu.conf, s.mu.before = logConf{index, conf}, logConf{}
	}
}

func (s *logStore) Set(key, value []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.values[string(key)] = append([]byte(nil), value...)
	return s.mu.held.add(heldRecord{Kind: heldValue, Key: string(key), Data: value})
}

func (s *logStore) Get(key []byte) ([]byte, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.mu.values[string(key)], nil
}

func (s *logStore) SetUint64(key []byte, value uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.numbers[string(key)] = value
	return s.mu.held.add(heldRecord{Kind: heldNumber, Key: string(key), Number: value})
}

func (s *logStore) GetUint64(key []byte) (uint64, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.mu.numbers[string(key)], nil
}
