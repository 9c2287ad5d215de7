package catalog

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// The histories are of a few names that many clients fight over. A file is known by
// the number of the call that created it, kept as its UID.

type callKind uint8

const (
	callCreate callKind = iota
	callUnlink
	callRename
	callTruncate
	callGetattr
	callLookup
	callKinds
)

const historyNames = 3

// call is an operation as the client made it.
type call struct {
	kind     callKind
	name, to int
	id       uint32 // of the file that is created, truncated or looked at
	size     int64
}

// reply is what the client saw.
type reply struct {
	unknown bool // it may or may not have happened
	kind    errs.Kind
	id      uint32
	size    int64
}

// place is what a name refers to; id 0 is nothing.
type entry struct {
	id   uint32
	size int64
}

type namespace [historyNames]entry

// next returns the namespace after the call, and what the client must see.
func (ns namespace) next(c call) (namespace, reply) {
	find := func() int {
		for i, e := range ns {
			if e.id == c.id {
				return i
			}
		}
		return -1
	}
	switch c.kind {
	case callCreate:
		if ns[c.name].id != 0 {
			return ns, reply{kind: errs.Exist}
		}
		ns[c.name] = entry{id: c.id}
		return ns, reply{id: c.id}
	case callUnlink:
		if ns[c.name].id == 0 {
			return ns, reply{kind: errs.NotExist}
		}
		ns[c.name] = entry{}
		return ns, reply{}
	case callRename:
		if ns[c.name].id == 0 {
			return ns, reply{kind: errs.NotExist}
		}
		if c.name != c.to {
			ns[c.name], ns[c.to] = entry{}, ns[c.name]
		}
		return ns, reply{}
	case callTruncate, callGetattr:
		i := find()
		if i < 0 {
			return ns, reply{kind: errs.NotExist}
		}
		if c.kind == callTruncate {
			ns[i].size = c.size
		}
		return ns, reply{id: c.id, size: ns[i].size}
	default:
		if ns[c.name].id == 0 {
			return ns, reply{kind: errs.NotExist}
		}
		return ns, reply{id: ns[c.name].id, size: ns[c.name].size}
	}
}

var historyModel = porcupine.NondeterministicModel{
	Init: func() []any { return []any{namespace{}} },
	Step: func(state, input, output any) []any {
		ns, c, r := state.(namespace), input.(call), output.(reply)
		after, want := ns.next(c)
		switch {
		case r.unknown:
			return []any{ns, after}
		case r == want:
			return []any{after}
		}
		return nil
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
}

// history records the calls of many clients.
type history struct {
	start  time.Time
	ids    atomic.Uint32
	called bell // rings after every call

	mu  sync.Mutex
	ops []porcupine.Operation
}

// client makes calls on one node until stop is closed or the node is, and
// counts them.
func (h *history) client(ctx context.Context, n *node, id int, rng *rand.Rand, stop <-chan struct{}, count *atomic.Int64) {
	known := make(map[uint32]dsm.Ino) // files that the client has seen
	for n.life.Err() == nil {
		select {
		case <-stop:
			return
		default:
		}
		c := call{kind: callKind(rng.IntN(int(callKinds))), name: rng.IntN(historyNames), to: rng.IntN(historyNames), size: rng.Int64N(1000)}
		if c.kind == callCreate {
			c.id = h.ids.Add(1)
		}
		if c.kind == callTruncate || c.kind == callGetattr {
			if len(known) == 0 {
				continue
			}
			for c.id = range known { // any
				break
			}
		}
		begin := time.Since(h.start)
		r, ino := h.make(ctx, n, c, known[c.id])
		end := time.Since(h.start)
		if r.id != 0 {
			known[r.id] = ino
		}
		if r.kind == errs.NotExist && c.id != 0 {
			delete(known, c.id)
		}
		h.mu.Lock()
		h.ops = append(h.ops, porcupine.Operation{ClientId: id, Input: c, Output: r, Call: begin.Nanoseconds(), Return: end.Nanoseconds()})
		h.mu.Unlock()
		count.Add(1)
		h.called.ring()
	}
}

// make makes the call.
func (h *history) make(ctx context.Context, n *node, c call, ino dsm.Ino) (reply, dsm.Ino) {
	name := func(i int) string { return string(rune('a' + i)) }
	var in dsm.Inode
	var err error
	switch c.kind {
	case callCreate:
		in, err = n.Create(ctx, dsm.RootIno, name(c.name), dsm.Inode{Kind: dsm.KindFile, UID: c.id}, false)
	case callUnlink:
		err = n.Unlink(ctx, dsm.RootIno, name(c.name))
	case callRename:
		err = n.Rename(ctx, dsm.RootIno, name(c.name), dsm.RootIno, name(c.to), dsm.RenameReplace, 0)
	case callTruncate:
		in, err = n.SetAttr(ctx, ino, dsm.SetAttr{Size: &c.size})
	case callGetattr:
		in, err = n.Getattr(ctx, ino)
	case callLookup:
		in, err = n.Lookup(ctx, dsm.RootIno, name(c.name))
	}
	switch k := errs.KindOf(err); {
	case err == nil:
		return reply{id: in.UID, size: in.Size}, in.Ino
	case k == errs.Timeout || k == errs.Closed:
		return reply{unknown: true}, 0
	default:
		return reply{kind: k}, 0
	}
}

// verify checks that one order of the calls explains all replies.
func (h *history) verify(t *testing.T) {
	t.Helper()
	end := time.Since(h.start).Nanoseconds()
	clients := make(map[int]bool)
	unknown := 0
	for i := range h.ops {
		clients[h.ops[i].ClientId] = true
		if h.ops[i].Output.(reply).unknown {
			h.ops[i].Return = end // it may happen at any time
			unknown++
		}
	}
	model := historyModel.ToModel()
	t.Logf("%d calls of %d clients, %d without an answer", len(h.ops), len(clients), unknown)
	result, info := porcupine.CheckOperationsVerbose(model, h.ops, patience)
	if result != porcupine.Ok {
		f, err := os.CreateTemp("", "history-*.html")
		ok(t, err)
		defer f.Close()
		ok(t, porcupine.Visualize(model, info, f))
		t.Fatalf("the history is not linearizable (%s): see %s", result, f.Name())
	}
}

// TestLinearizable records what two clients on each of three and five nodes
// see, and stops as many leaders without warning as the voters can lose.
func TestLinearizable(t *testing.T) {
	for _, x := range []struct{ nodes, kills int }{{1, 0}, {3, 0}, {3, 1}, {5, 2}} {
		t.Run(fmt.Sprintf("%d nodes, %d killed", x.nodes, x.kills), func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			nodes := cluster(t, x.nodes)
			ctx, cancel := context.WithCancel(context.Background()) // how long all takes is the machine's
			t.Cleanup(cancel)
			h := &history{start: time.Now()}
			h.called.init()
			stop := make(chan struct{})
			var clients sync.WaitGroup
			var counts []*atomic.Int64
			for i := range 2 * x.nodes {
				count := new(atomic.Int64)
				counts = append(counts, count)
				rng := rand.New(rand.NewPCG(seed, uint64(i)))
				clients.Go(func() { h.client(ctx, nodes[i%x.nodes], i, rng, stop, count) })
			}
			alive := append([]*node(nil), nodes...)
			const calls = 60 // of every client between two kills
			for kill := 0; ; kill++ {
				before := make([]int64, len(counts))
				for i := range counts {
					before[i] = counts[i].Load()
				}
				for i, count := range counts {
					n := nodes[i%x.nodes]
					err := h.called.until(patient(t), n.life, func() bool { return count.Load() >= before[i]+calls })
					if err != nil && n.life.Err() == nil {
						t.Fatalf("client %d is stuck: %v", i, err)
					}
				}
				if kill == x.kills {
					break
				}
				lead := leaderOf(t, alive)
				lead.stop()
				for i := range alive {
					if alive[i] == lead {
						alive = append(alive[:i], alive[i+1:]...)
						break
					}
				}
			}
			close(stop)
			clients.Wait()
			h.verify(t)
		})
	}
}

// TestHistoryModel makes sure that the checker sees what is wrong.
func TestHistoryModel(t *testing.T) {
	op := func(client int, begin, end int64, c call, r reply) porcupine.Operation {
		return porcupine.Operation{ClientId: client, Input: c, Output: r, Call: begin, Return: end}
	}
	create := func(id uint32) call { return call{kind: callCreate, id: id} }
	bad := [][]porcupine.Operation{
		{op(0, 0, 2, create(1), reply{id: 1}), op(1, 1, 3, create(2), reply{id: 2})}, // O_EXCL twice
		{op(0, 0, 1, create(1), reply{id: 1}), op(1, 2, 3, call{kind: callLookup}, reply{kind: errs.NotExist})},
		{op(0, 0, 1, create(1), reply{id: 1}), op(0, 2, 3, call{kind: callTruncate, id: 1, size: 5}, reply{id: 1, size: 5}),
			op(1, 4, 5, call{kind: callGetattr, id: 1}, reply{id: 1})},
		{op(0, 0, 9, create(1), reply{unknown: true}), op(1, 1, 2, call{kind: callLookup}, reply{id: 1}),
			op(1, 3, 4, call{kind: callLookup}, reply{kind: errs.NotExist})},
	}
	for i, h := range bad {
		if porcupine.CheckOperations(historyModel.ToModel(), h) {
			t.Errorf("history %d passes", i)
		}
	}
}
