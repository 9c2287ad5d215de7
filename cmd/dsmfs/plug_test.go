package main

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/hold"
)

// TestViewsDoNotGoBack: who looks a view up may be slower than the catalog, which tells of the next one. Another cluster counts its views anew.
func TestViewsDoNotGoBack(t *testing.T) {
	n, _ := following(t, new(dsm.View))
	for _, c := range []struct {
		cluster dsm.ClusterID
		epoch   dsm.Epoch
		other   dsm.NodeID
		want    dsm.NodeID
	}{{5, 6, 2, 2}, {5, 5, 3, 2}, {5, 6, 2, 2}, {5, 7, 4, 4}, {8, 2, 3, 3}} {
		n.connect(&dsm.View{Cluster: c.cluster, Epoch: c.epoch, Members: []dsm.Member{{ID: 1, Addr: "127.0.0.1:1"}, {ID: c.other, Addr: "127.0.0.1:" + c.other.String()}}}, true)
		if got := slices.Collect(maps.Keys(n.net.Silences())); !slices.Equal(got, []dsm.NodeID{c.want}) {
			t.Errorf("cluster %v, view %d: the node connects to %v, want %v", c.cluster, c.epoch, got, c.want)
		}
		if got := strings.TrimSpace(n.cfg.held.mem.Text(hold.Members)); got != "127.0.0.1:"+c.want.String() {
			t.Errorf("cluster %v, view %d: the next daemon knows %s, want %v", c.cluster, c.epoch, got, c.want)
		}
	}
}
