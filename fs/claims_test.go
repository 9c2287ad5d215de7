package fs

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// TestCreateClaimsForTheAttach: a program that makes a file over the attach socket and attaches it costs the
// catalog one change. A file that nobody attaches is given up.
func TestCreateClaimsForTheAttach(t *testing.T) {
	f := mountTest(t)
	b := f.fs.b
	m := attachMount{f.names, b}
	root, err := f.names.Getattr(t.Context(), dsm.RootIno)
	if err != nil {
		t.Fatal(err)
	}
	create := func(name string) dsm.Ino {
		i, err := m.Create(t.Context(), &dsm.Credentials{}, root, name, dsm.Inode{Kind: dsm.KindFile, Perm: 0o600, Size: 4096}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !f.names.claimed(i.Ino) {
			t.Errorf("%s is not claimed", name)
		}
		return i.Ino
	}
	attached, left := create("attached"), create("left")
	area, err := m.Open(t.Context(), attached, true)
	if err != nil {
		t.Fatal(err)
	}
	if n := f.names.count("Claim"); n != 0 {
		t.Errorf("the attach of a new file claimed it %d times again", n)
	}
	eventually(t, "what nobody attached is given up", func() bool { return !f.names.claimed(left) })
	if !f.names.claimed(attached) {
		t.Error("what is attached was given up")
	}
	area.Close(true)
	eventually(t, "what was attached is given up", func() bool { return !f.names.claimed(attached) })
}

// tardyNames is a catalog that makes each file after the program has gone.
type tardyNames struct {
	*fakeNames
	asked chan struct{}
	made  chan dsm.Ino
}

func (n tardyNames) late(ctx context.Context, create func() (dsm.Inode, error)) (dsm.Inode, error) {
	n.asked <- struct{}{}
	<-ctx.Done()
	i, err := create()
	if err == nil {
		n.made <- i.Ino
	}
	return dsm.Inode{}, errs.E(errs.Timeout, "create", "")
}

func (n tardyNames) Create(ctx context.Context, dir dsm.Ino, name string, i dsm.Inode, claim bool, settings ...dsm.Setting) (dsm.Inode, error) {
	return n.late(ctx, func() (dsm.Inode, error) { return n.fakeNames.Create(ctx, dir, name, i, claim, settings...) })
}

func (n tardyNames) CreateTemp(ctx context.Context, dir dsm.Ino, i dsm.Inode, settings ...dsm.Setting) (dsm.Inode, error) {
	return n.late(ctx, func() (dsm.Inode, error) { return n.fakeNames.CreateTemp(ctx, dir, i, settings...) })
}

// TestFileOfAProgramThatHasGone: a file that the catalog makes when the program that wants it has gone is given up.
func TestFileOfAProgramThatHasGone(t *testing.T) {
	f := mountTest(t)
	names := tardyNames{f.names, make(chan struct{}, 1), make(chan dsm.Ino, 1)}
	m := attachMount{names, f.fs.b}
	root, err := f.names.Getattr(t.Context(), dsm.RootIno)
	if err != nil {
		t.Fatal(err)
	}
	n := dsm.Inode{Kind: dsm.KindFile, Perm: 0o600, Size: 4096}
	for what, create := range map[string]func(context.Context) error{
		"with a name": func(ctx context.Context) error {
			_, err := m.Create(ctx, &dsm.Credentials{}, root, "f", n, nil)
			return err
		},
		"without a name": func(ctx context.Context) error {
			_, _, err := m.CreateUnnamed(ctx, &dsm.Credentials{}, root, n, nil)
			return err
		},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-names.asked
			cancel()
		}()
		if err := create(ctx); err == nil {
			t.Errorf("%s: made for nobody", what)
		}
		ino := <-names.made
		f.fs.Orphaned(ino)
		eventually(t, "a file "+what+" is given up", func() bool { return !f.names.claimed(ino) })
	}
}

// TestRemovedFilesAreForgotten: nothing of a file stays in memory when the catalog has forgotten it, also if it does while
// this node gives up its claim.
func TestRemovedFilesAreForgotten(t *testing.T) {
	for _, during := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			names := &removingNames{fakeNames: newFakeNames()}
			b := newBridge(Config{Names: names, Areas: newFakeAreas(names.fakeNames), FaultTimeout: time.Minute, Log: slog.New(slog.DiscardHandler)})
			f := &FS{b: b}
			in, err := names.Create(t.Context(), dsm.RootIno, "f", dsm.Inode{Kind: dsm.KindFile, Size: 100}, true)
			if err != nil {
				t.Fatal(err)
			}
			a, err := b.opens.attach(t.Context(), in.Ino, false, nil)
			if err != nil {
				t.Fatal(err)
			}
			f.Removed(a.id)
			if b.opens.find(a.id) != a {
				t.Error("a file that is open was forgotten")
			}
			a.removed.Store(false)
			if during {
				names.removed = f.Removed
			}
			b.opens.detach(a, false)
			time.Sleep(time.Second)
			if !during {
				f.Removed(a.id)
			}
			if b.opens.find(a.id) != nil {
				t.Errorf("removed while the claim is given up: %v: the file is remembered", during)
			}
			b.releases.close()
		})
	}
}

// removingNames is a catalog in which a file goes when its claim does.
type removingNames struct {
	*fakeNames
	removed func(dsm.AreaID)
}

func (n *removingNames) Unclaim(ctx context.Context, inos ...dsm.Ino) error {
	err := n.fakeNames.Unclaim(ctx, inos...)
	for _, ino := range inos {
		if n.removed != nil {
			n.removed(dsm.AreaID(ino))
		}
	}
	return err
}

// lateNames makes a claim after it has told who asked for it that nobody knows.
type lateNames struct{ *fakeNames }

func (n lateNames) Claim(ctx context.Context, ino dsm.Ino, write bool) (dsm.Inode, error) {
	if _, err := n.fakeNames.Claim(ctx, ino, write); err != nil {
		return dsm.Inode{}, err
	}
	return dsm.Inode{}, errs.E(errs.Timeout, "claim", "")
}

// TestClaimThatWasNotAnswered: it may have been made all the same, so it is given up. Until then an open claims the file again.
func TestClaimThatWasNotAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := newFakeNames()
		b := newBridge(Config{Names: lateNames{names}, Areas: newFakeAreas(names), FaultTimeout: time.Minute, Log: slog.New(slog.DiscardHandler)})
		i, err := names.Create(t.Context(), dsm.RootIno, "f", dsm.Inode{Kind: dsm.KindFile, Perm: 0o600}, false)
		if err != nil {
			t.Fatal(err)
		}
		for n := 1; n < 3; n++ {
			if _, _, err := b.opens.open(t.Context(), i.Ino, true, nil); !errs.Is(err, errs.Timeout) || names.count("Claim") != n {
				t.Errorf("open: %v after %d claims", err, names.count("Claim"))
			}
		}
		if !names.claimed(i.Ino) {
			t.Fatal("the file is not claimed")
		}
		b.releases.close() // gives up what is to be given up
		if names.claimed(i.Ino) {
			t.Error("the file is claimed for good")
		}
	})
}

// unclaimedNames gives up a claim after it has told who asked for that that nobody knows.
type unclaimedNames struct{ *fakeNames }

func (n unclaimedNames) Unclaim(ctx context.Context, inos ...dsm.Ino) error {
	if err := n.fakeNames.Unclaim(ctx, inos...); err != nil {
		return err
	}
	return errs.E(errs.Timeout, "unhold", "")
}

// TestOpenAfterAnUnclaimThatWasNotAnswered: the claim may be gone, so who opens the file claims it again.
func TestOpenAfterAnUnclaimThatWasNotAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := newFakeNames()
		b, a := countingBy(t, unclaimedNames{names}, names, "f")
		b.opens.detach(a, false)
		time.Sleep(2 * claimDelay)
		if names.claimed(dsm.Ino(a.id)) || names.count("Unclaim") == 0 {
			t.Fatal("the claim is not given up")
		}
		if _, err := b.opens.attach(t.Context(), dsm.Ino(a.id), false, nil); err != nil {
			t.Fatal(err)
		}
		if !names.claimed(dsm.Ino(a.id)) {
			t.Error("the file is open, and not claimed")
		}
		b.end()
		b.background.close()
		b.releases.close()
	})
}
