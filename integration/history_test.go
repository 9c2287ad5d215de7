package integration

import (
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/dsmfs/dsmfs/integration/harness"
	"github.com/dsmfs/dsmfs/integration/history"
)

// recorder collects the history of several clients on one monotonic clock.
type recorder struct {
	start time.Time
	mu    struct {
		sync.Mutex
		ops []porcupine.Operation
	}
}

func newRecorder() *recorder { return &recorder{start: time.Now()} }

// do performs op through a client and records it. It reports whether the client can go on.
func (r *recorder) do(id int, cl *harness.Client, dir string, op history.Op) bool {
	call := time.Since(r.start)
	got := perform(cl, dir, op)
	done := time.Since(r.start)
	r.mu.Lock()
	defer r.mu.Unlock()
	if got.Unknown {
		done = time.Hour // it may take effect any time from its call on
	}
	op.Call, op.Done = int64(call), int64(done)
	r.mu.ops = append(r.mu.ops, porcupine.Operation{ClientId: id, Input: op, Output: got, Call: op.Call, Return: op.Done})
	return !got.Unknown
}

// perform runs op; an errno that the operation itself cannot have is an unknown answer.
func perform(cl *harness.Client, dir string, op history.Op) history.Answer {
	path := func(name string) string { return cl.Path(dir + "/" + name) }
	var words []string
	var err error
	switch op.Kind {
	case "create":
		if words, err = cl.Do("open %s rw,creat,excl", path(op.A)); err == nil {
			fd := words[0]
			words, err = cl.Do("fstat %s", fd)
			_, _ = cl.Do("close %s", fd) // it has nothing to write
		}
	case "unlink":
		_, err = cl.Do("unlink %s", path(op.A))
	case "rename":
		_, err = cl.Do("rename %s %s", path(op.A), path(op.B))
	case "stat", "getsize":
		words, err = cl.Do("stat %s", path(op.A))
	case "setsize":
		_, err = cl.Do("truncate %s %d", path(op.A), op.Size)
	}
	var failure harness.Failure
	switch {
	case err == nil && len(words) > 0:
		st := harness.ParseStat(words)
		return history.Answer{Ino: st.Ino, Size: st.Size}
	case err == nil:
		return history.Answer{}
	case errors.As(err, &failure) && slices.Contains([]string{"EEXIST", "ENOENT"}, string(failure)):
		return history.Answer{Errno: string(failure)}
	}
	return history.Answer{Unknown: true}
}

// check ends the test unless the history is linearizable; it then leaves a picture of it.
func (r *recorder) check(t *testing.T, model porcupine.Model) {
	t.Helper()
	r.mu.Lock()
	ops := r.mu.ops
	r.mu.Unlock()
	unknown, failed := 0, 0
	for _, o := range ops {
		if got := o.Output.(history.Answer); got.Unknown {
			unknown++
		} else if got.Errno != "" {
			failed++
		}
	}
	const patience = time.Minute
	result, info := porcupine.CheckOperationsVerbose(model, ops, patience)
	t.Logf("%d operations, %d of them refused, %d with unknown answers: %s", len(ops), failed, unknown, result)
	if len(ops)-unknown < 20 {
		t.Errorf("the history is too short to say anything")
	}
	if result == porcupine.Ok {
		return
	}
	f, err := os.CreateTemp("", "dsmfs-history-*.html")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(porcupine.Visualize(model, info, f), f.Close()); err != nil {
		t.Error(err)
	}
	t.Errorf("not linearizable (%s); open %s to see where, or look here:\n%s", result, f.Name(), history.Explain(model, ops, info))
}

// randomNameOp draws an operation on few names, so that clients meet.
func randomNameOp(r *rand.Rand) history.Op {
	names := []string{"x", "y", "z"}
	a, b := names[r.IntN(3)], names[r.IntN(3)]
	switch k := r.IntN(10); {
	case k < 3:
		return history.Op{Kind: "create", A: a}
	case k < 5:
		return history.Op{Kind: "unlink", A: a}
	case k < 7 && a != b:
		return history.Op{Kind: "rename", A: a, B: b}
	}
	return history.Op{Kind: "stat", A: a}
}

func randomSizeOp(r *rand.Rand) history.Op {
	if r.IntN(2) == 0 {
		return history.Op{Kind: "setsize", A: "f", Size: int64(r.IntN(1 << 16))}
	}
	return history.Op{Kind: "getsize", A: "f"}
}
