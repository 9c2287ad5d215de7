package catalog

import (
	"io"

	"github.com/hashicorp/raft"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/invariants"
)

// fsm is the catalog as raft sees it. raft calls it from one goroutine.
type fsm struct{ c *Catalog }

var (
	_ raft.FSM                = fsm{}
	_ raft.ConfigurationStore = fsm{}
)

// Apply applies a committed command.
func (f fsm) Apply(l *raft.Log) any {
	c := f.c
	c.mu.Lock()
	c.mu.state.term = l.Term
	out, err := c.mu.state.apply(l.Index, l.Data)
	inodes := len(c.mu.state.inodes)
	if invariants.Enabled && l.Index%64 == 0 {
		broken := c.mu.state.check()
		invariants.Check(broken == nil, "catalog at %d: %v", l.Index, broken)
	}
	c.mu.Unlock()
	if err != nil {
		c.log.Error("the catalog's log has an entry that is no command", "index", l.Index, "err", err)
	}
	c.applied(l.Index, out.effects)
	if c.reign.term() != 0 {
		if e := out.effects; e.view != nil || len(e.changed) > 0 {
			c.push.kick()
		} else {
			c.push.kickFor(out.Node, l.Index)
		}
	}
	c.grants.close(out.Node, out.Req)
	mine := out.Node == c.self.ID && out.Inc == c.self.Inc
	if mine {
		c.calls.passed(out.Low)
	}
	if mine && out.fate != ignored {
		c.calls.deliver(out.Req, answer{result: out.result, index: l.Index, term: l.Term})
	}
	c.snap.consider(l.Index, inodes)
	return nil
}

// StoreConfiguration applies a committed configuration of raft.
func (f fsm) StoreConfiguration(index uint64, conf raft.Configuration) {
	c := f.c
	votes := make(map[server]bool) // by id and incarnation
	for _, s := range conf.Servers {
		if p, err := parseServer(s.Address); err == nil && s.Suffrage == raft.Voter {
			votes[server{id: p.id, inc: p.inc}] = true
		}
	}
	c.mu.Lock()
	e := c.mu.state.configure(index, func(m dsm.Member) bool { return votes[server{id: m.ID, inc: m.Inc}] })
	c.mu.Unlock()
	c.applied(index, e)
	if c.reign.term() != 0 {
		c.push.kick()
	}
	c.news.ring()
}

// applied calls the Observer for the effects of an entry, in the order that Observer promises.
func (c *Catalog) applied(index uint64, e effects) {
	if e.view != nil {
		c.view.Store(e.view)
		c.calls.held.viewed(e.view, c.self)
	}
	for _, a := range e.changed {
		c.observer.AreaChanged(a.before, a.after)
	}
	for _, ino := range e.removed {
		c.observer.AreaRemoved(ino)
	}
	if e.view != nil {
		c.observer.ViewChanged(e.view)
	}
	if len(e.locks) > 0 {
		c.observer.LocksChanged(e.locks)
	}
	c.progress.advance(index, c.view.Load().Epoch)
	if e.view != nil {
		c.news.ring()
	}
}

// Snapshot copies the state; it is encoded while further commands are applied.
func (f fsm) Snapshot() (raft.FSMSnapshot, error) {
	f.c.mu.RLock()
	defer f.c.mu.RUnlock()
	return f.c.mu.state.image(), nil
}

// Persist writes the image to raft's store.
func (img *image) Persist(sink raft.SnapshotSink) error {
	b, err := img.encode()
	if err != nil {
		return err
	}
	if _, err := sink.Write(b); err != nil {
		return err
	}
	return sink.Close()
}

// Release does nothing: the garbage collector frees the image when raft drops it.
func (img *image) Release() {}

// Restore replaces the state by a snapshot of the leader's.
func (f fsm) Restore(r io.ReadCloser) error {
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	s, err := restore(b)
	if err != nil {
		return err
	}
	c := f.c
	c.mu.Lock()
	c.mu.state = s
	c.mu.Unlock()
	c.view.Store(s.view)
	c.calls.held.viewed(s.view, c.self)
	c.observer.Reset()
	c.progress.advance(s.applied, s.view.Epoch)
	c.news.ring()
	if m, _ := s.view.Member(c.self.ID); m.Inc != c.self.Inc {
		return nil // its session is that of a former incarnation
	}
	if ses := s.sessions[c.self.ID]; ses != nil {
		for req, r := range ses.results {
			c.calls.deliver(req, answer{result: r, index: s.applied})
		}
	}
	return nil
}

// snapshots decides when a snapshot replaces the log: when the log has become longer than the
// state, so that both stay of the same order of size.
type snapshots struct {
	due  chan struct{}
	last uint64 // index of the last one that was requested
}

// snapshotEvery is the least number of entries between two snapshots.
const snapshotEvery = 4096

// consider is called only by the goroutine that applies the log.
func (s *snapshots) consider(index uint64, inodes int) {
	if index-s.last < uint64(max(snapshotEvery, inodes)) {
		return
	}
	s.last = index
	select {
	case s.due <- struct{}{}:
	default:
	}
}

// takeSnapshots requests snapshots from raft, which logs failures.
func (c *Catalog) takeSnapshots() {
	for {
		select {
		case <-c.snap.due:
			c.raft.Snapshot()
		case <-c.life.Done():
			return
		}
	}
}
