package catalog

import (
	"bytes"
	"fmt"
	"io"

	"github.com/hashicorp/raft"

	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// snapStore keeps the newest snapshot in memory. raft's own InmemSnapshotStore
// shows a snapshot to readers while it is still being written.
type snapStore struct {
	// created is told the configuration of every snapshot, wherever the snapshot comes from.
	created func(index uint64, conf raft.Configuration)
	// keep is told each snapshot that is complete, before it counts.
	keep func(*snapshot) error

	mu struct {
		lockrank.Mutex
		latest *snapshot // complete, never changed
	}
}

// snapshot is a snapshot as raft writes it.
type snapshot struct {
	store *snapStore
	meta  raft.SnapshotMeta
	data  bytes.Buffer
}

func newSnapStore(created func(uint64, raft.Configuration), keep func(*snapshot) error) *snapStore {
	s := &snapStore{created: created, keep: keep}
	s.mu.Init("catalog.snapStore")
	return s
}

func (s *snapStore) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, cIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	s.created(cIndex, c)
	return &snapshot{store: s, meta: raft.SnapshotMeta{
		Version: version, ID: fmt.Sprintf("%d-%d", term, index), Index: index, Term: term,
		Configuration: c, ConfigurationIndex: cIndex,
	}}, nil
}

func (s *snapStore) List() ([]*raft.SnapshotMeta, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.latest == nil {
		return nil, nil
	}
	meta := s.mu.latest.meta
	return []*raft.SnapshotMeta{&meta}, nil
}

func (s *snapStore) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.latest == nil || s.mu.latest.meta.ID != id {
		return nil, nil, fmt.Errorf("snapshot %s is replaced", id)
	}
	meta := s.mu.latest.meta
	return &meta, io.NopCloser(bytes.NewReader(s.mu.latest.data.Bytes())), nil
}

// newest returns the newest snapshot, or nil.
func (s *snapStore) newest() *snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.latest
}

func (w *snapshot) Write(b []byte) (int, error) { return w.data.Write(b) }

func (w *snapshot) ID() string { return w.meta.ID }

func (w *snapshot) Cancel() error { return nil }

// Close makes the snapshot visible, unless there is a newer one.
func (w *snapshot) Close() error {
	if err := w.store.keep(w); err != nil {
		return err
	}
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	w.meta.Size = int64(w.data.Len())
	if old := w.store.mu.latest; old == nil || old.meta.Index <= w.meta.Index {
		w.store.mu.latest = w
	}
	return nil
}
