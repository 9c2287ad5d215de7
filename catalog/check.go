package catalog

import (
	"fmt"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// check returns an error if an invariant of the state is violated. It looks at everything, so it is
// for restored snapshots and for tests.
func (s *state) check() error {
	if s.view.Cluster == 0 {
		return nil
	}
	root := s.inodes[dsm.RootIno]
	if root == nil || root.Kind != dsm.KindDir || root.parent != dsm.RootIno {
		return fmt.Errorf("no root directory")
	}
	names, entries := make(map[dsm.Ino]int), 0
	subdirs := make(map[dsm.Ino]uint32)
	for _, d := range s.inodes {
		for name, ino := range d.entries {
			in := s.inodes[ino]
			if in == nil || checkName(name) != nil {
				return fmt.Errorf("entry %q of directory %d names inode %d", name, d.Ino, ino)
			}
			entries++
			if names[ino]++; names[ino] > 1 && in.Kind == dsm.KindDir || ino == dsm.RootIno {
				return fmt.Errorf("directory %d has more than one name", ino)
			}
			if in.Kind == dsm.KindDir {
				subdirs[d.Ino]++
				if in.parent != d.Ino {
					return fmt.Errorf("directory %d in %d has parent %d", ino, d.Ino, in.parent)
				}
			}
		}
	}
	if n := s.below(root); n != entries {
		return fmt.Errorf("%d entries are below the root, there are %d", n, entries)
	}
	var reserved reservation
	for ino, in := range s.inodes {
		if err := s.checkInode(in, names[ino], subdirs[ino]); err != nil {
			return fmt.Errorf("inode %d: %w", ino, err)
		}
		reserved = reserved.plus(in.all())
	}
	if reserved != s.reserved {
		return fmt.Errorf("%+v bytes are reserved, the files add up to %+v", s.reserved, reserved)
	}
	if err := s.book.Check(); err != nil {
		return err
	}
	return s.checkView()
}

// below counts the entries below d. Every entry must name an inode that exists.
func (s *state) below(d *inode) int {
	n := 0
	for todo := []*inode{d}; len(todo) > 0; {
		d := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, ino := range d.entries {
			todo = append(todo, s.inodes[ino])
		}
		n += len(d.entries)
	}
	return n
}

func (s *state) checkInode(in *inode, names int, subdirs uint32) error {
	if in.Kind < dsm.KindFile || in.Kind > dsm.KindSymlink || !in.Spec.Valid() || in.Size < 0 || in.Size > dsm.MaxAreaSize || in.Ino >= s.nextIno || s.inodes[in.Ino] != in ||
		in.Layout.Check() != nil {
		return fmt.Errorf("out of range: %+v", in.Inode)
	}
	if !in.Spec.Detours.None() && in.Kind != dsm.KindFile {
		return fmt.Errorf("detours of no file: %+v", in.Inode)
	}
	links := uint32(names)
	if in.Kind == dsm.KindDir {
		links = 2 + subdirs
	}
	switch {
	case in.Ino == dsm.RootIno && names == 0 && in.Nlink == links:
	case names > 0 && in.Nlink == links && !in.temp:
	case names == 0 && in.Nlink == 0 && len(in.claims) > 0 && len(in.entries) == 0:
	default:
		return fmt.Errorf("%d names, %d links (want %d), %d claims, %d entries", names, in.Nlink, links, len(in.claims), len(in.entries))
	}
	if err := in.checkShrinks(); err != nil {
		return err
	}
	for n := range in.claims {
		if _, ok := s.view.Member(n); !ok {
			return fmt.Errorf("claimed by %s, which is no member", n)
		}
	}
	return nil
}

func (s *state) checkView() error {
	for i, m := range s.view.Members {
		if i > 0 && s.view.Members[i-1].ID >= m.ID {
			return fmt.Errorf("members out of order at %s", m.ID)
		}
		if m.Budget <= 0 || m.Budget > maxBudget {
			return fmt.Errorf("member %s offers %d bytes", m.ID, m.Budget)
		}
	}
	if !slices.Equal(s.view.Apart, linksIn(s.view, s.view.Apart)) {
		return fmt.Errorf("links that are cut: %v", s.view.Apart)
	}
	for i, h := range s.view.Rows() {
		if err := s.checkBackups(i, *h); err != nil {
			return err
		}
		_, primary := s.view.Member(h.Primary)
		_, source := s.view.Member(h.Source)
		if !primary || h.Source != 0 && !source || h.Source == h.Primary || h.Epoch > s.view.Epoch {
			return fmt.Errorf("slot %d: %+v in epoch %d", i, h, s.view.Epoch)
		}
	}
	for ino := range s.unplaced {
		if in := s.inodes[ino]; in == nil || s.view.Placed(in.Area()) != 0 {
			return fmt.Errorf("inode %d waits for a slot of its own", ino)
		}
	}
	if n := stranded(s.view); len(n) > 0 && s.reserved.room(s.view) > roomNone {
		return fmt.Errorf("members that leave keep slots that others have memory for: %v", n)
	}
	return nil
}
