package dsm

import (
	"testing"
	"time"
)

func TestRepeatable(t *testing.T) {
	n, perm, now := int64(7), uint32(0o600), time.Unix(1, 0)
	for what, c := range map[string]struct {
		change SetAttr
		want   bool
	}{
		"attributes":        {SetAttr{Perm: &perm, Mtime: &now}, true},
		"at least so large": {SetAttr{GrowTo: &n, Mtime: &now}, true},
		"truncate":          {SetAttr{Size: &n}, false},
		"append":            {SetAttr{GrowBy: &n, Mtime: &now}, false},
	} {
		if got := c.change.Repeatable(); got != c.want {
			t.Errorf("%s: %v", what, got)
		}
	}
}
