package history

import (
	"testing"

	"github.com/anishathalye/porcupine"
)

// TestModelsFindErrors feeds the model histories that it must refuse, so
// that a pass of the other tests means something.
func TestModelsFindErrors(t *testing.T) {
	type op = porcupine.Operation
	do := func(client int, from, to int64, kind, a, b string, ino uint64, errno string) op {
		return op{ClientId: client, Input: Op{Kind: kind, A: a, B: b, Call: from, Done: to}, Output: Answer{Ino: ino, Errno: errno}, Call: from, Return: to}
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
		if got := porcupine.CheckOperations(Names, test.ops); got != test.ok {
			t.Errorf("%s: linearizable is %v, want %v", name, got, test.ok)
		}
	}
}
