package fs

import (
	"context"

	"github.com/dsmfs/dsmfs/fs/attach"
)

// Groups lets programs of this node act together with those of others.
type Groups interface {
	attach.Groups
	// List describes the groups of the cluster that have members, one on each line.
	List(ctx context.Context) []string
}

// attachGroups is what package attach gets: an interface that is nil if there are none.
func (b *bridge) attachGroups() attach.Groups {
	if b.cfg.Groups == nil {
		return nil
	}
	return b.cfg.Groups
}
