package catalog

import (
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/locks"
)

// state is the replicated state: the result of the log's commands up to applied. It is plain data
// without a lock, a clock or a source of randomness, so that all replicas that apply the same
// commands have the same state, byte for byte of its snapshot.
//
// Invariants: every entry of a directory names an inode in inodes; an inode with Nlink 0 is claimed by
// a member; reserved is the sum of what the inodes take; view is never changed, only
// replaced; members that leave keep no slot that those that stay have memory for.
type state struct {
	applied  uint64
	term     uint64 // of raft, of the entry that is being applied; not a part of the image
	inodes   map[dsm.Ino]*inode
	nextIno  dsm.Ino
	reserved reservation
	sessions map[dsm.NodeID]*session
	evicted  map[dsm.NodeID]*session // what nodes have done that were evicted, and may join again as other incarnations
	view     *dsm.View               // Cluster is 0 before the bootstrap command
	book     *locks.Book
	unplaced map[dsm.Ino]struct{} // files whose placement names a node, and that have no slot of their own yet: see place.go

	effects effects // of the command being applied
}

// inode is an inode with everything that belongs to it.
type inode struct {
	dsm.Inode
	parent  dsm.Ino                 // for a directory; the root is its own parent
	entries map[string]dsm.Ino      // for a directory
	xattrs  map[string][]byte       // the values are never changed
	claims  map[dsm.NodeID]struct{} // the nodes that claim the inode
	temp    bool                    // a file that never had a name, and may get one
	shrinks []shrink                // of a file: see addShrink
}

// step is the circumstances in which a command is applied.
type step struct {
	index uint64     // in the log
	node  dsm.NodeID // the proposer
	now   time.Time  // by the proposer's clock
	yield locks.Yield
}

// effects are the changes by a command that an Observer is told of.
type effects struct {
	changed []areaChange
	removed []dsm.Ino
	view    *dsm.View // if it changed
	locks   []locks.Event
}

type areaChange struct{ before, after dsm.Inode }

func newState() *state {
	return &state{
		inodes:   make(map[dsm.Ino]*inode),
		nextIno:  dsm.RootIno,
		sessions: make(map[dsm.NodeID]*session),
		evicted:  make(map[dsm.NodeID]*session),
		view:     &dsm.View{},
		book:     locks.NewBook(),
		unplaced: make(map[dsm.Ino]struct{}),
	}
}

// add makes an inode from n with the next number.
func (s *state) add(st step, n dsm.Inode) *inode {
	n.Ino = s.nextIno
	s.nextIno++
	n.Nlink = 1
	n.Atime, n.Mtime, n.Ctime = st.now, st.now, st.now
	n.Gen, n.Rev = dsm.Generation(st.index), dsm.Generation(st.index)
	in := &inode{Inode: n}
	if n.Kind == dsm.KindDir {
		in.Nlink = 2
		in.parent = n.Ino
		in.entries = make(map[string]dsm.Ino)
	}
	s.inodes[n.Ino] = in
	s.reserve(reservation{}, in.all())
	return in
}

// get returns the inode.
func (s *state) get(ino dsm.Ino) (*inode, error) {
	if in := s.inodes[ino]; in != nil {
		return in, nil
	}
	return nil, fail(errs.NotExist, "inode %d", ino)
}

// dir returns the directory, which may have been removed.
func (s *state) dir(ino dsm.Ino) (*inode, error) {
	in, err := s.get(ino)
	if err != nil {
		return nil, err
	}
	if in.Kind != dsm.KindDir {
		return nil, fail(errs.NotDir, "inode %d", ino)
	}
	return in, nil
}

// liveDir returns the directory if entries may be created in it.
func (s *state) liveDir(ino dsm.Ino) (*inode, error) {
	in, err := s.dir(ino)
	if err != nil {
		return nil, err
	}
	if in.Nlink == 0 {
		return nil, fail(errs.NotExist, "directory %d is removed", ino)
	}
	return in, nil
}

// child returns the inode that has the name in d.
func (s *state) child(d *inode, name string) (*inode, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	if ino, ok := d.entries[name]; ok {
		return s.inodes[ino], nil
	}
	return nil, fail(errs.NotExist, "%q", name)
}

// drop forgets the inode if it has no name and no node claims it.
func (s *state) drop(in *inode) {
	if in.Nlink > 0 || len(in.claims) > 0 {
		return
	}
	delete(s.inodes, in.Ino)
	delete(s.unplaced, in.Ino)
	s.book.Remove(in.Ino)
	s.reserve(in.all(), reservation{})
	if in.Kind == dsm.KindFile {
		s.effects.removed = append(s.effects.removed, in.Ino)
	}
}

// changed records the time of a change of the inode's attributes. The ctime, which nobody can set,
// is the inode's clock: it never goes back although the clocks of the proposers differ.
func (in *inode) changed(st step) {
	if st.now.After(in.Ctime) {
		in.Ctime = st.now
	}
}

// modified records the time of a change of the inode's contents.
func (in *inode) modified(st step) {
	in.changed(st)
	in.Mtime = in.Ctime
}

// revised records that the size, spec or layout of the area has changed from before. regenerated
// says that messages made before must be refused.
func (s *state) revised(st step, in *inode, before dsm.Inode, regenerated bool) {
	in.Rev = dsm.Generation(st.index)
	if regenerated {
		in.Gen = in.Rev
	}
	if in.Kind == dsm.KindFile {
		s.effects.changed = append(s.effects.changed, areaChange{before, in.Inode})
	}
}

// claim and unclaim are idempotent: a node claims an inode or does not.

func (o claimOp) apply(s *state, st step) (dsm.Inode, error) {
	in, err := s.get(o.Ino)
	if err != nil {
		return dsm.Inode{}, err
	}
	s.claim(in, st, o.Write)
	return in.Inode, nil
}

func (o unclaimOp) apply(s *state, st step) (dsm.Inode, error) {
	for _, ino := range o.Inos {
		if in := s.inodes[ino]; in != nil {
			delete(in.claims, st.node)
			s.effects.locks = append(s.effects.locks, s.book.Close(ino, st.node)...)
			s.drop(in)
		}
	}
	return dsm.Inode{}, nil
}

// claim makes the node claim the inode; write says that a program of the node will store to it.
func (s *state) claim(in *inode, st step, write bool) {
	in.claim(st.node)
	if write && in.Kind == dsm.KindFile {
		s.effects.locks = append(s.effects.locks, s.book.Open(in.Ino, st.node, len(in.claims) == 1, st.yield)...)
	}
}

func (in *inode) claim(n dsm.NodeID) {
	if in.claims == nil {
		in.claims = make(map[dsm.NodeID]struct{})
	}
	in.claims[n] = struct{}{}
}

// list returns the entries of the directory by name.
func (s *state) list(d *inode) []dsm.DirEntry {
	entries := make([]dsm.DirEntry, 0, len(d.entries))
	for _, name := range sortedKeys(d.entries) {
		in := s.inodes[d.entries[name]]
		entries = append(entries, dsm.DirEntry{Name: name, Ino: in.Ino, Kind: in.Kind})
	}
	return entries
}
