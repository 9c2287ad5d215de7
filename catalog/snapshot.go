package catalog

import (
	"cmp"
	"slices"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/locks"
)

// imageFormat is the version of image.
const imageFormat = 16

// image is a state as a value, with every set in order: equal states have equal images, byte for
// byte.
type image struct {
	Format   uint32
	Applied  uint64
	NextIno  dsm.Ino
	Cluster  dsm.ClusterID
	Epoch    dsm.Epoch
	Lease    time.Duration
	Members  []dsm.Member
	Trust    *dsm.Trust
	Former   []dsm.Former
	Apart    []dsm.Link
	Slots    []dsm.SlotHome
	Own      []dsm.OwnSlot
	Inodes   []inodeImage
	Sessions []sessionImage
	Evicted  []sessionImage
	Locks    []locks.Page
	LockTerm uint64 // the last
}

type inodeImage struct {
	Inode   dsm.Inode
	Parent  dsm.Ino
	Entries []entryImage
	Xattrs  []xattrImage
	Claims  []dsm.NodeID
	Temp    bool
	Shrinks []shrink
}

type entryImage struct {
	Name string
	Ino  dsm.Ino
}

type xattrImage struct {
	Name  string
	Value []byte
}

type sessionImage struct {
	Node    dsm.NodeID
	Low     uint64
	Results []resultImage
	Evicted uint64
	Inc     uint64
}

type resultImage struct {
	Req    uint64
	Result result
}

// image copies the state. Later changes of the state do not change the copy, so it can be encoded
// while commands are applied.
func (s *state) image() *image {
	img := &image{
		Format: imageFormat, Applied: s.applied, NextIno: s.nextIno,
		Cluster: s.view.Cluster, Epoch: s.view.Epoch, Lease: s.view.Lease, Members: s.view.Members, Former: s.view.Former, Apart: s.view.Apart, Trust: s.view.Trust, Slots: s.view.Slots[:], Own: s.view.Own,
		Inodes: make([]inodeImage, 0, len(s.inodes)),
	}
	for _, ino := range sortedKeys(s.inodes) {
		in := s.inodes[ino]
		x := inodeImage{Inode: in.Inode, Parent: in.parent, Claims: sortedKeys(in.claims), Temp: in.temp, Shrinks: in.shrinks}
		for name, ino := range in.entries {
			x.Entries = append(x.Entries, entryImage{name, ino})
		}
		for name, value := range in.xattrs {
			x.Xattrs = append(x.Xattrs, xattrImage{name, value})
		}
		slices.SortFunc(x.Entries, func(a, b entryImage) int { return cmp.Compare(a.Name, b.Name) })
		slices.SortFunc(x.Xattrs, func(a, b xattrImage) int { return cmp.Compare(a.Name, b.Name) })
		img.Inodes = append(img.Inodes, x)
	}
	img.Sessions, img.Evicted = sessionImages(s.sessions), sessionImages(s.evicted)
	img.Locks, img.LockTerm = s.book.Pages(), s.book.LastTerm()
	return img
}

func sessionImages(sessions map[dsm.NodeID]*session) (all []sessionImage) {
	for _, node := range sortedKeys(sessions) {
		ses := sessions[node]
		x := sessionImage{Node: node, Low: ses.low, Evicted: ses.evicted, Inc: ses.inc}
		for _, req := range sortedKeys(ses.results) {
			x.Results = append(x.Results, resultImage{req, ses.results[req]})
		}
		all = append(all, x)
	}
	return all
}

// restoreSessions is the inverse of sessionImages.
func restoreSessions(images []sessionImage, sessions map[dsm.NodeID]*session) {
	for _, x := range images {
		ses := &session{low: x.Low, results: make(map[uint64]result), evicted: x.Evicted, inc: x.Inc}
		for _, r := range x.Results {
			ses.results[r.Req] = r.Result
		}
		sessions[x.Node] = ses
	}
}

func (img *image) encode() ([]byte, error) { return wire.Marshal(img) }

// restore returns the state of an encoded image. b comes from another node, so it is checked.
func restore(b []byte) (*state, error) {
	var img image
	if err := wire.Unmarshal(b, &img); err != nil {
		return nil, err
	}
	if img.Format != imageFormat || len(img.Slots) != dsm.Slots {
		return nil, errs.E(errs.Corrupt, "restore snapshot", "format %d with %d slots: want %d with %d", img.Format, len(img.Slots), imageFormat, dsm.Slots)
	}
	s := newState()
	s.applied, s.nextIno = img.Applied, img.NextIno
	s.view = &dsm.View{Cluster: img.Cluster, Epoch: img.Epoch, Lease: img.Lease, Members: img.Members, Former: img.Former, Apart: img.Apart, Trust: img.Trust, Slots: [dsm.Slots]dsm.SlotHome(img.Slots)}
	if !s.view.RestoreOwn(img.Own) {
		return nil, errs.E(errs.Corrupt, "restore snapshot", "%d slots of single areas do not add up", len(img.Own))
	}
	for _, x := range img.Inodes {
		in := &inode{Inode: x.Inode, parent: x.Parent, temp: x.Temp, shrinks: x.Shrinks}
		if x.Inode.Kind == dsm.KindDir {
			in.entries = make(map[string]dsm.Ino)
		}
		if in.Kind != dsm.KindDir && len(x.Entries) > 0 {
			return nil, errs.E(errs.Corrupt, "restore snapshot", "inode %d has entries", in.Ino)
		}
		if !in.Spec.Valid() { // before the bytes that a file reserves are counted: a spec says how many copies there are of each
			return nil, errs.E(errs.Corrupt, "restore snapshot", "inode %d has no valid spec: %+v", in.Ino, in.Spec)
		}
		for _, e := range x.Entries {
			in.entries[e.Name] = e.Ino
		}
		for _, a := range x.Xattrs {
			if in.xattrs == nil {
				in.xattrs = make(map[string][]byte)
			}
			in.xattrs[a.Name] = a.Value
		}
		for _, n := range x.Claims {
			in.claim(n)
		}
		s.reserved = s.reserved.plus(in.all())
		if in.Kind == dsm.KindFile {
			if _, names := in.Spec.Placement.Node(); names && s.view.Placed(in.Area()) == 0 {
				s.unplaced[in.Ino] = struct{}{}
			}
		}
		s.inodes[in.Ino] = in
	}
	restoreSessions(img.Sessions, s.sessions)
	restoreSessions(img.Evicted, s.evicted)
	book, err := locks.ReadBook(img.Locks, img.LockTerm)
	if err != nil {
		return nil, errs.E(errs.Corrupt, "restore snapshot", "%w", err)
	}
	s.book = book
	if err := s.check(); err != nil {
		return nil, errs.E(errs.Corrupt, "restore snapshot", "%w", err)
	}
	return s, nil
}
