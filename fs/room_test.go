package fs

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// TestRoomOfAClosedFile: who wants memory gets that of a removed file that was closed before, also if the kernel says so only now.
func TestRoomOfAClosedFile(t *testing.T) {
	full := errs.E(errs.NoSpace, "fake", "")
	for _, tc := range []struct {
		name    string
		flushed bool
		late    time.Duration
	}{{"after", true, closeLimit / 2}, {"just before the wait", false, 0}} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, names, a := counting(t, "f")
				h := newFileHandle(a, false)
				fh := b.handles.add(h)
				if err := names.Unlink(t.Context(), dsm.RootIno, "f"); err != nil {
					t.Fatal(err)
				}
				release := func() { b.Release(nil, &fuse.ReleaseIn{Fh: fh}) }
				if tc.flushed {
					if st := b.Flush(nil, &fuse.FlushIn{Fh: fh}); !st.Ok() {
						t.Fatal(st)
					}
					go func() {
						time.Sleep(tc.late)
						release()
					}()
				}
				_, err := b.withRoom(t.Context(), func() (dsm.Inode, error) {
					if i, err := names.Getattr(t.Context(), dsm.Ino(a.id)); err != nil {
						return i, nil
					}
					if !tc.flushed {
						release()
						b.releases.settle(t.Context())
					}
					return dsm.Inode{}, full
				})
				if err != nil {
					t.Error(err)
				}
				// Nor does it wait for ever for a descriptor that stays.
				h = newFileHandle(a, false)
				h.flushed.Store(time.Now().UnixNano())
				b.handles.add(h)
				if _, err := b.withRoom(t.Context(), func() (dsm.Inode, error) { return dsm.Inode{}, full }); !errs.Is(err, errs.NoSpace) {
					t.Error(err)
				}
				b.background.close()
				b.releases.close()
			})
		})
	}
}
