package catalog

import (
	"context"
	"hash/fnv"
	"time"

	"github.com/hashicorp/raft"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/hold"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// A node alone in its cluster may be held (package hold): then its log, votes and snapshot are in a journal too, and the daemon
// that follows a killed one goes on with them, as the same server. It has all that was ever answered, so this is no vote that was
// forgotten.
//
// A request of the kernel that was not answered comes again to that daemon. It is proposed under the number that it had,
// so it is applied once (session). For that the node lets the last numbers pass only hold.MostRequests later.

// heldRecord is a change of the log's stores.
type heldRecord struct {
	Kind  heldKind
	Index uint64 // of an entry; the first of those that are deleted
	Last  uint64 // the last entry that is deleted
	Term  uint64
	Type  uint8
	Data  []byte // of an entry, a snapshot or a value
	Ext   []byte
	At    int64
	Key   string // of a value or a number

	Number    uint64 // or the index of Conf
	Version   int
	Conf      []byte
	ConfIndex uint64
}

type heldKind uint8

const (
	heldEntry heldKind = iota + 1
	heldDelete
	heldValue
	heldNumber
	heldSnapshot
)

func (r heldRecord) encode() ([]byte, error) { return wire.Marshal(r) }

func entryRecord(l *raft.Log) heldRecord {
	return heldRecord{Kind: heldEntry, Index: l.Index, Term: l.Term, Type: uint8(l.Type), Data: l.Data, Ext: l.Extensions, At: l.AppendedAt.UnixNano()}
}

func (r heldRecord) entry() *raft.Log {
	return &raft.Log{Index: r.Index, Term: r.Term, Type: raft.LogType(r.Type), Data: r.Data, Extensions: r.Ext, AppendedAt: time.Unix(0, r.At)}
}

func snapshotRecord(w *snapshot) heldRecord {
	m := &w.meta
	return heldRecord{Kind: heldSnapshot, Index: m.Index, Term: m.Term, Data: w.data.Bytes(), Version: int(m.Version), Conf: raft.EncodeConfiguration(m.Configuration), ConfIndex: m.ConfigurationIndex}
}

// heldLog writes what the stores are told to the journal. Its methods do nothing without one.
type heldLog struct {
	journal *hold.Journal
	newest  *snapshot
}

// add appends records, before the store changes.
func (h *heldLog) add(records ...heldRecord) error {
	if h.journal == nil {
		return nil
	}
	all, err := encodeAll(records)
	if err != nil {
		return err
	}
	return h.journal.Append(all...)
}

func encodeAll(records []heldRecord) ([][]byte, error) {
	all := make([][]byte, len(records))
	for i, r := range records {
		var err error
		if all[i], err = r.encode(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// compactLocked writes the journal anew, with what there is now.
func (s *logStore) compactLocked() error {
	if s.mu.held.journal == nil {
		return nil
	}
	var all []heldRecord
	if w := s.mu.held.newest; w != nil {
		all = append(all, snapshotRecord(w))
	}
	for _, k := range sortedKeys(s.mu.values) {
		all = append(all, heldRecord{Kind: heldValue, Key: k, Data: s.mu.values[k]})
	}
	for _, k := range sortedKeys(s.mu.numbers) {
		all = append(all, heldRecord{Kind: heldNumber, Key: k, Number: s.mu.numbers[k]})
	}
	for i := range s.mu.entries {
		all = append(all, entryRecord(&s.mu.entries[i]))
	}
	text, err := encodeAll(all)
	if err != nil {
		return err
	}
	return s.mu.held.journal.Rewrite(text)
}

// keep records a snapshot that is complete.
func (s *logStore) keep(w *snapshot) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.held.journal == nil {
		return nil
	}
	s.mu.held.newest = w
	return s.mu.held.add(snapshotRecord(w))
}

// resume fills the stores with what the journal has, and writes to it from then on.
func (s *logStore) resume(m *hold.Memory, snaps *snapStore) error {
	err := m.Catalog().Read(func(b []byte) error {
		var r heldRecord
		if err := wire.Unmarshal(b, &r); err != nil {
			return err
		}
		switch r.Kind {
		case heldEntry:
			return s.StoreLog(r.entry())
		case heldDelete:
			return s.DeleteRange(r.Index, r.Last)
		case heldValue:
			return s.Set([]byte(r.Key), r.Data)
		case heldNumber:
			return s.SetUint64([]byte(r.Key), r.Number)
		case heldSnapshot:
			sink, err := snaps.Create(raft.SnapshotVersion(r.Version), r.Index, r.Term, raft.DecodeConfiguration(r.Conf), r.ConfIndex, nil)
			if err == nil {
				_, err = sink.Write(r.Data)
			}
			if err == nil {
				err = sink.Close()
			}
			return err
		}
		return errs.E(errs.Corrupt, "resume", "a record of kind %d", r.Kind)
	})
	newest := snaps.newest()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.held.journal, s.mu.held.newest = m.Catalog(), newest
	return err
}

// Resume goes on in place of the daemon that was killed, and returns when the catalog serves. errs.Busy: the node is not alone in its cluster. The
// daemon may have been killed before it knew of the member that it had taken in; but its log had it first.
func (c *Catalog) Resume(ctx context.Context) error {
	others := errs.E(errs.Busy, "resume", "other nodes had joined when the daemon ended")
	if len(c.servers()) > 1 {
		return others
	}
	if err := c.electSelf(ctx); err != nil {
		return named("resume", err)
	}
	if len(c.Current().Members) > 1 {
		return others
	}
	c.belong(c.view.Load().Cluster)
	return nil
}

// Held returns the files that this node holds.
func (c *Catalog) Held() (inos []dsm.Ino) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, ino := range sortedKeys(c.mu.state.inodes) {
		if _, ok := c.mu.state.inodes[ino].holds[c.self.ID]; ok {
			inos = append(inos, ino)
		}
	}
	return inos
}

// heldCalls is the part of calls that outlives the daemon.
type heldCalls struct {
	mem   *hold.Memory
	known map[hold.Request]uint64 // the commands of requests that came to an earlier daemon; guarded by calls.mu
}

func (h *heldCalls) init(m *hold.Memory) {
	h.mem = m
	if m != nil {
		h.known = m.Noted()
	}
}

// requestOf returns which request of the kernel a command is for, zero if it is for none.
func (h *heldCalls) requestOf(ctx context.Context, kind opKind, o op) (r hold.Request, err error) {
	if h.mem == nil || !ops[kind].seen { // what nobody sees may be done again
		return r, nil
	}
	if r.Unique, _ = ctx.Value(hold.RequestKey{}).(uint64); r.Unique == 0 {
		return r, nil
	}
	body, err := wire.Marshal(o)
	if err != nil {
		return r, err
	}
	sum := fnv.New64a()
	_, _ = sum.Write(append(body, byte(kind))) // which cannot fail
	r.Sum = sum.Sum64()
	return r, nil
}

// number notes the number of a command, and the last one, and returns up to which number results may be forgotten.
func (h *heldCalls) number(r hold.Request, req, last, low uint64) uint64 {
	if h.mem == nil {
		return low
	}
	if r.Unique != 0 {
		h.mem.Note(r, req)
	}
	h.mem.Word(hold.LastRequest).Store(last)
	return min(low, max(last, hold.MostRequests)-hold.MostRequests+1)
}
