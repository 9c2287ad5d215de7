package catalog

import (
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// ears are Streams on which a node hears no answers while they are shut.
type ears struct {
	Streams
	mu   sync.Mutex
	open chan struct{} // closed while they are open
	door chan struct{} // likewise, of what lets others in
}

func newEars(s Streams) *ears {
	e := &ears{Streams: s, open: make(chan struct{}), door: make(chan struct{})}
	close(e.open)
	close(e.door)
	return e
}

// shut returns what opens them again.
func (e *ears) shut() (open func()) { return e.shutOne(&e.open) }

// shutDoor has the streams that others begin wait until it is opened.
func (e *ears) shutDoor() (open func()) { return e.shutOne(&e.door) }

func (e *ears) shutOne(which *chan struct{}) (open func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	again := make(chan struct{})
	*which = again
	return sync.OnceFunc(func() { close(again) })
}

func (e *ears) Accept() (net.Conn, error) {
	conn, err := e.Streams.Accept()
	e.mu.Lock()
	door := e.door
	e.mu.Unlock()
	<-door
	return conn, err
}

func (e *ears) Dial(addr string, timeout time.Duration) (net.Conn, error) {
	conn, err := e.Streams.Dial(addr, timeout)
	if err != nil {
		return nil, err
	}
	return eared{conn, e}, nil
}

type eared struct {
	net.Conn
	ears *ears
}

// Read hands nothing out that came after the ears were shut.
func (c eared) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.ears.mu.Lock()
	open := c.ears.open
	c.ears.mu.Unlock()
	<-open
	return n, err
}

// TestCommittedBeforeTheLeaderKnows makes files at a follower of a leader that hears no answers. Two of three have the
// entry, so it is committed, and whoever reads sees it.
func TestCommittedBeforeTheLeaderKnows(t *testing.T) {
	nodes := cluster(t, 3)
	ctx := patient(t)
	const tries = 10
	for try := range tries {
		lead := leaderOf(t, nodes)
		term := lead.leads()
		var followers []*node
		for _, n := range nodes {
			if n != lead {
				followers = append(followers, n)
			}
		}
		name := fmt.Sprint("f", try)
		_, err := followers[0].Create(ctx, dsm.RootIno, name+"before", file, false)
		ok(t, err)
		open := lead.streams.shut()
		t.Cleanup(open)
		made, err := followers[0].Create(ctx, dsm.RootIno, name, file, false)
		ok(t, err)
		known := lead.raft.CommitIndex()
		_, err = followers[1].Lookup(ctx, dsm.RootIno, name)
		ok(t, err)
		same := lead.leads() == term
		open()
		if !same {
			continue // a leader that hears nothing for long is none
		}
		if known >= uint64(made.Rev) {
			t.Errorf("the leader, which heard nothing, knew that %d is committed", known)
		}
		return
	}
	t.Fatalf("none of %d files was made before there was another leader", tries)
}

// TestCreatesOutliveTheLeader has both followers make files of the same names, and kills the leader
// meanwhile: each name has one maker, and what was made is there.
func TestCreatesOutliveTheLeader(t *testing.T) {
	nodes := cluster(t, 3)
	lead := leaderOf(t, nodes)
	ctx := patient(t)
	var followers []*node
	for _, n := range nodes {
		if n != lead {
			followers = append(followers, n)
		}
	}
	const files, kill = 200, 100
	made := make([][]dsm.Ino, len(followers))
	var makers sync.WaitGroup
	for i, n := range followers {
		made[i] = make([]dsm.Ino, files)
		makers.Go(func() {
			for f := range files {
				if i == 0 && f == kill {
					lead.stop()
				}
				got, err := n.Create(ctx, dsm.RootIno, fmt.Sprint(f), file, false)
				switch {
				case err == nil:
					made[i][f] = got.Ino
				case !errs.Is(err, errs.Exist):
					t.Error(err)
					return
				}
			}
		})
	}
	makers.Wait()
	for f := range files {
		if (made[0][f] == 0) == (made[1][f] == 0) {
			t.Fatalf("%d was made as %d and %d", f, made[0][f], made[1][f])
		}
		for i, n := range followers {
			got, err := n.Lookup(ctx, dsm.RootIno, fmt.Sprint(f))
			ok(t, err)
			if want := made[0][f] + made[1][f]; got.Ino != want {
				t.Fatalf("follower %d finds inode %d as %d, which was made as %d", i, got.Ino, f, want)
			}
		}
	}
}

func TestRaise(t *testing.T) {
	voters := func(voters, others int) raft.Configuration {
		var c raft.Configuration
		for i := range voters + others {
			s := raft.Server{ID: raft.ServerID(fmt.Sprint(i))}
			if i >= voters {
				s.Suffrage = raft.Nonvoter
			}
			c.Servers = append(c.Servers, s)
		}
		return c
	}
	entry := func(index, term uint64, kind raft.LogType) *raft.Log {
		return &raft.Log{Index: index, Term: term, Type: kind}
	}
	for _, x := range []struct {
		name       string
		conf       raft.Configuration
		self       string
		prev, term uint64
		entries    []*raft.Log
		want       uint64
	}{
		{"one of three voters", voters(3, 0), "1", 5, 2, []*raft.Log{entry(6, 3, raft.LogCommand), entry(7, 3, raft.LogCommand)}, 7},
		{"no voter of three", voters(3, 1), "3", 5, 2, []*raft.Log{entry(6, 3, raft.LogCommand)}, 1},
		{"one of five voters", voters(5, 0), "1", 5, 2, []*raft.Log{entry(6, 3, raft.LogCommand)}, 1},
		{"no voter beside one", voters(1, 1), "1", 5, 2, []*raft.Log{entry(6, 3, raft.LogCommand)}, 6},
		{"one of two voters", voters(2, 0), "1", 5, 2, []*raft.Log{entry(6, 3, raft.LogCommand)}, 6},
		{"of an earlier term", voters(3, 0), "1", 5, 2, []*raft.Log{entry(6, 2, raft.LogCommand)}, 1},
		{"a configuration", voters(3, 0), "1", 5, 2, []*raft.Log{entry(6, 3, raft.LogConfiguration), entry(7, 3, raft.LogCommand)}, 1},
		{"not at the end", voters(3, 0), "1", 4, 2, []*raft.Log{entry(5, 3, raft.LogCommand)}, 1},
		{"after another entry", voters(3, 0), "1", 5, 1, []*raft.Log{entry(6, 3, raft.LogCommand)}, 1},
		{"no entries", voters(3, 0), "1", 5, 2, nil, 1},
	} {
		logs := newLogStore()
		conf := entry(4, 1, raft.LogConfiguration)
		conf.Data = raft.EncodeConfiguration(x.conf)
		ok(t, logs.StoreLogs([]*raft.Log{conf, entry(5, 2, raft.LogCommand)}))
		req := &raft.AppendEntriesRequest{
			RPCHeader: raft.RPCHeader{ID: []byte("0")}, Term: 3,
			PrevLogEntry: x.prev, PrevLogTerm: x.term, Entries: x.entries, LeaderCommitIndex: 1,
		}
		raise(logs, raft.ServerID(x.self), req)
		if req.LeaderCommitIndex != x.want {
			t.Errorf("%s: committed up to %d, want %d", x.name, req.LeaderCommitIndex, x.want)
		}
	}
}

// TestConfigurationOfTheLog checks that the newest configuration is always one that the log has.
func TestConfigurationOfTheLog(t *testing.T) {
	conf := func(index uint64, id string) *raft.Log {
		c := raft.Configuration{Servers: []raft.Server{{ID: raft.ServerID(id)}}}
		return &raft.Log{Index: index, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(c)}
	}
	command := func(index, term uint64) *raft.Log { return &raft.Log{Index: index, Term: term} }
	logs := newLogStore()
	newest := func(index, term uint64) raft.ServerID {
		c, known := logs.follows(index, term)
		if !known {
			return ""
		}
		return c.Servers[0].ID
	}
	for i, x := range []struct {
		do          func() error
		index, term uint64 // the end of the log
		want        raft.ServerID
	}{
		{func() error { return logs.StoreLogs([]*raft.Log{command(1, 1)}) }, 1, 1, ""},
		{func() error { return logs.StoreLogs([]*raft.Log{conf(2, "a"), command(3, 1)}) }, 3, 1, "a"},
		{func() error { return logs.StoreLogs([]*raft.Log{conf(4, "b")}) }, 4, 1, "b"},
		{func() error { return logs.DeleteRange(4, 4) }, 3, 1, "a"},
		{func() error { return logs.StoreLogs([]*raft.Log{conf(4, "c")}) }, 4, 1, "c"},
		{func() error { return logs.StoreLogs([]*raft.Log{command(4, 2)}) }, 4, 2, "a"}, // replaces it
		{func() error { return logs.DeleteRange(1, 3) }, 4, 2, "a"},                     // a snapshot has it
		{func() error { return logs.DeleteRange(4, 4) }, 4, 2, ""},
		{func() error { logs.restored(9, raft.Configuration{Servers: []raft.Server{{ID: "d"}}}); return nil }, 9, 2, ""},
		{func() error { return logs.StoreLogs([]*raft.Log{command(11, 2)}) }, 11, 2, "d"},
	} {
		ok(t, x.do())
		if got := newest(x.index, x.term); got != x.want {
			t.Errorf("step %d: the newest configuration is that of %q, want %q", i, got, x.want)
		}
	}
}
