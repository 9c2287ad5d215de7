package chaos

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/dsmfs/dsmfs/integration/history"
)

// checkNames: each directory is linearizable.
func checkNames(all []operation) []string { return linearizable(all, history.Names) }

// checkSizes: the size of each file is linearizable.
func checkSizes(all []operation) []string { return linearizable(all, history.Sizes) }

// looks are operations without effect: one of unknown outcome says nothing.
var looks = []string{"stat", "getsize"}

// answers are refusals that tell of a name. Others, as for lack of memory, may come at any time.
var answers = []string{"EEXIST", "ENOENT"}

// linearizable looks at each directory, or file, by itself: what stands before the slash.
func linearizable(all []operation, model porcupine.Model) (errs []string) {
	parts := map[string][]porcupine.Operation{}
	var order []string
	for _, o := range all {
		if o.Result == unknown && slices.Contains(looks, o.Kind) || o.Result == refused && !slices.Contains(answers, o.Err) {
			continue
		}
		part, a, _ := strings.Cut(o.A, "/")
		_, b, _ := strings.Cut(o.B, "/")
		if parts[part] == nil {
			order = append(order, part)
		}
		op := history.Op{Kind: o.Kind, A: a, B: b, Size: o.N, Call: o.Call, Done: o.Return}
		got := history.Answer{Unknown: o.Result == unknown, Ino: uint64(o.V), Size: o.V}
		if o.Result == refused {
			got.Errno = o.Err
		}
		parts[part] = append(parts[part], porcupine.Operation{ClientId: o.Worker, Input: op, Output: got, Call: o.Call, Return: o.Return})
	}
	for _, part := range order {
		const patience = 20 * time.Second
		result, info := porcupine.CheckOperationsVerbose(model, parts[part], patience)
		if result == porcupine.Illegal {
			errs = append(errs, fmt.Sprintf("%s is not linearizable: %s", part, history.Explain(model, parts[part], info)))
		}
	}
	return errs
}
