package catalog

import (
	"fmt"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

func TestLinks(t *testing.T) {
	m := newMachine(t)
	root := dsm.RootIno
	f := m.must(nodeA, createOp{Dir: root, Name: "f", Kind: dsm.KindFile, Size: 100})
	d := m.mkdir(root, "d")
	if in := m.must(nodeA, linkOp{f.Ino, d, "g"}); in.Ino != f.Ino || in.Nlink != 2 {
		t.Errorf("linked %+v", in)
	}
	m.fails(errs.Exist, linkOp{f.Ino, d, "g"})
	m.fails(errs.Permission, linkOp{d, root, "e"})
	m.fails(errs.NotExist, linkOp{f.Ino + 100, root, "e"})
	m.fails(errs.NotDir, linkOp{f.Ino, f.Ino, "e"})
	m.fails(errs.Invalid, linkOp{f.Ino, root, "a/b"})
	m.fails(errs.Exist, renameOp{Dir: root, Name: "f", NewDir: d, NewName: "g", How: dsm.RenameNoReplace})
	m.must(nodeA, renameOp{Dir: root, Name: "f", NewDir: d, NewName: "g"}) // two names of one file: nothing
	if in := m.at(f.Ino); in.Nlink != 2 {
		t.Errorf("after a rename of one name to the other: %+v", in)
	}
	m.must(nodeA, unlinkOp{root, "f"})
	if in := m.at(f.Ino); in.Nlink != 1 || len(m.last.effects.removed) != 0 || m.reserved.full != dsm.PageSize {
		t.Errorf("with one name left: %+v, %+v reserved", in, m.reserved)
	}
	m.must(nodeA, unlinkOp{d, "g"})
	if len(m.last.effects.removed) != 1 || m.reserved.full != 0 {
		t.Errorf("without a name: removed %v, %+v reserved", m.last.effects.removed, m.reserved)
	}

	h := m.must(nodeA, createOp{Dir: root, Name: "h", Kind: dsm.KindFile, Claim: true})
	m.must(nodeA, unlinkOp{root, "h"})
	m.fails(errs.NotExist, linkOp{h.Ino, root, "back"}) // it is on its way out

	tmp := m.must(nodeA, createOp{Dir: root, Temp: true, Kind: dsm.KindFile, Claim: true})
	if tmp.Nlink != 0 {
		t.Errorf("a file without a name: %+v", tmp)
	}
	m.fails(errs.Invalid, createOp{Dir: root, Temp: true, Kind: dsm.KindFile})
	m.fails(errs.Invalid, createOp{Dir: root, Temp: true, Kind: dsm.KindDir, Claim: true})
	if in := m.must(nodeA, linkOp{tmp.Ino, root, "t"}); in.Nlink != 1 {
		t.Errorf("named %+v", in)
	}
	m.must(nodeA, unclaimOp{[]dsm.Ino{tmp.Ino}})
	m.at(tmp.Ino)
	gone := m.must(nodeA, createOp{Dir: root, Temp: true, Kind: dsm.KindFile, Claim: true})
	m.must(nodeA, unclaimOp{[]dsm.Ino{gone.Ino}})
	m.fails(errs.NotExist, claimOp{Ino: gone.Ino})
}

// TestLinksTakeMemory: a further name of a file is counted, until it is removed, whatever becomes of the others.
func TestLinksTakeMemory(t *testing.T) {
	const names = 16
	m := newSized(t, dsm.FileCost+names*linkCost)
	f := m.file("f")
	for i := range names {
		m.must(nodeA, linkOp{f.Ino, dsm.RootIno, fmt.Sprint(i)})
	}
	m.fails(errs.NoSpace, linkOp{f.Ino, dsm.RootIno, "more"})
	m.must(nodeA, unlinkOp{dsm.RootIno, "f"})
	m.must(nodeA, renameOp{Dir: dsm.RootIno, Name: "0", NewDir: dsm.RootIno, NewName: "g"})
	m.must(nodeA, linkOp{f.Ino, dsm.RootIno, "more"})
	m.fails(errs.NoSpace, linkOp{f.Ino, dsm.RootIno, "0"})
	m.must(nodeA, unlinkOp{dsm.RootIno, "g"})
	m.must(nodeA, unlinkOp{dsm.RootIno, "more"})
	for i := range names - 1 {
		m.must(nodeA, unlinkOp{dsm.RootIno, fmt.Sprint(i + 1)})
	}
	if m.reserved != (reservation{}) {
		t.Errorf("nothing is left, and %+v is reserved", m.reserved)
	}
}
