package fs

import (
	"context"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/fs/control"
	"github.com/dsmfs/dsmfs/groups"
	"github.com/dsmfs/dsmfs/internal/dsm"
)

// oneNode has the groups of a cluster of one node.
type oneNode struct{ *groups.Node }

func (oneNode) Send(dsm.NodeID, any, [][]byte, bool)  {}
func (oneNode) List(context.Context) (lines []string) { return nil }

// FuzzControl writes what a program may write to a control file, and reads what it says then. A setting that was refused is what it was.
func FuzzControl(f *testing.F) {
	for _, name := range []string{"log_level", "members", "scrub", "areas/w/mode", "areas/w/merge", "areas/w/dtype", "areas/w/interval", "areas/w/placement", "areas/w/staleness", "areas/w/retain", "areas/w/replicas",
		"areas/w/owner", "areas/w/publish", "areas/w/acquire", "areas/w/history", "areas/w/versions", "ino/2"} {
		for _, value := range []string{"", "1", "versioned\n", "none", "f64", "0000000000000001"} {
			f.Add(name, value)
		}
	}
	for _, talk := range []string{"join 1", "join 1 0.5\nbarrier\nbarrier 5\nround w\nround w w /w\nadd n 5\nadd n -9223372036854775808\ntick\ntick 3\nleave\nbarrier", "join 2 1\nbarrier", "join 257\nadd \xff 1", "tick 1e9"} {
		f.Add("areas/w/group", talk)
	}
	f.Fuzz(func(t *testing.T, path, value string) {
		synctest.Test(t, func(t *testing.T) {
			names := newFakeNames()
			if _, err := names.Create(t.Context(), dsm.RootIno, "w", dsm.Inode{Kind: dsm.KindFile, Perm: 0o666, Size: 4096}, true); err != nil {
				t.Fatal(err)
			}
			g := oneNode{groups.NewNode(groups.Config{Self: 1, Sender: oneNode{}, Home: func(*dsm.View, dsm.AreaID) dsm.NodeID { return 1 }})}
			g.ViewChanged(&dsm.View{Epoch: 1, Members: []dsm.Member{{ID: 1}}})
			b := newBridge(Config{Names: names, Areas: newFakeAreas(names), Groups: g, Info: new(fakeInfo), FaultTimeout: time.Minute, Log: slog.New(slog.DiscardHandler)})
			defer func() {
				b.end()
				g.Close()
				b.background.close()
				b.releases.close()
			}()
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour) // of the bubble's time
			defer cancel()
			node := control.Root
			for _, name := range strings.Split(path, "/") {
				var err error
				if node, err = b.control.Lookup(ctx, node, name); err != nil {
					return
				}
			}
			if _, err := b.control.Attr(ctx, node); err != nil {
				t.Errorf("%s: %v", path, err)
			}
			before := readControl(ctx, b, node)
			h, err := b.control.Open(node, syscall.O_WRONLY, dsm.Credentials{})
			if err != nil {
				return
			}
			err = h.Write(ctx, []byte(value))
			for range strings.Count(strings.TrimSuffix(value, "\n"), "\n") + 1 {
				if err != nil || !h.Talks() {
					break
				}
				if answer, e := h.Hear(ctx, 1<<20); e != nil || !strings.HasSuffix(answer, "\n") {
					t.Errorf("%q is answered with %q, %v", value, answer, e)
				}
			}
			h.Close()
			if after := readControl(ctx, b, node); err != nil && !h.Talks() && after != before {
				t.Errorf("%s refused %q (%v), and says %q, no more %q", path, value, err, after, before)
			}
		})
	})
}

func readControl(ctx context.Context, b *bridge, node control.Node) string {
	h, err := b.control.Open(node, syscall.O_RDONLY, dsm.Credentials{})
	if err != nil {
		return ""
	}
	defer h.Close()
	text, err := h.Read(ctx, 0)
	if err != nil {
		return err.Error()
	}
	return text
}
