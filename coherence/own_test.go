package coherence

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"unsafe"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/head"
)

// ownCase is a cluster of nodes with a versioned area that nobody owns, and that is open for reading on all of them.
type ownCase struct{ *sim }

func newOwnCase(t *testing.T, nodes int, spec dsm.Spec) ownCase {
	spec.Mode = dsm.ModeVersioned
	c := ownCase{newSim(t, 1, nodes, dsm.Inode{Size: simSize, Spec: spec})}
	for _, n := range c.nodes {
		n.find()
		n.openReader()
		c.calm()
	}
	return c
}

// does runs a call to its end, and returns its error.
func (c ownCase) does(n *simNode, call func(ctx context.Context) error) error {
	over := false
	var err error
	n.ask("call", func(ctx context.Context) error {
		err = call(ctx)
		return nil
	}, func(error) { over = true })
	c.calm()
	if !over {
		c.t.Fatal("a call is not over")
	}
	return err
}

// opens opens the area for writing.
func (c ownCase) opens(n *simNode) error {
	return c.does(n, func(ctx context.Context) error {
		_, err := n.node.Open(ctx, simArea, true)
		return err
	})
}

// publishes stores a byte and publishes it.
func (c ownCase) publishes(n *simNode, off int64, b byte) {
	c.t.Helper()
	c.stores(n, off, b)
	if err := c.does(n, n.area.Publish); err != nil {
		c.t.Fatal(err)
	}
}

func (c ownCase) stores(n *simNode, off int64, b byte) {
	if err := n.area.WriteAt(context.Background(), []byte{b}, off); err != nil {
		c.t.Fatal(err)
	}
}

// byteOf reads a byte of a version.
func (n *simNode) byteOf(v dsm.Version, off int64) string {
	b := make([]byte, 1)
	if _, err := n.area.ReadVersion(v, b, off); err != nil {
		return errs.KindOf(err).String()
	}
	return fmt.Sprint(b[0])
}

func TestOneOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newOwnCase(t, 3, dsm.Spec{})
		a, b := c.nodes[0], c.nodes[1]
		var log bytes.Buffer
		b.node.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		if a.node.Owner(simArea) != 0 {
			t.Error("it has an owner before a program has opened it for writing")
		}
		if err := c.opens(a); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := c.opens(b); !errs.Is(err, errs.Access) || !strings.Contains(err.Error(), a.id.String()) {
				t.Errorf("opened where it is not owned: %v", err)
			}
		}
		if n := strings.Count(log.String(), "another node owns it"); n != 1 {
			t.Errorf("the log has the reason %d times", n)
		}
		if _, _, err := b.area.Attach(context.Background(), 0, true); !errs.Is(err, errs.Access) {
			t.Errorf("attached where it is not owned: %v", err)
		}
		if err := c.does(b, b.take); !errs.Is(err, errs.Busy) || !strings.Contains(err.Error(), "1 of its programs") {
			t.Errorf("taken from a program that has it open: %v", err)
		}
		c.stores(a, 5, 7) // and is published when the area is given away
		a.area.Close(true)
		if err := c.does(b, b.take); err != nil || b.node.Owner(simArea) != b.id {
			t.Fatalf("taken: %v, the owner is %v", err, b.node.Owner(simArea))
		}
		if err := c.opens(a); !errs.Is(err, errs.Access) {
			t.Errorf("opened where it was owned: %v", err)
		}
		if err := c.opens(b); err != nil {
			t.Error(err)
		}
		v := b.area.Versions()
		if len(v) == 0 || v[len(v)-1].Writer != a.id || b.byteOf(v[len(v)-1].Version, 5) != "7" {
			t.Errorf("the versions are %+v", v)
		}
		b.area.Close(true)
		if err := c.does(c.nodes[2], func(ctx context.Context) error { return c.nodes[2].node.Transfer(ctx, simArea, a.id) }); err != nil || a.node.Owner(simArea) != a.id {
			t.Errorf("given to another by a third: %v, the owner is %v", err, a.node.Owner(simArea))
		}
	})
}

// TestTakeWaitsForAClose: a program closes the area while it is being taken.
func TestTakeWaitsForAClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newOwnCase(t, 2, dsm.Spec{})
		if err := c.opens(c.nodes[0]); err != nil {
			t.Fatal(err)
		}
		c.nodes[0].node.closePatience = patience
		b := c.nodes[1]
		q := b.ask("take", b.take, nil)
		c.drain()
		if q.over.Load() {
			t.Fatal("it is over before a program has closed the area")
		}
		c.nodes[0].area.Released()
		c.calm()
		if q.err != nil || b.node.Owner(simArea) != b.id {
			t.Errorf("%v, the owner is %v", q.err, b.node.Owner(simArea))
		}
	})
}

// newDeadOwner is newOwnCase with three nodes, of which the first has published a version as the owner, and died.
func newDeadOwner(t *testing.T) ownCase {
	c := newOwnCase(t, 3, dsm.Spec{})
	owner := c.nodes[0]
	if err := c.opens(owner); err != nil {
		t.Fatal(err)
	}
	c.publishes(owner, 0, 1)
	c.kill(owner)
	c.bury(owner)
	c.calm()
	return c
}

func TestOwnerDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newDeadOwner(t)
		b := c.nodes[1]
		if err := c.opens(b); !errs.Is(err, errs.Access) {
			t.Errorf("open: %v", err)
		}
		if err := c.does(b, b.take); !errs.Is(err, errs.Unavailable) {
			t.Errorf("take: %v", err)
		}
		if v := b.area.Versions(); len(v) != 1 || b.byteOf(v[0].Version, 0) != "1" {
			t.Errorf("the last version does not stay: %+v", v)
		}
	})
}

// TestTruncatedOfADeadOwner: what a dead owner had can be truncated, and then any node can own the file, by an open or a transfer.
func TestTruncatedOfADeadOwner(t *testing.T) {
	ways := map[string]func(c ownCase, n *simNode) error{
		"open": ownCase.opens,
		"transfer": func(c ownCase, n *simNode) error {
			if err := c.does(n, n.take); err != nil {
				return err
			}
			return c.opens(n)
		},
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newDeadOwner(t)
				b, reader := c.nodes[1], c.nodes[2]
				c.resized(0)
				c.calm()
				if err := c.does(reader, func(ctx context.Context) error { return reader.node.Transfer(ctx, simArea, b.id) }); !errs.Is(err, errs.Unavailable) {
					t.Errorf("given to another: %v", err)
				}
				if err := way(c, b); err != nil || b.node.Owner(simArea) != b.id {
					t.Fatalf("%v, the owner is %v", err, b.node.Owner(simArea))
				}
				c.resized(dsm.PageSize)
				c.calm()
				c.publishes(b, 0, 2)
				c.calm()
				if v := reader.area.Versions(); len(v) == 0 || v[len(v)-1].Writer != b.id || reader.byteOf(v[len(v)-1].Version, 0) != "2" {
					t.Errorf("a reader has the versions %+v", v)
				}
			})
		})
	}
}

// TestReadersSeeWhatIsPublished: what a program stores on the owner's node is not seen by one that has attached to read, before it is published.
func TestReadersSeeWhatIsPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newOwnCase(t, 2, dsm.Spec{})
		a := c.nodes[0]
		if err := c.opens(a); err != nil {
			t.Fatal(err)
		}
		at, f, err := a.area.Attach(context.Background(), 0, false)
		if err != nil {
			t.Fatal(err)
		}
		line := &head.Line{}
		at.Watch(line)
		sees := func(what string, want byte, here dsm.Version) {
			t.Helper()
			b := make([]byte, 1)
			if _, err := f.ReadAt(b, 9); err != nil && err != io.EOF || b[0] != want {
				t.Errorf("%s: the byte is %d, want %d, %v", what, b[0], want, err)
			}
			if words := (*[8]uint64)(unsafe.Pointer(line)); words[2] != uint64(here) || words[6]%2 != 0 {
				t.Errorf("%s: the line has version %d, want %d; changes %d", what, words[2], here, words[6])
			}
		}
		c.stores(a, 9, 3)
		sees("stored", 0, 0)
		c.publishes(a, 9, 4)
		first := a.area.Version()
		sees("published", 4, first)
		if words := (*[8]uint64)(unsafe.Pointer(line)); words[6] == 0 {
			t.Error("the line has not said that bytes change")
		}
		if c.nodes[1].area.Version() != first {
			t.Errorf("here is version %d, there %d", first, c.nodes[1].area.Version())
		}
		at.Unwatch(line)
		at.Detach()
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestOlderVersionsAndRoom: retained versions go when memory is short, pinned ones stay, and nothing more can be pinned.
func TestOlderVersionsAndRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newOwnCase(t, 1, dsm.Spec{Retain: 3})
		a := c.nodes[0]
		if v, err := a.area.PinVersion(0); err != nil || v.Version != 0 || v.Size != simSize || a.byteOf(0, 0) != "0" {
			t.Errorf("before anything is published: %+v, %v", v, err)
		}
		a.area.UnpinVersion(0)
		if err := c.opens(a); err != nil {
			t.Fatal(err)
		}
		list := func() (list []dsm.Version) {
			for _, v := range a.area.Versions() {
				list = append(list, v.Version)
			}
			return list
		}
		for i := range byte(5) {
			c.publishes(a, 0, i+1)
		}
		kept := list()
		if len(kept) != 3 || a.byteOf(kept[0], 0) != "3" || a.byteOf(kept[2], 0) != "5" {
			t.Fatalf("kept are %v", kept)
		}
		if _, err := a.area.PinVersion(kept[0] - 1); !errs.Is(err, errs.Dropped) || !strings.Contains(err.Error(), fmt.Sprint(kept[0])) {
			t.Errorf("a version that is not kept: %v", err)
		}
		if _, err := a.area.PinVersion(kept[1]); err != nil {
			t.Fatal(err)
		}
		most := int64(2 * simSize) // which the area itself takes
		a.node.room.budget = most + dsm.FileCost
		c.publishes(a, 0, 6)
		if now := list(); len(now) != 2 || now[0] != kept[1] || a.byteOf(kept[1], 0) != "4" {
			t.Errorf("kept are %v, of %v", now, kept)
		}
		if _, err := a.area.PinVersion(0); !errs.Is(err, errs.NoSpace) {
			t.Errorf("pinned without room: %v", err)
		}
		if v, err := a.area.PinToRead(t.Context(), 0); err != nil || a.byteOf(v.Version, 0) != "6" {
			t.Errorf("read: %v", err)
		} else {
			a.area.UnpinVersion(v.Version)
		}
		if v, err := a.area.PinToRead(t.Context(), kept[1]); err != nil || v.Version != kept[1] {
			t.Errorf("read on: %v", err)
		} else {
			a.area.UnpinVersion(v.Version)
		}
		if _, err := a.area.PinToRead(t.Context(), kept[0]); !errs.Is(err, errs.Dropped) {
			t.Errorf("read on in a version that is dropped: %v", err)
		}
		a.area.UnpinVersion(kept[1])
		if a.node.room.fixed.Load() != most {
			t.Errorf("%d bytes are taken, the area has %d", a.node.room.fixed.Load(), most)
		}
		if _, err := a.area.PinVersion(0); err != nil {
			t.Error(err)
		}
	})
}

// TestReadWaitsForAVersion: a read waits while the home has not sent this node a version yet. A file without bytes has none to wait for.
func TestReadWaitsForAVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := ownCase{newSim(t, 1, 2, dsm.Inode{Size: simSize, Spec: dsm.Spec{Mode: dsm.ModeVersioned}})}
		a, late := c.nodes[0], c.nodes[1]
		a.find()
		late.find()
		a.openReader()
		c.calm()
		if err := c.opens(a); err != nil {
			t.Fatal(err)
		}
		c.publishes(a, 5, 7)
		late.startOpen(false)
		var v VersionInfo
		q := late.ask("read", func(ctx context.Context) (err error) {
			v, err = late.area.PinToRead(ctx, 0)
			return err
		}, nil)
		c.rest()
		if q.over.Load() {
			t.Fatalf("a read does not wait: %+v", v)
		}
		c.calm()
		if !q.over.Load() || late.byteOf(v.Version, 5) != "7" {
			t.Errorf("it reads %+v", v)
		}
		late.area.UnpinVersion(v.Version)
	})
	synctest.Test(t, func(t *testing.T) {
		c := ownCase{newSim(t, 1, 2, dsm.Inode{Spec: dsm.Spec{Mode: dsm.ModeVersioned}})}
		for _, n := range c.nodes {
			n.find()
			n.openReader()
			c.calm()
			v, err := n.area.PinToRead(t.Context(), 0)
			if home := c.rowOf(c.lastView(), 0).Primary == n.id; home && (err != nil || v.Size != 0) || !home && !errs.Is(err, errs.Invalid) {
				t.Errorf("an empty file at node %d: %+v, %v", n.i, v, err)
			}
		}
	})
}

// TestModeChangesWhileOpen: an empty file becomes versioned while programs have it open.
func TestModeChangesWhileOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, 1, 3, dsm.Inode{Size: 0})
		c := ownCase{s}
		for _, n := range s.nodes {
			n.find()
			n.openReader()
			c.calm()
		}
		a, b := c.nodes[1], c.nodes[2]
		if err := c.opens(a); err != nil {
			t.Fatal(err)
		}
		s.changeRules(func(ino *dsm.Inode) { ino.Spec.Mode = dsm.ModeVersioned })
		s.resize(simSize)
		c.calm()
		for i := range byte(2) {
			c.publishes(a, 4, i+1)
			if err := c.does(b, func(ctx context.Context) error { return b.area.Acquire(ctx, false) }); err != nil {
				t.Fatal(err)
			}
			v, err := b.area.PinVersion(0)
			if err != nil || b.byteOf(v.Version, 4) != fmt.Sprint(i+1) || v.Writer != a.id {
				t.Errorf("publish %d: %+v, %v", i, v, err)
			}
		}
		if a.node.Owner(simArea) != a.id {
			t.Errorf("the owner is %v", a.node.Owner(simArea))
		}
		if err := c.opens(b); !errs.Is(err, errs.Access) {
			t.Errorf("opened where it is not owned: %v", err)
		}
	})
}

// TestVersionsAreNoRounds: groups do not publish together to a versioned area.
func TestVersionsAreNoRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newOwnCase(t, 1, dsm.Spec{})
		if err := c.nodes[0].area.Contribute(context.Background(), dsm.RoundID{Group: 9, Generation: 1, Number: 1}); !errs.Is(err, errs.Invalid) {
			t.Error(err)
		}
	})
}

// TestSlowSubscriber: who takes nothing skips versions, and gets the newest one whole; the others, and the writer, do not wait.
func TestSlowSubscriber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newOwnCase(t, 3, dsm.Spec{})
		a, slow, b := c.nodes[0], c.nodes[1], c.nodes[2]
		if err := c.opens(a); err != nil {
			t.Fatal(err)
		}
		a.node.links.window = 2 * dsm.PageSize // so that a batch does not fit
		stopped := link{a.i, slow.i}
		deliver := func() {
			c.rest()
			for more := true; more; {
				more = false
				for _, k := range []link{{0, 2}, {2, 0}, {1, 0}} {
					if len(c.net[k]) > 0 {
						c.deliverOn(k)
						more = true
					}
				}
				c.rest()
			}
		}
		for i := range byte(20) {
			for _, p := range hot {
				c.stores(a, int64(p)*dsm.PageSize, i+1)
			}
			q := a.ask("publish", a.area.Publish, nil)
			deliver()
			if !q.over.Load() {
				t.Fatal("the writer waits for a reader")
			}
			if b.area.Version() != a.area.Version() {
				t.Fatal("one reader waits for another one")
			}
		}
		if slow.area.Version() != 0 || len(c.net[stopped]) == 0 {
			t.Fatal("the reader is not slow")
		}
		h := a.area.mu.whole.history
		if most := int64(3*len(hot)) * dsm.PageSize; h.Bytes() > most {
			t.Errorf("the home keeps %d bytes, want at most %d", h.Bytes(), most)
		}
		c.calm()
		if slow.area.Version() != a.area.Version() {
			t.Errorf("it has version %d of %d", slow.area.Version(), a.area.Version())
		}
		v := slow.area.Versions()
		for _, p := range hot {
			if got := slow.byteOf(v[len(v)-1].Version, int64(p)*dsm.PageSize); got != "20" {
				t.Errorf("page %d has %s", p, got)
			}
		}
		if !slices.IsSortedFunc(v, func(x, y VersionInfo) int { return int(x.Version - y.Version) }) || len(v) > 2 {
			t.Errorf("versions %+v", v)
		}
	})
}

// TestManySlowSubscribers: what the versions of batches under way take does not grow with the number of slow subscribers once memory is short, the
// writer waits for none of them, and all get the newest version in the end.
func TestManySlowSubscribers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nodes = 7
		c := newOwnCase(t, nodes, dsm.Spec{})
		a := c.nodes[0]
		if err := c.opens(a); err != nil {
			t.Fatal(err)
		}
		c.calm()
		a.node.room.budget = a.node.room.kept.Load() + a.node.room.fixed.Load() + 1 // the area itself takes nearly all
		a.node.links.window = 2 * dsm.PageSize                                      // so that a batch does not fit
		h, most := a.area.mu.whole.history, int64(0)
		for i := range byte(nodes - 1) {
			for _, p := range hot {
				c.stores(a, int64(p)*dsm.PageSize, 10*i+1)
			}
			q := a.ask("publish", a.area.Publish, nil)
			c.rest()
			if !q.over.Load() {
				t.Fatal("the writer waits for a reader")
			}
			// One more subscriber is told that its session is reset, so that its batch begins anew, with the newest version.
			a.area.step(func() { a.area.homeResetLocked(c.nodes[i+1].id) })
			c.rest()
			most = max(most, h.Bytes())
		}
		if want := int64(2*len(hot)) * dsm.PageSize; most > want {
			t.Errorf("the home has kept %d bytes of versions, want at most %d", most, want)
		}
		c.calm()
		for _, n := range c.nodes[1:] {
			if n.area.Version() != a.area.Version() {
				t.Errorf("node %d has version %d of %d", n.i, n.area.Version(), a.area.Version())
			}
		}
	})
}

// TestAcquireWhileTheOwnerPublishes: an owner that publishes faster than the link to a reader takes it does not keep an Acquire of the reader waiting.
func TestAcquireWhileTheOwnerPublishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newOwnCase(t, 2, dsm.Spec{})
		a, reader := c.nodes[0], c.nodes[1]
		if err := c.opens(a); err != nil {
			t.Fatal(err)
		}
		c.calm()
		a.node.links.window = 2 * dsm.PageSize // so that a batch does not fit
		q := reader.ask("acquire", func(ctx context.Context) error { return reader.area.Acquire(ctx, false) }, nil)
		for i := 0; !q.over.Load(); i++ {
			if i == 200 {
				t.Fatal("the reader still waits")
			}
			for _, p := range hot {
				c.stores(a, int64(p)*dsm.PageSize, byte(i%100+1))
			}
			a.ask("publish", a.area.Publish, nil)
			c.rest()
			for _, k := range []link{{0, 1}, {1, 0}} {
				if len(c.net[k]) > 0 {
					c.deliverOn(k)
				}
				c.rest()
			}
		}
		c.calm()
	})
}
