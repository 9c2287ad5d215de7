package fs

import (
	"log/slog"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// newClaimsBridge returns a bridge without a mount.
func newClaimsBridge(names Names, files *fakeNames, timeout time.Duration) *bridge {
	return newBridge(Config{Names: names, Areas: newFakeAreas(files), FaultTimeout: timeout, Log: slog.New(slog.DiscardHandler)})
}

func createIn(flags int) *fuse.CreateIn {
	return &fuse.CreateIn{InHeader: fuse.InHeader{NodeId: uint64(dsm.RootIno)}, Flags: uint32(flags), Mode: 0o600}
}

// TestCreateThatWasNotAnswered: a file that the catalog makes after the open(2) that was to make it has failed is given up.
func TestCreateThatWasNotAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files := newFakeNames()
		names := tardyNames{files, make(chan struct{}, 1), make(chan dsm.Ino, 1)}
		b := newClaimsBridge(names, files, time.Second)
		if st := b.Create(nil, createIn(os.O_RDWR), "f", new(fuse.CreateOut)); st.Ok() {
			t.Fatal("made before the catalog has answered")
		}
		ino := <-names.made
		(&FS{b: b}).Orphaned(ino)
		time.Sleep(time.Minute)
		b.releases.close()
		if files.claimed(ino) {
			t.Error("the file is claimed for good")
		}
	})
}

// TestCreateThatCannotOpen: a new file that cannot be opened in time is given up.
func TestCreateThatCannotOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files := newFakeNames()
		b := newClaimsBridge(files, files, time.Second)
		next, err := files.CreateTemp(t.Context(), dsm.RootIno, dsm.Inode{Perm: 0o600})
		if err != nil {
			t.Fatal(err)
		}
		a, err := b.opens.get(t.Context(), dsm.AreaID(next.Ino+1)) // nobody else gets in
		if err != nil {
			t.Fatal(err)
		}
		if st := b.Create(nil, createIn(os.O_RDWR), "f", new(fuse.CreateOut)); st.Ok() {
			t.Fatal("opened")
		}
		ino := dsm.Ino(a.id)
		if !files.claimed(ino) {
			t.Fatalf("inode %d is not that of the new file", ino)
		}
		<-a.gate
		time.Sleep(time.Minute)
		b.releases.close()
		if files.claimed(ino) {
			t.Error("the file is claimed for good")
		}
	})
}
