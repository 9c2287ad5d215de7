package wire

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// An error keeps its kind, text and place across the wire.
func TestFailure(t *testing.T) {
	const self, other dsm.NodeID = 1, 2
	for _, c := range []struct {
		err  error
		kind errs.Kind
		node dsm.NodeID
		text string
	}{
		{errs.E(errs.NotLeader, "propose", ""), errs.NotLeader, self, "propose: node 0000000000000001: not the leader"},
		{&errs.Error{Op: "open", Node: other, Path: "/a", Kind: errs.Exist}, errs.Exist, other, "open: /a: node 0000000000000002: file exists"},
		{fmt.Errorf("outer: %w", errs.E(errs.Busy, "op", "why")), errs.Busy, self, "op: node 0000000000000001: why"},
		{errors.New("plain"), errs.Other, self, "node 0000000000000001: plain"},
		{context.DeadlineExceeded, errs.Timeout, self, "node 0000000000000001: context deadline exceeded"},
		{context.Canceled, errs.Interrupted, self, "node 0000000000000001: context canceled"},
		{errors.New(strings.Repeat("x", 1<<20)), errs.Other, self, "node 0000000000000001: " + strings.Repeat("x", 4096)},
	} {
		b, err := Marshal(FailureOf(c.err, self))
		if err != nil {
			t.Fatal(err)
		}
		var f Failure
		if err := Unmarshal(b, &f); err != nil {
			t.Fatal(err)
		}
		got := f.Err()
		if errs.KindOf(got) != c.kind || got.Node != c.node || got.Error() != c.text {
			t.Errorf("%.100v became %.200v of kind %q at %v", c.err, got, got.Kind, got.Node)
		}
	}
}
