package integration

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// TestStoreToARewrittenFile: one node writes a file twice, the second time with O_TRUNC, as numpy.save over a name
// that exists; another, which may have had it open before, opens it, maps it, stores and syncs. The
// store is on every node.
func TestStoreToARewrittenFile(t *testing.T) {
	c := nodes(t, 2)
	all := clients(c)
	a, b := all[0], all[1]
	content := bytes.Repeat([]byte{1}, 2*page)
	unseen := 0
	for i := range 40 {
		name := fmt.Sprint("w", i)
		var mapped *harness.Map
		for round := range 2 {
			f := b.Open(name, "rw,creat,trunc")
			f.Write(0, content)
			f.Close()
			if i%2 == 1 && round == 0 {
				_, mapped = a.Attach(name, 2*page) // the same story with a mapping from before
				mapped.Load(0, 2*page)
			}
		}
		f, m := a.Attach(name, 2*page)
		m.Store(page+5, []byte("stored"))
		m.Sync()
		at := b.Open(name, "r")
		if !bytes.Equal(at.Read(page+5, 6), []byte("stored")) {
			m.Store(page+5, []byte("STORED")) // would it come later, or with another store?
			m.Sync()
			if !harness.Eventually(limit/10, func() bool { return bytes.EqualFold(at.Read(page+5, 6), []byte("stored")) }) {
				unseen++
			}
		}
		at.Close()
		if mapped != nil {
			mapped.Unmap()
		}
		m.Unmap()
		f.Close()
	}
	if unseen > 0 {
		t.Errorf("in %d of 40 runs the store is never seen", unseen)
	}
}
