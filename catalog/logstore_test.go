package catalog

import (
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/hashicorp/raft"
)

// TestLogStore does what raft does to a log, and compares with a map.
func TestLogStore(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	s := newLogStore()
	want := make(map[uint64]uint64) // index to term
	first, last := uint64(0), uint64(0)
	store := func(from uint64, n int) {
		var logs []*raft.Log
		for i := range uint64(n) {
			term := rng.Uint64()
			logs = append(logs, &raft.Log{Index: from + i, Term: term})
			want[from+i] = term
		}
		ok(t, s.StoreLogs(logs))
		last = from + uint64(n) - 1
	}
	for range 2000 {
		switch n := uint64(1 + rng.IntN(20)); {
		case last == 0:
			first = 1 + rng.Uint64N(100)
			store(first, int(n))
		case rng.IntN(20) == 0: // a snapshot was installed
			clear(want)
			first = last + 2 + rng.Uint64N(100)
			store(first, int(n))
		case rng.IntN(4) == 0: // compaction
			to := min(last, first+rng.Uint64N(30))
			ok(t, s.DeleteRange(first, to))
			for ; first <= to; first++ {
				delete(want, first)
			}
		case rng.IntN(4) == 0: // a conflict
			from := first + rng.Uint64N(last-first+1)
			ok(t, s.DeleteRange(from, last))
			for ; last >= from; last-- {
				delete(want, last)
			}
		default:
			store(last+1, int(n))
		}
		if len(want) == 0 {
			first, last = 0, 0
		}
		gotFirst, _ := s.FirstIndex()
		gotLast, _ := s.LastIndex()
		if gotFirst != first || gotLast != last {
			t.Fatalf("log from %d to %d, want %d to %d", gotFirst, gotLast, first, last)
		}
		for i := range last + 3 {
			var l raft.Log
			err := s.GetLog(i, &l)
			if term, there := want[i]; there != (err == nil) || l.Term != term || err != nil && !errors.Is(err, raft.ErrLogNotFound) {
				t.Fatalf("entry %d: %+v, %v", i, l, err)
			}
		}
	}
}

func TestSnapStore(t *testing.T) {
	s := newSnapStore(newLogStore().restored, func(*snapshot) error { return nil })
	write := func(index uint64, data string) raft.SnapshotSink {
		sink, err := s.Create(1, index, 3, raft.Configuration{}, 1, nil)
		ok(t, err)
		_, err = io.WriteString(sink, data)
		ok(t, err)
		return sink
	}
	read := func() string {
		list, err := s.List()
		ok(t, err)
		if len(list) == 0 {
			return ""
		}
		meta, r, err := s.Open(list[0].ID)
		ok(t, err)
		b, err := io.ReadAll(r)
		ok(t, err)
		if meta.Size != int64(len(b)) {
			t.Errorf("size %d of %q", meta.Size, b)
		}
		return string(b)
	}
	a, b := write(10, "ten"), write(20, "twenty")
	if read() != "" {
		t.Error("a snapshot is there before it is complete")
	}
	ok(t, b.Close())
	ok(t, a.Close()) // finished late
	ok(t, write(30, "thirty").Cancel())
	if got := read(); got != "twenty" {
		t.Errorf("the snapshot is %q", got)
	}
	if _, _, err := s.Open("3-10"); err == nil {
		t.Error("an old snapshot opens")
	}
}
