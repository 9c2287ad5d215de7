package fs

import (
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// A stat whose name another node replaces between its LOOKUP and its GETATTR shows
// the file that the name was of, as often as that happens.
func TestStatOfAReplacedName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := newFakeNames()
		b := newBridge(Config{Names: names, FaultTimeout: time.Second})
		const tid = 7
		in := headerOf(tid)
		in.NodeId = uint64(dsm.RootIno)
		getattr := func(tid uint32, node uint64) (out fuse.AttrOut, st fuse.Status) {
			st = b.GetAttr(nil, &fuse.GetAttrIn{InHeader: fuse.InHeader{NodeId: node, Caller: fuse.Caller{Pid: tid}}}, &out)
			return out, st
		}
		stale := fuse.Status(syscall.ESTALE)
		for i := range 3 {
			made, err := names.Create(t.Context(), dsm.RootIno, "w", dsm.Inode{Kind: dsm.KindFile, Perm: 0o640}, false)
			if err != nil {
				t.Fatal(err)
			}
			var out fuse.EntryOut
			if st := b.Lookup(nil, in, "w", &out); !st.Ok() || out.NodeId != uint64(made.Ino) {
				t.Fatalf("lookup: %v, node %d", st, out.NodeId)
			}
			if err := names.Unlink(t.Context(), dsm.RootIno, "w"); err != nil {
				t.Fatal(err)
			}
			if got, st := getattr(tid, out.NodeId); !st.Ok() || got.Ino != uint64(made.Ino) || got.Mode&0o777 != 0o640 || got.Nlink != 0 {
				t.Fatalf("time %d: %v, %+v", i, st, got.Attr)
			}
			if _, st := getattr(tid+1, out.NodeId); st != stale && st != fuse.ENOENT {
				t.Errorf("a thread that did not look it up: %v", st)
			}
			if i == 2 {
				time.Sleep(lookupWindow + time.Millisecond)
				if _, st := getattr(tid, out.NodeId); st != stale {
					t.Errorf("much later: %v", st)
				}
			}
		}
	})
}
