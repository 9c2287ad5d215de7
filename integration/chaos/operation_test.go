package chaos

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
)

// How an operation ended.
const (
	ok      = "ok"
	refused = "refused" // it has had no effect
	unknown = "unknown" // it may have an effect, now or at any later time
)

// never is when an operation of unknown outcome returned.
const never = math.MaxInt64

// operation is one that a worker did. Times are those of the machine's monotonic clock, in nanoseconds.
type operation struct {
	Worker int    `json:"w"` // each process of a workload has a number of its own
	Node   int    `json:"node"`
	ID     int    `json:"i"`
	Kind   string `json:"op,omitempty"`
	A      string `json:"a,omitempty"`
	B      string `json:"b,omitempty"`
	N      int64  `json:"n,omitempty"`
	Call   int64  `json:"call,omitempty"`
	Return int64  `json:"return,omitempty"`
	End    int64  `json:"end,omitempty"` // when the program had its answer, also one of unknown outcome

	Result string  `json:"r,omitempty"`
	Err    string  `json:"e,omitempty"`
	V      int64   `json:"v,omitempty"`
	S      []int64 `json:"s,omitempty"`
}

func (o operation) String() string {
	s := fmt.Sprintf("worker %d on n%d, %.3f", o.Worker, o.Node, float64(o.Call)/1e9)
	if o.Return != never {
		s += fmt.Sprintf("..%.3f", float64(o.Return)/1e9)
	}
	return strings.TrimSpace(fmt.Sprintf("%s s: %s %s %s %d: %s %s %d %v", s, o.Kind, o.A, o.B, o.N, o.Result, o.Err, o.V, o.S))
}

// line is what a worker prints: the half of an operation before it, or that after it.
type line struct {
	I    int
	Op   string
	A, B string
	N, T int64
	R, E string
	V    int64
	S    []int64
}

// fold adds a line to the operations of one worker.
func fold(all []operation, text string, worker, node int) ([]operation, error) {
	var l line
	if err := json.Unmarshal([]byte(text), &l); err != nil {
		return all, fmt.Errorf("worker %d printed %q: %w", worker, text, err)
	}
	if l.R == "" {
		return append(all, operation{Worker: worker, Node: node, ID: l.I, Kind: l.Op, A: l.A, B: l.B, N: l.N, Call: l.T, Return: never, Result: unknown}), nil
	}
	if len(all) == 0 || all[len(all)-1].ID != l.I {
		return all, fmt.Errorf("worker %d printed the end of an operation that it did not begin: %s", worker, text)
	}
	o := &all[len(all)-1]
	o.Result, o.Err, o.V, o.S = l.R, l.E, l.V, l.S
	if o.End = l.T; o.Result != unknown {
		o.Return = l.T
	}
	return all, nil
}

// byCall puts operations in the order in which they began.
func byCall(all []operation) {
	slices.SortStableFunc(all, func(a, b operation) int { return int(min(max(a.Call-b.Call, -1), 1)) })
}

// save writes a history as lines of JSON.
func save(path string, all []operation) error {
	var b strings.Builder
	for _, o := range all {
		text, err := json.Marshal(o)
		if err != nil {
			return err
		}
		b.Write(text)
		b.WriteByte('\n')
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

// TestFold reads what a worker prints that dies in its second operation.
func TestFold(t *testing.T) {
	var all []operation
	var err error
	for _, text := range []string{
		`{"i": 1, "op": "append", "a": "f", "b": "", "n": 5, "t": 10}`, `{"i": 1, "r": "ok", "v": 5, "t": 20}`,
		`{"i": 2, "op": "getsize", "a": "f", "b": "", "n": 0, "t": 30}`,
	} {
		if all, err = fold(all, text, 7, 2); err != nil {
			t.Fatal(err)
		}
	}
	if len(all) != 2 || all[0].Result != ok || all[0].Return != 20 || all[0].V != 5 || all[1].Result != unknown || all[1].Return != never {
		t.Errorf("%v", all)
	}
	for _, text := range []string{`{"i": 1, "r": "ok", "t": 40}`, `{`} {
		if _, err := fold(all, text, 7, 2); err == nil {
			t.Errorf("%s is taken", text)
		}
	}
}
