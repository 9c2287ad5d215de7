package catalog

import (
	"context"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/hold"
)

// follow starts the daemon that comes after the one that had the memory.
func follow(t *testing.T, n *node, m *hold.Memory) (*node, *hold.Memory) {
	t.Helper()
	n.stop()
	fd, err := unix.Dup(m.FD())
	ok(t, err)
	next, err := hold.Adopt(fd)
	ok(t, err)
	f := startHeld(t, "a", n.self.Addr, n.self.ID, next)
	ok(t, f.Resume(patient(t)))
	return f, next
}

// TestHeldCatalogGoesOn has daemons follow each other. The second one takes over after a snapshot.
func TestHeldCatalogGoesOn(t *testing.T) {
	m, err := hold.Create()
	ok(t, err)
	n := startHeld(t, "a", "127.0.0.1:0", 7, m)
	ok(t, n.Bootstrap(patient(t), dsm.Inode{Perm: 0o755}))
	cluster := n.Current().Cluster
	of := func(unique uint64) context.Context { return context.WithValue(patient(t), hold.RequestKey{}, unique) }
	count := 0
	for i, entries := range []int{10, snapshotEvery + trailingLogs, 10} {
		for range entries {
			_, err := n.Create(patient(t), dsm.RootIno, fmt.Sprint("f", count), file, false)
			ok(t, err)
			ok(t, n.Unlink(patient(t), dsm.RootIno, fmt.Sprint("f", count)))
			count++
		}
		name := fmt.Sprint("kept", i)
		made, err := n.Create(of(uint64(100+i)), dsm.RootIno, name, file, true)
		ok(t, err)
		ok(t, n.Rename(of(uint64(200+i)), dsm.RootIno, name, dsm.RootIno, "moved "+name, dsm.RenameReplace))

		n, m = follow(t, n, m)
		if c := n.Current().Cluster; c != cluster {
			t.Fatalf("cluster %v, was %v", c, cluster)
		}
		if got := n.Held(); len(got) != i+1 || got[i] != made.Ino {
			t.Errorf("%v are held, want %d of which the last is %v", got, i+1, made.Ino)
		}
		ok(t, n.Rename(of(uint64(200+i)), dsm.RootIno, name, dsm.RootIno, "moved "+name, dsm.RenameReplace))
		if again, err := n.Create(of(uint64(100+i)), dsm.RootIno, name, file, true); err != nil || again.Ino != made.Ino {
			t.Errorf("the same request made %v, %v; before it made %v", again.Ino, err, made.Ino)
		}
		if err := n.Rename(of(uint64(300+i)), dsm.RootIno, name, dsm.RootIno, "x", dsm.RenameReplace); !errs.Is(err, errs.NotExist) {
			t.Errorf("another request: %v", err)
		}
		for k := range i + 1 {
			_, err := n.Lookup(patient(t), dsm.RootIno, fmt.Sprint("moved kept", k))
			ok(t, err)
		}
	}
}
