package catalog

import (
	"context"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// TestRecover: a node whose cluster has no majority any more becomes a cluster of its own, with all that the old one had decided. While the
// majority lives that is refused.
func TestRecover(t *testing.T) {
	ctx := patient(t)
	nodes := cluster(t, 3)
	last := nodes[2]
	made, err := last.Create(ctx, dsm.RootIno, "f", file, true)
	ok(t, err)
	if err := last.NoMajority(ctx); !errs.Is(err, errs.Busy) {
		t.Fatalf("a cluster that works has no majority: %v", err)
	}
	same(t, nodes)
	former := last.Current()
	for _, n := range nodes[:2] {
		n.stop()
	}
	over, giveUp := context.WithCancel(ctx)
	giveUp()
	if err := last.NoMajority(over); err == nil {
		t.Error("a cluster has no majority because nobody waits for the answer")
	}
	brief, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if err := last.NoMajority(brief); err != nil {
		t.Fatalf("a cluster without a majority: %v", err)
	}
	last.Catalog.Close()
	if err := last.NoMajority(brief); !errs.Is(err, errs.Closed) && !errs.Is(err, errs.Timeout) {
		t.Errorf("a catalog that is closed: %v", err)
	}

	self := last.self
	self.Inc = 1
	next, err := New(Config{Self: self, Caller: last.via, Streams: newEars(last.net.ReopenRaft()), Observer: last.observer, OnCluster: last.net.SetCluster,
		Yield: last.yieldLocks, Log: testLog(t, "recovered")})
	ok(t, err)
	defer next.Close()
	ok(t, next.Recover(ctx, last.Catalog, nil))
	v := next.Current()
	if v.Cluster == former.Cluster || v.Epoch <= former.Epoch || len(present(v)) != 1 {
		t.Errorf("the new view: cluster %s after %s, epoch %d after %d, members %+v", v.Cluster, former.Cluster, v.Epoch, former.Epoch, v.Members)
	}
	got, err := next.Lookup(ctx, dsm.RootIno, "f")
	if err != nil || got.Ino != made.Ino {
		t.Errorf("a file of the old cluster: %+v, %v", got, err)
	}
	ok(t, next.Unlink(ctx, dsm.RootIno, "f"))
	if _, err := next.Getattr(ctx, made.Ino); err != nil {
		t.Errorf("a file that the node claims: %v", err)
	}
	if _, err := next.Create(ctx, dsm.RootIno, "g", file, false); err != nil {
		t.Error(err)
	}
}

// TestRecoverTakesTheLog: what is in the log, and was not applied, is a part of what the new cluster begins with.
func TestRecoverTakesTheLog(t *testing.T) {
	ctx := patient(t)
	n := cluster(t, 1)[0]
	_, err := n.Create(ctx, dsm.RootIno, "f", file, false)
	ok(t, err)
	n.Catalog.Close()
	n.mu.Lock()
	n.mu.state = newState() // as if nothing had been applied
	n.mu.Unlock()
	s, err := n.final()
	ok(t, err)
	if _, there := s.inodes[dsm.RootIno].entries["f"]; !there {
		t.Error("the file is not there")
	}
}

// TestSnapshotAfterARemoval: the slot of its own that a removed file had stays in the view for a while, with its backups.
func TestSnapshotAfterARemoval(t *testing.T) {
	m := newSized(t, 1<<34, 1<<34, 1<<34)
	f := m.must(nodeA, createOp{Dir: dsm.RootIno, Name: "f", Kind: dsm.KindFile, Settings: []dsm.Setting{{Key: "mode", Value: "versioned"}, {Key: "replicas", Value: "2"}}})
	m.must(nodeA, ownOp{Ino: f.Ino, To: nodeA})
	if row := homeOf(m, f); row.Backups[0].Node == 0 {
		t.Fatalf("no backup: %+v", row)
	}
	m.must(nodeA, unlinkOp{Dir: dsm.RootIno, Name: "f"})
	if _, err := restore(mustEncode(t, m.image())); err != nil {
		t.Error(err)
	}
}

// TestRecoverTakesOver: of two backups in sync one is dead, like the home. The other one, which goes on alone, takes over.
func TestRecoverTakesOver(t *testing.T) {
	m := newSized(t, 1<<34, 1<<34, 1<<34)
	nodes := []dsm.NodeID{nodeA, nodeB, nodeB + 1}
	m.must(nodeA, createOp{Dir: dsm.RootIno, Name: "f", Kind: dsm.KindFile, Size: 8 * mib, Settings: []dsm.Setting{{Key: "replicas", Value: "3"}, {Key: "placement", Value: "spread"}}})
	for _, home := range nodes {
		for _, backup := range nodes {
			var slots []dsm.Slot
			for slot, row := range m.view.Rows() {
				if row.Primary == home && row.BackupOf(backup) >= 0 {
					slots = append(slots, slot)
				}
			}
			m.must(home, backupsOp{Node: backup, Slots: slots, InSync: true, Epoch: m.view.Epoch})
		}
	}
	last := nodeB + 1
	self, _ := m.view.Member(last)
	self.Inc++
	ok(t, m.found(self, 2, nil))
	for _, n := range nodes {
		if n != last {
			m.reqs[last]++
			_, err := m.send(command{Node: last, Inc: self.Inc, Req: m.reqs[last], Low: m.reqs[last], Now: m.now}, goneOp{Node: n})
			ok(t, err)
		}
	}
	for slot, row := range m.view.Rows() {
		if dsm.CopiesOf(slot) == 3 && row.Holder() != last {
			t.Fatalf("slot %d: %+v", slot, *row)
		}
	}
}
