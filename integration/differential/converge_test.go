package differential

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// TestConverge has all programs of three nodes do random operations at the same time. What
// the answers must be nobody knows, but when all have synced and closed what they had
// open, every node must find the same names and the same bytes, and nothing may hang or end with EIO.
func TestConverge(t *testing.T) {
	w := newWorld(t, 3)
	for _, d := range dirs[:2] {
		w.do(w.programs[0], "mkdir", d)
	}
	for round := range 3 {
		var all sync.WaitGroup
		for i, p := range w.programs {
			own := &world{t: t, rng: rand.New(rand.NewPCG(w.rng.Uint64(), uint64(i))), programs: []*program{p}, alone: true}
			all.Go(func() { own.run(*opsFlag / 3) })
		}
		all.Wait()
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
		w.quiet()
		w.agree()
	}
}

// run does operations until one answers what none may.
func (w *world) run(n int) {
	for range n {
		w.step()
		if w.t.Failed() {
			return
		}
	}
}

// quiet syncs and closes everything.
func (w *world) quiet() {
	w.t.Helper()
	for _, p := range w.programs {
		p.files, p.maps = [slots]bool{}, [slots]bool{}
		for i := range slots {
			for _, op := range []string{"msync", "munmap", "fsync", "close"} {
				w.accept(p, []any{op, i})
			}
		}
	}
}

// agree compares what all nodes find.
func (w *world) agree() {
	w.t.Helper()
	look := func(op, name string) {
		first := ask(w.t, w.programs[0].mount, []any{op, name})
		for _, p := range w.programs[1:] {
			if got := ask(w.t, p.mount, []any{op, name}); got != first {
				w.t.Errorf("%s %s: node %d and node %d: %s", op, name, p.node+1, w.programs[0].node+1, difference(got, first))
			}
		}
	}
	look("scan", ".")
	for _, d := range dirs {
		look("scan", d)
	}
	for _, f := range names {
		look("load", f)
	}
}

// accept does an operation and takes any answer but one that tells of a fault of the filesystem.
func (w *world) accept(p *program, op []any) string {
	line, err := json.Marshal(op)
	if err != nil {
		w.t.Error(err)
		return "err"
	}
	words, err := p.mount.Do("%s", line)
	var failure harness.Failure
	switch {
	case err == nil:
		return strings.Join(words, " ")
	case (op[0] == "mload" || op[0] == "mstore") && errors.Is(err, harness.ErrDied):
		// SIGBUS: another program has shortened the file since this one asked for its size.
		p.mount = p.start()
		return "err SIGBUS"
	case !errors.As(err, &failure):
		w.t.Errorf("%.200s on node %d: %v", line, p.node+1, err)
		return "err"
	case failure == "EIO" || failure == "ENOTCONN" || failure == "ESTALE":
		w.t.Errorf("%.200s on node %d: %s", line, p.node+1, failure)
	}
	return fmt.Sprintf("err %s", failure)
}
