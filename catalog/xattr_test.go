package catalog

import (
	"fmt"
	"strings"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

func TestXattr(t *testing.T) {
	m := newMachine(t)
	f := m.file("f")
	set := func(name string, size int, how dsm.XattrHow) setXattrOp {
		return setXattrOp{f.Ino, name, make([]byte, size), how}
	}
	m.fails(errs.NoAttr, removeXattrOp{f.Ino, "user.a"})
	m.fails(errs.NoAttr, set("user.a", 1, dsm.XattrReplace))
	m.must(nodeA, set("user.a", 1, dsm.XattrCreate))
	if !m.at(f.Ino).Ctime.After(f.Ctime) {
		t.Error("ctime stands still")
	}
	m.fails(errs.Exist, set("user.a", 2, dsm.XattrCreate))
	m.must(nodeA, set("user.a", 2, dsm.XattrReplace))
	m.must(nodeA, set("user.a", 0, dsm.XattrSet))
	if v, ok := m.inodes[f.Ino].xattrs["user.a"]; !ok || len(v) != 0 {
		t.Errorf("value %q", v)
	}
	m.must(nodeA, set("trusted.b", 1, dsm.XattrSet))
	m.must(nodeA, set("security.c", 1, dsm.XattrSet))
	m.must(nodeA, removeXattrOp{f.Ino, "trusted.b"})
	m.fails(errs.NoAttr, removeXattrOp{f.Ino, "trusted.b"})

	m.fails(errs.Unsupported, set("system.posix_acl_access", 1, dsm.XattrSet))
	m.fails(errs.Unsupported, set("colour", 1, dsm.XattrSet))
	m.fails(errs.Unsupported, set("user.", 1, dsm.XattrSet))
	m.fails(errs.Invalid, set("user.dsm.merge", 1, dsm.XattrSet))
	m.fails(errs.Invalid, set("user.x", 1, 9))
	m.fails(errs.NameTooLong, set("user."+strings.Repeat("x", 251), 1, dsm.XattrSet))
	m.must(nodeA, set("user."+strings.Repeat("x", 250), 1, dsm.XattrSet))
	m.fails(errs.TooLarge, set("user.b", 64<<10+1, dsm.XattrSet))
	m.fails(errs.NotExist, setXattrOp{99, "user.a", nil, dsm.XattrSet})
	m.fails(errs.NotExist, removeXattrOp{99, "user.a"})
	for i := range 3 {
		m.must(nodeA, set(fmt.Sprint("user.big", i), 64<<10, dsm.XattrSet))
	}
	m.fails(errs.NoSpace, set("user.big3", 64<<10, dsm.XattrSet), "262144")
	m.must(nodeA, set("user.big2", 64<<10, dsm.XattrSet)) // replacing takes no more
}
