package fs

import (
	"os"
	"os/exec"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// TestKilledOpener: the close of a program that is being killed publishes nothing of a versioned file, and the end of its handle has what it has left taken back.
func TestKilledOpener(t *testing.T) {
	b, areas, _, a := lockable(t)
	area := areas.area(a.id)
	defer b.background.close()
	becomesVersioned(t, b, a)
	for _, killed := range []bool{false, true} {
		var out fuse.OpenOut
		in := fuse.InHeader{NodeId: uint64(a.id), Caller: fuse.Caller{Pid: uint32(os.Getpid())}}
		if st := b.Open(nil, &fuse.OpenIn{InHeader: in, Flags: uint32(os.O_RDWR)}, &out); !st.Ok() {
			t.Fatal(st)
		}
		b.handles.get(out.Fh).(*fileHandle).opener.gone = killed
		lasts, abandoned := area.lasts, area.abandoned
		if st := b.Flush(nil, &fuse.FlushIn{InHeader: in, Fh: out.Fh}); !st.Ok() {
			t.Fatal(st)
		}
		if got := area.lasts > lasts; got == killed {
			t.Errorf("killed %v: the close has published: %v", killed, got)
		}
		b.Release(nil, &fuse.ReleaseIn{Fh: out.Fh})
		b.releases.settle(t.Context())
		if got := area.abandoned > abandoned; got != killed {
			t.Errorf("killed %v: what is left was taken back: %v", killed, got)
		}
	}
	b.releases.close()
}

// TestOpenerThatHasGone: of a process that has ended before the daemon could ask for it nobody knows how, and it counts as killed. One that is not seen is not known.
func TestOpenerThatHasGone(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	for pid, want := range map[int]bool{cmd.Process.Pid: true, os.Getpid(): false, 0: false} {
		var o opener
		o.is(pid)
		if got := o.killed(); got != want {
			t.Errorf("process %d: killed %v, want %v", pid, got, want)
		}
		o.forget()
	}
}
