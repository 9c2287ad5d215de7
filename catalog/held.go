package catalog

import (
	"context"
	"hash/fnv"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/hold"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// A node may be held (package hold): then its log, votes and snapshot are in a journal too, and the daemon
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

// Resume goes on in place of the daemon that was killed, and returns when the catalog serves. alone says that no other node is a member, so this one is
// still the home of all. errs.Evicted: the cluster has taken the node for dead; errs.Busy: nobody else has something that it was the home of. Then no daemon
// can follow. The caller has Join requests of others wait until the whole node has resumed.
func (c *Catalog) Resume(ctx context.Context, served dsm.Ledger) (alone bool, err error) {
	c.lease.resume()
	if id := c.calls.held.mem.Word(hold.Cluster).Load(); id != 0 {
		c.belong(dsm.ClusterID(id))
	}
	c.admitted.Store(&wire.Joined{}) // by a leader of which the log will tell
	c.news.ring()
	servers := c.servers()
	voters := slices.DeleteFunc(slices.Clone(servers), func(s server) bool { return !s.voter })
	if len(voters) == 1 && voters[0].id == c.self.ID {
		if err := c.electSelf(ctx); err != nil {
			return false, named("resume", err)
		}
	}
	if len(servers) == 1 && len(c.Current().Members) <= 1 {
		c.away.Store(false)
		return true, nil
	}
	// The command is proposed as soon as there is a leader: that has raft bring this node up to date at once.
	return false, c.back(ctx, served, func() bool { return c.Leader() != 0 })
}

// Back says that this node has nothing any more of what a former daemon was the home of, but for the slots that this had all of: see back.go.
func (c *Catalog) Back(ctx context.Context, served dsm.Ledger) error {
	return c.back(ctx, served, func() bool { return true })
}

// back is Back when a condition is true. It fails when the node is evicted.
func (c *Catalog) back(ctx context.Context, served dsm.Ledger, when func() bool) error {
	ctx, cancel := c.untilEvicted(ctx)
	defer cancel()
	err := c.news.until(ctx, c.life, when)
	if err == nil {
		last, keep := c.calls.former()
		noted := c.calls.held.mem.Word(hold.NotedInc)
		if _, err = c.propose(ctx, backOp{Node: c.self.ID, Inc: c.self.Inc, Last: last, Keep: keep, Noted: noted.Load(), Served: served}); err == nil {
			noted.Store(c.self.Inc) // it has those results
		}
	}
	if c.signs.out() {
		err = errs.E(errs.Evicted, "", "the cluster has taken this node for dead")
	}
	if err == nil {
		c.away.Store(false)
	}
	return named("resume", err)
}

// former returns the number of the last command of daemons before, and which of their commands requests of the kernel may bring again.
func (cs *calls) former() (last uint64, again []uint64) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	last = cs.held.before
	for _, req := range cs.held.known {
		if req <= last && req+hold.MostRequests > last {
			again = append(again, req)
		}
	}
	slices.Sort(again)
	return last, again
}

// Claimed returns the files that this node claims.
func (c *Catalog) Claimed() (inos []dsm.Ino) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, ino := range sortedKeys(c.mu.state.inodes) {
		if _, ok := c.mu.state.inodes[ino].claims[c.self.ID]; ok {
			inos = append(inos, ino)
		}
	}
	return inos
}

// signToFormer sends a sign of life to one of the servers that the journal names, of which raft has applied nothing yet: only a leader says how much of it counts, and none does if
// the cluster has evicted this node.
func (c *Catalog) signToFormer(ctx context.Context, try int) error {
	servers := slices.DeleteFunc(c.servers(), func(s server) bool { return s.id == c.self.ID })
	if len(servers) == 0 {
		return errs.E(errs.Unavailable, "", "there are no others")
	}
	to, epoch := servers[try%len(servers)], dsm.Epoch(c.calls.held.mem.Word(hold.Epoch).Load())
	_, err := c.caller.Call(ctx, nodeAddr(to.id, to.addr), &wire.ReadIndex{From: c.self.ID, Inc: c.self.Inc, Epoch: epoch, Sign: true})
	if err == nil { // it leads: soon raft hears of it
		err = errs.E(errs.NotLeader, "", "")
	}
	return err
}

// EndsWithDaemon says to the cluster that no daemon follows this one: when it ends the node is gone, as one without a holder, which nobody waits for.
func (c *Catalog) EndsWithDaemon(ctx context.Context) error {
	_, err := c.propose(ctx, unheldOp{c.self.ID, c.self.Inc})
	return err
}

func (o unheldOp) apply(s *state, st step) (dsm.Inode, error) {
	m, ok := s.view.Member(o.Node)
	switch {
	case !ok || m.Gone || m.Inc != o.Inc || st.node != o.Node:
		return dsm.Inode{}, fail(errs.Evicted, "node %s", o.Node)
	case !m.Held:
		return dsm.Inode{}, nil
	}
	s.reviewed(func(v *dsm.View) {
		for i := range v.Members {
			v.Members[i].Held = v.Members[i].Held && v.Members[i].ID != o.Node
		}
	})
	return dsm.Inode{}, nil
}

// isHeld reports whether a node is a member with a holder: if its daemon is killed another one may follow.
func (c *Catalog) isHeld(id dsm.NodeID) bool {
	m, ok := c.Current().Member(id)
	return ok && m.Held && !m.Gone
}

// heldCalls is the part of calls that outlives the daemon.
type heldCalls struct {
	mem    *hold.Memory
	inc    uint64                  // of this node
	known  map[hold.Request]uint64 // the commands of requests that came to an earlier daemon; guarded by calls.mu
	before uint64                  // the last number of a command of those
}

func (h *heldCalls) init(m *hold.Memory, inc uint64) {
	h.mem, h.inc = m, inc
	if m == nil {
		return
	}
	h.known, h.before = m.Noted(), m.Word(hold.LastRequest).Load()
	for _, req := range h.known { // the daemon may have been killed when it had noted the last one, and no more
		h.before = max(h.before, req)
	}
}

// viewed notes a view.
func (h *heldCalls) viewed(v *dsm.View, self dsm.Member) {
	if h.mem == nil {
		return
	}
	if m, ok := v.Member(self.ID); ok && m.Inc == self.Inc && !m.Gone && uint64(v.Epoch) > h.mem.Word(hold.Epoch).Load() {
		h.mem.Word(hold.Epoch).Store(uint64(v.Epoch))
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
	body, err := wire.Marshal(requested(o))
	if err != nil {
		return r, err
	}
	sum := fnv.New64a()
	_, _ = sum.Write(append(body, byte(kind))) // which cannot fail
	r.Sum = sum.Sum64()
	return r, nil
}

// requested is of an operation what every daemon takes from the same request of the kernel. Which directory the kernel means by a name only the daemon
// knows to which the request came first.
func requested(o op) op {
	switch o := o.(type) {
	case rmdirOp:
		o.Is = 0
		return o
	case renameOp:
		o.Over = 0
		return o
	}
	return o
}

// number notes the number of a command, and the last one, and returns up to which number results may be forgotten.
func (h *heldCalls) number(r hold.Request, req, last, low uint64) uint64 {
	if h.mem == nil {
		return low
	}
	if r.Unique != 0 {
		h.mem.Word(hold.NotedInc).Store(h.inc)
		h.mem.Note(r, req)
	}
	h.mem.Word(hold.LastRequest).Store(last)
	return min(low, max(last, hold.MostRequests)-hold.MostRequests+1)
}
