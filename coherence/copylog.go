package coherence

import (
	"cmp"
	"container/heap"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/pages"
)

// backup is what is under way to one backup of an area. It keeps no bytes. A publish is passed on at once as it came; if that is not possible, its pages are
// due, and go later with the bytes that they have then. So its size is bounded, however slow the backup is: by the number of extents, and by the credit of the
// link.
type backup struct {
	id   dsm.NodeID
	sent map[uint64]*update // by their IDs, and not acked
	due  batch              // not sent yet
	// Likewise, of slots that are being filled: what fills them, and what has changed since it was sent. See pace.go.
	fill, changed batch
	// Of a versioned area: due is sent as the version at, which history has pinned, and what has changed since waits in later.
	later   batch
	history *pages.History // nil: nothing is pinned
	at      VersionInfo
	covered map[dsm.Slot]*covered // while it is being filled
	owes    map[dsm.Slot]int      // changes that outputs wait for
	owed    owed                  // likewise, in order
	unsent  int                   // likewise, those that were not sent
}

// update is a change that a backup is to be told of, and has not acked: what has changed in an extent since base.
type update struct {
	id     uint64 // of its message
	index  uint64 // of the change; of several, the first
	extent dsm.ExtentIndex
	slot   dsm.Slot // of the extent
	base   dsm.Version
	record bool // it says only which versions exist, and of a versioned area which is the newest that is whole
	begin  bool
	// Of a versioned area: whose publishes the extent contains in the version.
	writers []wire.WriterSeq

	waits  bool // outputs wait for it
	over   bool // it was acked, given up, or another has taken its place
	credit int
	paced  paced
	made   time.Time // or when outputs began to wait for it
	marks  []*mark
}

// mark is a call to be made when changes are acked, or given up.
type mark struct {
	left int
	done func()
}

func (m *mark) passed() {
	if m.left--; m.left == 0 {
		m.done()
	}
}

// batch is changes in the order in which they are to be sent: one of each extent at most, and the record at the end.
type batch struct {
	list   []*update // some may not be in it any more
	of     map[dsm.ExtentIndex]*update
	record *update
}

func (q *batch) empty() bool { return len(q.of) == 0 && q.record == nil }

// first returns the change to be sent next, or nil.
func (q *batch) first() *update {
	for len(q.list) > 0 && !q.has(q.list[0]) {
		q.list = q.list[1:]
	}
	if len(q.list) == 0 {
		q.list = nil
		return q.record
	}
	return q.list[0]
}

// add adds a change, the first of its extent.
func (q *batch) add(x *update) {
	if x.record {
		q.record = x
		return
	}
	if q.of == nil {
		q.of = make(map[dsm.ExtentIndex]*update)
	}
	q.of[x.extent] = x
	q.list = append(q.list, x)
}

func (q *batch) has(x *update) bool { return q.of[x.extent] == x }

// remove takes a change out that was sent, or is over, or goes to another batch. It stays in list until first sees it, unless it is at the front.
func (q *batch) remove(x *update) {
	switch {
	case x == q.record:
		q.record = nil
	case q.has(x):
		delete(q.of, x.extent)
		if len(q.list) > 0 && q.list[0] == x {
			q.list = q.list[1:]
		}
	}
}

func (q *batch) all() iter.Seq[*update] {
	return func(yield func(*update) bool) {
		for _, x := range slices.Clone(q.list) {
			if q.has(x) && !yield(x) {
				return
			}
		}
		if q.record != nil {
			yield(q.record)
		}
	}
}

// all yields what is under way, in the order of the changes. They may be ended meanwhile.
func (b *backup) all() iter.Seq[*update] {
	return func(yield func(*update) bool) {
		for _, id := range slices.Sorted(maps.Keys(b.sent)) {
			if !yield(b.sent[id]) {
				return
			}
		}
		for _, q := range []*batch{&b.due, &b.fill, &b.changed, &b.later} {
			for x := range q.all() {
				if !yield(x) {
					return
				}
			}
		}
	}
}

// idle reports whether nothing is under way.
func (b *backup) idle() bool {
	return len(b.sent) == 0 && b.due.empty() && b.fill.empty() && b.changed.empty() && b.later.empty()
}

// owed has the changes that outputs wait for, the first on top. Some may not count any more.
type owed []owedChange

type owedChange struct {
	index uint64
	*update
}

func (w owed) Len() int           { return len(w) }
func (w owed) Less(i, j int) bool { return w[i].index < w[j].index }
func (w owed) Swap(i, j int)      { w[i], w[j] = w[j], w[i] }
func (w *owed) Push(x any)        { *w = append(*w, x.(owedChange)) }
func (w *owed) Pop() any {
	last := len(*w) - 1
	x := (*w)[last]
	(*w)[last] = owedChange{}
	*w = (*w)[:last]
	return x
}

// needed returns the index of the first change that outputs wait for; 0: there is none.
func (b *backup) needed() uint64 {
	for len(b.owed) > 0 {
		if x := b.owed[0]; x.waits && !x.over && x.update.index == x.index {
			return x.index
		}
		heap.Pop(&b.owed)
	}
	return 0
}

// needed returns the index of the first change that outputs to a node wait for; 0: there is none. What the node has been sent itself is no such change.
// If it is 0, it is any node that is no backup.
func (c *copies) needed(to dsm.NodeID) (first uint64) {
	for id, b := range c.to {
		if id == to && b.unsent == 0 {
			continue
		}
		if n := b.needed(); n != 0 && (first == 0 || n < first) {
			first = n
		}
	}
	return first
}

// setWaitsLocked records the slot of a change, and whether outputs wait for it.
func (a *Area) setWaitsLocked(b *backup, x *update, waits bool) {
	slot := a.slotLocked(x.extent)
	if x.waits {
		if b.owes[x.slot]--; b.owes[x.slot] == 0 {
			delete(b.owes, x.slot)
		}
		if x.id == 0 {
			b.unsent--
		}
	}
	was := x.waits
	if x.slot, x.waits = slot, waits; !waits {
		return
	}
	if b.owes == nil {
		b.owes = make(map[dsm.Slot]int)
	}
	b.owes[slot]++
	if x.id == 0 {
		b.unsent++
	}
	if !was {
		heap.Push(&b.owed, owedChange{x.index, x})
		x.made = a.now() // it counts from when somebody waits for it
		a.watchBackupsLocked()
	}
}

// copyDueLocked adds a change to those that a backup is to be told of. One of the same extent that was not sent yet tells of both.
func (a *Area) copyDueLocked(b *backup, x *update) {
	q := a.batchOfLocked(b, x)
	if a.versionedLocked() && !x.record {
		x.writers = a.mu.home.extents[x.extent].writersLocked()
	}
	was := q.record
	if !x.record {
		was = q.of[x.extent]
	}
	if was != nil {
		a.unifyLocked(b, was, x)
		return
	}
	q.add(x)
	a.beginChangeLocked(b, x)
}

// beginChangeLocked counts a change that is under way from now on, or was sent before.
func (a *Area) beginChangeLocked(b *backup, x *update) {
	made, waits := cmp.Or(x.made, a.now()), x.waits
	x.waits = false
	a.setWaitsLocked(b, x, waits)
	x.made = made
}

// unifyLocked makes a change that was not sent yet tell of another one, too, which is in no batch.
func (a *Area) unifyLocked(b *backup, x, o *update) {
	x.base, x.begin, x.writers = min(x.base, o.base), x.begin || o.begin, o.writers
	x.marks = append(x.marks, o.marks...)
	if o.index < x.index {
		x.index = o.index
		if x.waits {
			heap.Push(&b.owed, owedChange{x.index, x})
		}
	}
	if o.waits && !x.waits {
		a.setWaitsLocked(b, x, true)
	}
	if o.waits && o.made != (time.Time{}) && o.made.Before(x.made) {
		x.made = o.made
	}
}

// withdrawLocked takes a change out of what is under way, without its marks being passed.
func (a *Area) withdrawLocked(b *backup, x *update) (marks []*mark) {
	delete(b.sent, x.id)
	b.due.remove(x)
	b.fill.remove(x)
	b.changed.remove(x)
	b.later.remove(x)
	a.giveCreditLocked(b, x)
	a.setWaitsLocked(b, x, false)
	marks, x.marks = x.marks, nil
	x.over, x.credit = true, 0
	return marks
}

// endChangeLocked ends a change: it was acked, or need not be told any more.
func (a *Area) endChangeLocked(b *backup, x *update) {
	for _, m := range a.withdrawLocked(b, x) {
		m.passed()
	}
}
