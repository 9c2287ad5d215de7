package fs

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// maxTalks is how many descriptors of groups the programs of a user may have open. Each costs a goroutine, and the lines that wait.
const maxTalks = 1024

// talks counts what each user has of them, those that are ending included.
type talks struct {
	mu struct {
		lockrank.Mutex
		of map[uint32]*talker
	}
}

type talker struct {
	talks  int
	warned bool // the log says that the user reached the limit
}

func (t *talks) init() {
	t.mu.Init("fs.talks")
	t.mu.of = make(map[uint32]*talker)
}

// begin counts one more, or returns why there may be no more. first says that the user has just reached the limit.
func (t *talks) begin(uid uint32) (first bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	u := t.mu.of[uid]
	if u == nil {
		u = new(talker)
		t.mu.of[uid] = u
	}
	if u.talks >= maxTalks {
		first, u.warned = !u.warned, true
		return first, &errs.Error{Op: "open", Err: fmt.Errorf("%w: more than %d descriptors of groups of one user", unix.EMFILE, maxTalks)}
	}
	u.talks++
	return false, nil
}

func (t *talks) end(uid uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	u := t.mu.of[uid]
	if u.talks--; u.talks == 0 {
		delete(t.mu.of, uid)
	}
}
