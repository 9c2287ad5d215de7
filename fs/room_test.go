package fs

import (
	"context"
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

// TestNoRoomOnABusyNode: who wants memory waits for what was closed before, whatever is opened and closed meanwhile, and hears of it soon if there is none.
func TestNoRoomOnABusyNode(t *testing.T) {
	for _, tc := range []struct {
		name   string
		stuck  bool // what was closed before waits for the catalog
		second error
		want   errs.Kind
		most   time.Duration
	}{
		{"room", false, nil, errs.Other, 3 * closeLimit / 4},
		{"no room", false, errs.E(errs.NoSpace, "fake", ""), errs.NoSpace, 3 * closeLimit / 4},
		{"stuck", true, errs.E(errs.NoSpace, "fake", ""), errs.NoSpace, closeLimit},
		{"no answer", true, errs.E(errs.Timeout, "fake", ""), errs.NoSpace, closeLimit},
		{"another answer", true, errs.E(errs.Exist, "fake", ""), errs.Exist, closeLimit},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, _, a := counting(t, "f")
				end, ended := make(chan struct{}), make(chan struct{})
				go func() { // some release always runs, and some handle was always closed a moment ago
					defer close(ended)
					h := newFileHandle(a, false)
					b.handles.add(h)
					for {
						b.releases.run(func() { time.Sleep(closeLimit / 4) })
						time.Sleep(closeLimit / 8)
						h.flushed.Store(time.Now().UnixNano())
						select {
						case <-end:
							return
						default:
						}
					}
				}()
				if tc.stuck {
					b.releases.run(func() { <-end })
				}
				synctest.Wait()
				began, tries := time.Now(), 0
				ctx, cancel := context.WithTimeout(t.Context(), 10*closeLimit)
				defer cancel()
				_, err := b.withRoom(ctx, func() (dsm.Inode, error) {
					if tries++; tries > 1 {
						return dsm.Inode{}, tc.second
					}
					return dsm.Inode{}, errs.E(errs.NoSpace, "fake", "")
				})
				if took := time.Since(began); tries != 2 || (err == nil) != (tc.second == nil) || err != nil && !errs.Is(err, tc.want) || took > tc.most {
					t.Errorf("%v after %d tries and %v, want %v in %v at most", err, tries, took, tc.want, tc.most)
				}
				close(end)
				<-ended
				b.background.close()
				b.releases.close()
			})
		})
	}
}
