package integration

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// nameOp is one operation on the names of one directory or on the size of one
// file; it is both the input and, with the answer, the output of a history.
type nameOp struct {
	kind string // create unlink rename stat setsize getsize
	a, b string
	size int64

	call, done int64 // when it was under way, as in the history
}

// nameAnswer is what the operation answered. An unknown one - the daemon died
// meanwhile - is an operation that may have happened, any time later, or not.
type nameAnswer struct {
	unknown bool
	errno   string
	ino     uint64
	size    int64
}

// nameState is what a directory holds. The map is never changed once it is a state.
type nameState map[string]entry

// entry is one name: the inode number, or unseen if its create has an unknown
// answer and no stat has told it, and where the last rename took it from.
type entry struct {
	ino   int64
	from  string
	until int64 // when that rename answered
}

const unseen = -1

// namesModel is a directory: create is open(O_CREAT|O_EXCL).
//
// One thing differs from a local filesystem, and no FUSE filesystem can help it:
// of two concurrent rename(a, b) on different nodes both may succeed. The kernel
// looks up a, then b; if the other rename happens in between, it finds one inode
// under both names, for which rename(2) is defined to do nothing and succeed.
var namesModel = porcupine.Model{
	Init: func() any { return nameState{} },
	Step: func(state, input, output any) (bool, any) {
		s, op, got := state.(nameState), input.(nameOp), output.(nameAnswer)
		e, found := s[op.a]
		want := "ENOENT"
		next := s
		switch {
		case op.kind == "create" && found:
			want = "EEXIST"
		case op.kind == "create":
			want = ""
			if next = s.with(op.a, entry{ino: int64(got.ino)}); got.unknown {
				next = s.with(op.a, entry{ino: unseen})
			}
		case op.kind == "rename" && !found && s[op.b].from == op.a && s[op.b].until >= op.call:
			return got.unknown || got.errno == "" || got.errno == want, s
		case !found:
		case op.kind == "unlink":
			want, next = "", s.without(op.a)
		case op.kind == "rename":
			want, next = "", s.without(op.a).with(op.b, entry{ino: e.ino, from: op.a, until: op.done})
		case got.unknown:
		case e.ino == unseen:
			e.ino = int64(got.ino)
			want, next = "", s.with(op.a, e)
		default:
			return got.errno == "" && got.ino == uint64(e.ino), s
		}
		return got.unknown || got.errno == want, next
	},
	Equal:             func(a, b any) bool { return maps.Equal(a.(nameState), b.(nameState)) },
	DescribeOperation: describe,
}

// sizeModel is the size of one file: a register.
var sizeModel = porcupine.Model{
	Init: func() any { return int64(0) },
	Step: func(state, input, output any) (bool, any) {
		op, got := input.(nameOp), output.(nameAnswer)
		if op.kind == "setsize" {
			return got.unknown || got.errno == "", op.size
		}
		return got.unknown || got.errno == "" && got.size == state.(int64), state
	},
	DescribeOperation: describe,
}

func (s nameState) with(name string, e entry) nameState {
	next := s.without(name)
	next[name] = e
	return next
}

func (s nameState) without(name string) nameState {
	next := nameState{}
	for k, v := range s {
		if k != name {
			next[k] = v
		}
	}
	return next
}

func describe(input, output any) string {
	op, got := input.(nameOp), output.(nameAnswer)
	call := strings.TrimSpace(op.kind + " " + op.a + " " + op.b)
	switch {
	case got.unknown:
		return call + ": unknown"
	case got.errno != "":
		return call + ": " + got.errno
	case strings.HasSuffix(op.kind, "size"):
		return fmt.Sprintf("%s %d: %d", call, op.size, got.size)
	}
	return fmt.Sprintf("%s: inode %d", call, got.ino)
}

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
func (r *recorder) do(id int, cl *harness.Client, dir string, op nameOp) bool {
	call := time.Since(r.start)
	got := perform(cl, dir, op)
	done := time.Since(r.start)
	r.mu.Lock()
	defer r.mu.Unlock()
	if got.unknown {
		done = time.Hour // it may take effect any time from its call on
	}
	op.call, op.done = int64(call), int64(done)
	r.mu.ops = append(r.mu.ops, porcupine.Operation{ClientId: id, Input: op, Output: got, Call: op.call, Return: op.done})
	return !got.unknown
}

// perform runs op; an errno that the operation itself cannot have is an unknown answer.
func perform(cl *harness.Client, dir string, op nameOp) nameAnswer {
	path := func(name string) string { return cl.Path(dir + "/" + name) }
	var words []string
	var err error
	switch op.kind {
	case "create":
		if words, err = cl.Do("open %s rw,creat,excl", path(op.a)); err == nil {
			fd := words[0]
			words, err = cl.Do("fstat %s", fd)
			_, _ = cl.Do("close %s", fd) // it has nothing to write
		}
	case "unlink":
		_, err = cl.Do("unlink %s", path(op.a))
	case "rename":
		_, err = cl.Do("rename %s %s", path(op.a), path(op.b))
	case "stat", "getsize":
		words, err = cl.Do("stat %s", path(op.a))
	case "setsize":
		_, err = cl.Do("truncate %s %d", path(op.a), op.size)
	}
	var failure harness.Failure
	switch {
	case err == nil && len(words) > 0:
		st := harness.ParseStat(words)
		return nameAnswer{ino: st.Ino, size: st.Size}
	case err == nil:
		return nameAnswer{}
	case errors.As(err, &failure) && slices.Contains([]string{"EEXIST", "ENOENT"}, string(failure)):
		return nameAnswer{errno: string(failure)}
	}
	return nameAnswer{unknown: true}
}

// check ends the test unless the history is linearizable; it then leaves a picture of it.
func (r *recorder) check(t *testing.T, model porcupine.Model) {
	t.Helper()
	r.mu.Lock()
	ops := r.mu.ops
	r.mu.Unlock()
	unknown, failed := 0, 0
	for _, o := range ops {
		if got := o.Output.(nameAnswer); got.unknown {
			unknown++
		} else if got.errno != "" {
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
	t.Errorf("not linearizable (%s); open %s to see where, or look here:\n%s", result, f.Name(), explain(ops, info))
}

// explain prints the end of the longest order that the model accepts, and the
// earliest operations that do not fit behind it.
func explain(ops []porcupine.Operation, info porcupine.LinearizationInfo) string {
	var longest []porcupine.Operation
	for _, partition := range info.PartialLinearizationsOperations() {
		for _, order := range partition {
			if len(order) > len(longest) {
				longest = order
			}
		}
	}
	key := func(o porcupine.Operation) [2]int64 { return [2]int64{int64(o.ClientId), o.Call} }
	placed := map[[2]int64]bool{}
	for _, o := range longest {
		placed[key(o)] = true
	}
	rest := slices.DeleteFunc(slices.Clone(ops), func(o porcupine.Operation) bool { return placed[key(o)] })
	slices.SortFunc(rest, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	var b strings.Builder
	show := func(o porcupine.Operation) {
		fmt.Fprintf(&b, "  client %d, %.3f..%.3f ms: %s\n", o.ClientId, float64(o.Call)/1e6, float64(o.Return)/1e6, describe(o.Input, o.Output))
	}
	const some = 15
	fmt.Fprintf(&b, "%d of %d operations fit in this order:\n", len(longest), len(ops))
	for _, o := range longest[max(0, len(longest)-some):] {
		show(o)
	}
	b.WriteString("and none of these next:\n")
	for _, o := range rest[:min(some, len(rest))] {
		show(o)
	}
	return b.String()
}

// randomNameOp draws an operation on few names, so that clients meet.
func randomNameOp(r *rand.Rand) nameOp {
	names := []string{"x", "y", "z"}
	a, b := names[r.IntN(3)], names[r.IntN(3)]
	switch k := r.IntN(10); {
	case k < 3:
		return nameOp{kind: "create", a: a}
	case k < 5:
		return nameOp{kind: "unlink", a: a}
	case k < 7 && a != b:
		return nameOp{kind: "rename", a: a, b: b}
	}
	return nameOp{kind: "stat", a: a}
}

func randomSizeOp(r *rand.Rand) nameOp {
	if r.IntN(2) == 0 {
		return nameOp{kind: "setsize", a: "f", size: int64(r.IntN(1 << 16))}
	}
	return nameOp{kind: "getsize", a: "f"}
}

// TestNamesModelFindsErrors feeds the model histories that it must refuse, so
// that a pass of the other tests means something.
func TestNamesModelFindsErrors(t *testing.T) {
	type op = porcupine.Operation
	do := func(client int, from, to int64, kind, a, b string, ino uint64, errno string) op {
		return op{ClientId: client, Input: nameOp{kind: kind, a: a, b: b, call: from, done: to}, Output: nameAnswer{ino: ino, errno: errno}, Call: from, Return: to}
	}
	for name, test := range map[string]struct {
		ops []op
		ok  bool
	}{
		"two exclusive creates": {[]op{do(1, 0, 10, "create", "x", "", 1, ""), do(2, 5, 15, "create", "x", "", 2, "")}, false},
		"create, then ENOENT":   {[]op{do(1, 0, 10, "create", "x", "", 1, ""), do(2, 11, 15, "stat", "x", "", 0, "ENOENT")}, false},
		"create beside ENOENT":  {[]op{do(1, 0, 10, "create", "x", "", 1, ""), do(2, 5, 15, "stat", "x", "", 0, "ENOENT")}, true},
		"stale inode after rename": {[]op{do(1, 0, 1, "create", "x", "", 1, ""), do(1, 2, 3, "create", "y", "", 2, ""),
			do(1, 4, 5, "rename", "x", "y", 0, ""), do(2, 6, 7, "stat", "y", "", 2, "")}, false},
		"the same rename twice": {[]op{do(1, 0, 1, "create", "x", "", 1, ""), do(1, 4, 5, "rename", "x", "y", 0, ""),
			do(2, 6, 7, "rename", "x", "y", 0, "")}, false},
		"the same rename twice at once": {[]op{do(1, 0, 1, "create", "x", "", 1, ""), do(1, 4, 8, "rename", "x", "y", 0, ""),
			do(2, 6, 7, "rename", "x", "y", 0, "")}, true},
		"unlink that did nothing": {[]op{do(1, 0, 1, "create", "x", "", 1, ""), do(1, 2, 3, "unlink", "x", "", 0, ""),
			do(2, 4, 5, "stat", "x", "", 1, "")}, false},
	} {
		if got := porcupine.CheckOperations(namesModel, test.ops); got != test.ok {
			t.Errorf("%s: linearizable is %v, want %v", name, got, test.ok)
		}
	}
}
