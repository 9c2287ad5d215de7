package fs

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestLongerFileWaitsForItsMemory: a file gets longer, and what programs had stored past its end is still being freed. Who is told that it is longer may store there
// at once, and that would be freed, too. So ftruncate, fallocate and fsync wait for it, and are errors if it takes too long. A stat waits for a while.
func TestLongerFileWaitsForItsMemory(t *testing.T) {
	const size, limit = 8 * dsm.PageSize, time.Minute
	for name, c := range map[string]struct {
		call func(b *bridge, a *openArea) fuse.Status
		most time.Duration
		end  fuse.Status
	}{
		"ftruncate": {func(b *bridge, a *openArea) fuse.Status {
			in := fuse.SetAttrIn{SetAttrInCommon: fuse.SetAttrInCommon{InHeader: header(opGetattr, 1, nodeID(a.id)), Valid: fuse.FATTR_SIZE, Size: size}}
			return b.SetAttr(nil, &in, &fuse.AttrOut{})
		}, limit, fuse.EIO},
		"fallocate": {func(b *bridge, a *openArea) fuse.Status {
			return b.Fallocate(nil, &fuse.FallocateIn{InHeader: header(opGetattr, 1, nodeID(a.id)), Fh: b.handles.add(newFileHandle(a, true)), Length: size})
		}, limit, fuse.EIO},
		"fsync": {func(b *bridge, a *openArea) fuse.Status {
			return b.Fsync(nil, &fuse.FsyncIn{InHeader: header(opGetattr, 1, nodeID(a.id)), Fh: b.handles.add(newFileHandle(a, true))})
		}, limit, fuse.EIO},
		"stat": {func(b *bridge, a *openArea) fuse.Status {
			return b.GetAttr(nil, &fuse.GetAttrIn{InHeader: header(opGetattr, 1, nodeID(a.id))}, &fuse.AttrOut{})
		}, sizeLimit, fuse.OK},
	} {
		for _, freed := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					names := newFakeNames()
					b, a := countingBy(t, names, names, "f")
					b.notify.server = slowCache{func() {}}
					area := a.current().(*fakeArea)
					area.freed = make(chan struct{})
					done, began := make(chan fuse.Status, 1), time.Now()
					go func() { done <- c.call(b, a) }()
					synctest.Wait()
					if len(done) > 0 {
						t.Fatalf("%v before the memory is there", <-done)
					}
					if freed {
						close(area.freed)
						synctest.Wait()
						if len(done) == 0 {
							t.Error("it waits although the memory is there")
						}
						if st := <-done; !st.Ok() {
							t.Error(st)
						}
					} else if st := <-done; st != c.end || time.Since(began) != c.most {
						t.Errorf("%v after %v, want %v after %v", st, time.Since(began), c.end, c.most)
					}
					b.background.close()
					b.releases.close()
				})
			})
		}
	}
}
