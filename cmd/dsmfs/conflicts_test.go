package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/fs/control"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// finders answers requests about conflicts as members would: each tells of one conflict at a time, or of a part of it.
type finders struct {
	members []dsm.Member
	part    int // of a conflict that comes at once
	cleared func(asked *wire.ListConflicts)

	mu    sync.Mutex
	keeps map[dsm.NodeID][]control.Conflict
	asked map[dsm.NodeID]int
}

func (f *finders) add(id dsm.NodeID, kept ...string) {
	if f.keeps == nil {
		f.keeps, f.asked = make(map[dsm.NodeID][]control.Conflict), make(map[dsm.NodeID]int)
	}
	f.members = append(f.members, dsm.Member{ID: id, Name: fmt.Sprintf("n%d", id), Addr: fmt.Sprintf("h:%d", id)})
	for i, k := range kept {
		f.keeps[id] = append(f.keeps[id], control.Conflict{Number: uint64(i + 1), Off: int64(i), Kept: []byte(k)})
	}
}

func (f *finders) ask(ctx context.Context, m dsm.Member, req any) (any, error) {
	if m.Name == "silent" {
		<-ctx.Done()
		return nil, errs.E(errs.Timeout, "call", "")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked[m.ID]++
	if c, ok := req.(*wire.ClearConflicts); ok {
		f.keeps[m.ID] = f.keeps[m.ID][min(c.UpTo, uint64(len(f.keeps[m.ID]))):]
		if c.UpTo == 0 {
			f.keeps[m.ID] = nil
		}
		return &wire.ConflictsCleared{}, nil
	}
	q := req.(*wire.ListConflicts)
	if f.cleared != nil {
		f.cleared(q)
	}
	out := &wire.ConflictsListed{}
	for _, c := range f.keeps[m.ID] {
		switch {
		case c.Number < q.From:
		case len(out.List) > 0:
			out.More = true
		default:
			kept := c.Kept
			if c.Number == q.From {
				kept = kept[q.Skip:]
			}
			n := len(kept)
			if f.part > 0 {
				n = min(n, f.part)
			}
			out.List = []wire.KeptConflict{{Number: c.Number, Off: c.Off, Kept: kept[:n], Rest: int64(len(kept) - n)}}
			out.More = n < len(kept)
		}
	}
	return out, nil
}

// inShort is a list in short.
func inShort(list []control.KeptConflicts) string {
	var words []string
	for _, k := range list {
		for _, c := range k.List {
			words = append(words, fmt.Sprintf("%s/%d:%s", k.Node, c.Number, c.Kept))
		}
		if k.More {
			words = append(words, k.Node+":more")
		}
		if k.Silent {
			words = append(words, k.Node+":silent")
		}
	}
	return strings.Join(words, " ")
}

func (f *finders) wants(t *testing.T, want string) {
	t.Helper()
	if got := inShort(listConflicts(t.Context(), f.members, 1, f.ask)); got != want {
		t.Errorf("the list is %q, want %q", got, want)
	}
}

// TestConflictsOfAllNodes: what any node keeps is listed, however many pages it takes, and who does not answer is named.
func TestConflictsOfAllNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &finders{part: 3}
		f.add(3, "three", "3")
		f.add(1)
		f.add(2, "2", "two, and long")
		f.wants(t, "n2/1:2 n2/2:two, and long n3/1:three n3/2:3")
		f.add(4, "4")
		f.add(5)
		f.add(6)
		f.members[3].Name, f.members[4].Gone, f.members[5].Gone = "silent", true, true
		f.members[5].Addr = f.members[0].Addr // it has ended, and left nothing
		began := time.Now()
		f.wants(t, "n2/1:2 n2/2:two, and long n3/1:three n3/2:3 n5:silent silent:silent")
		if took := time.Since(began); took != listLimit || f.asked[5] > 0 || f.asked[6] > 0 {
			t.Errorf("it took %v; members that are gone were asked: %v", took, f.asked)
		}
		clear := func(node dsm.NodeID, upTo uint64) error {
			return clearConflicts(t.Context(), f.members, node, &wire.ClearConflicts{Area: 1, UpTo: upTo}, f.ask)
		}
		if err := clear(2, 1); err != nil {
			t.Error(err)
		}
		f.wants(t, "n2/2:two, and long n3/1:three n3/2:3 n5:silent silent:silent")
		if err := clear(0, 0); errs.KindOf(err) != errs.Timeout || !strings.Contains(err.Error(), "silent") {
			t.Errorf("cleared where one node does not answer: %v", err)
		}
		f.wants(t, "n5:silent silent:silent")
		f.members = f.members[:3]
		if err := clear(0, 0); err != nil {
			t.Error(err)
		}
	})
}

// TestConflictClearedWhileListed: no part of it is shown for the whole.
func TestConflictClearedWhileListed(t *testing.T) {
	f := &finders{part: 2}
	f.add(1, "one", "two")
	f.cleared = func(q *wire.ListConflicts) {
		if q.Skip > 0 {
			f.keeps[1] = f.keeps[1][1:]
			f.cleared = nil
		}
	}
	f.wants(t, "n1/2:two")
}

// TestConflictsBeyondTheMost: the list says that a node keeps more, and shows these when others are cleared.
func TestConflictsBeyondTheMost(t *testing.T) {
	f := &finders{part: 1 << 20}
	long := strings.Repeat("x", mostListed-listedCost)
	f.add(1, long)
	f.add(2, "2", long, "last")
	got := listConflicts(t.Context(), f.members, 1, f.ask)
	if len(got[0].List) != 1 || !bytes.Equal(got[0].List[0].Kept, []byte(long)) || got[0].More || len(got[1].List) != 1 || !got[1].More {
		t.Fatalf("%d conflicts of the first node, more: %v; %d of the second, more: %v", len(got[0].List), got[0].More, len(got[1].List), got[1].More)
	}
	f.keeps[1], f.keeps[2] = nil, f.keeps[2][1:]
	got = listConflicts(t.Context(), f.members, 1, f.ask)
	if len(got[1].List) != 1 || len(got[1].List[0].Kept) != len(long) || !got[1].More {
		t.Fatalf("%d conflicts of the second node, more: %v", len(got[1].List), got[1].More)
	}
}

// FuzzConflictsListed gives answers that a node may send: the list ends, and shows only conflicts that are whole.
func FuzzConflictsListed(f *testing.F) {
	for _, m := range []*wire.ConflictsListed{
		{}, {More: true}, {List: []wire.KeptConflict{{Number: 1, Kept: []byte("1")}}, More: true, Lost: 5},
		{List: []wire.KeptConflict{{Number: 1, Kept: []byte("1"), Rest: 2}}, More: true}, {List: []wire.KeptConflict{{Number: 2, Rest: -1}, {Number: 1}}},
		{List: []wire.KeptConflict{{Number: 1<<64 - 1}}, More: true},
	} {
		b, err := wire.Append(nil, m, 1, true, 0)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := wire.NewReader(bytes.NewReader(b))
		var last *wire.ConflictsListed
		ask := func(context.Context, dsm.Member, any) (any, error) {
			if frame, err := r.Read(); err == nil {
				m, ok := frame.Msg.(*wire.ConflictsListed)
				if frame.Release(); !ok {
					return frame.Msg, nil
				}
				last = m
			}
			if last == nil {
				return nil, errs.E(errs.Unavailable, "call", "")
			}
			return last, nil // the same for ever
		}
		for _, k := range listConflicts(t.Context(), []dsm.Member{{ID: 1}}, 1, ask) {
			at := uint64(0)
			for _, c := range k.List {
				if c.Number <= at {
					t.Errorf("conflict %d follows %d", c.Number, at)
				}
				at = c.Number
			}
		}
	})
}
