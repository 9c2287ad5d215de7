package fs

import (
	"context"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// TestAcquireOfALongerFile: whoever acquires asks the catalog for the size meanwhile. If another node has made the file longer it acquires once more, since what
// was published there may have a home that the node knew nothing of.
func TestAcquireOfALongerFile(t *testing.T) {
	away, refused := errs.E(errs.Timeout, "", ""), errs.E(errs.Unavailable, "", "")
	for name, c := range map[string]struct {
		grows          bool
		fails, catalog error
		calls          int
		want           error
	}{
		"as it was":           {calls: 1},
		"longer":              {grows: true, calls: 2},
		"removed":             {catalog: errs.E(errs.NotExist, "", ""), calls: 1},
		"nobody knows":        {catalog: away, calls: 1, want: away},
		"the acquire fails":   {fails: refused, calls: 1, want: refused},
		"neither is possible": {fails: refused, catalog: away, calls: 1, want: refused},
	} {
		t.Run(name, func(t *testing.T) {
			b, a, _ := pacedArea(0)
			defer b.background.close()
			defer b.end()
			names := b.cfg.Names.(*fakeNames)
			i, err := names.CreateTemp(t.Context(), dsm.RootIno, dsm.Inode{})
			if err != nil {
				t.Fatal(err)
			}
			a.id = i.Area()
			a.note(i)
			if size := int64(dsm.PageSize); c.grows {
				if _, err := names.SetAttr(t.Context(), i.Ino, dsm.SetAttr{GrowTo: &size}); err != nil {
					t.Fatal(err)
				}
			}
			names.mu.Lock()
			names.fail["Getattr"] = c.catalog
			names.mu.Unlock()
			calls := 0
			err = b.acquire(t.Context(), a, func(context.Context) error {
				calls++
				return c.fails
			})
			if calls != c.calls || err != c.want {
				t.Errorf("%d acquires, %v; want %d, %v", calls, err, c.calls, c.want)
			}
		})
	}
}
