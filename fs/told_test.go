package fs

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestAreaHearsWhatIsTold: an area that is open hears of a size before any answer tells the kernel of it.
func TestAreaHearsWhatIsTold(t *testing.T) {
	names := newFakeNames()
	areas := newFakeAreas(names)
	b := newBridge(Config{Names: names, Areas: areas, FaultTimeout: time.Second})
	in := *headerOf(7)
	in.NodeId = uint64(dsm.RootIno)
	var made fuse.CreateOut
	if st := b.Create(nil, &fuse.CreateIn{InHeader: in, Flags: syscall.O_RDONLY, Mode: 0o600}, "w", &made); !st.Ok() {
		t.Fatal(st)
	}
	area := areas.area(dsm.AreaID(made.NodeId))
	file := in
	file.NodeId = made.NodeId
	want := []int64{0}
	for _, ask := range []func() fuse.Status{
		func() fuse.Status {
			set := fuse.SetAttrIn{SetAttrInCommon: fuse.SetAttrInCommon{InHeader: file, Valid: fuse.FATTR_SIZE, Size: 1000}}
			return b.SetAttr(nil, &set, &fuse.AttrOut{})
		},
		func() fuse.Status { return b.GetAttr(nil, &fuse.GetAttrIn{InHeader: file}, &fuse.AttrOut{}) },
		func() fuse.Status { return b.Lookup(nil, &in, "w", &fuse.EntryOut{}) },
	} {
		if st := ask(); !st.Ok() {
			t.Fatal(st)
		}
		want = append(want, 1000)
		area.mu.Lock()
		told := slices.Clone(area.told)
		area.mu.Unlock()
		if !slices.Equal(told, want) {
			t.Fatalf("the area heard of %v, want %v", told, want)
		}
	}
}
