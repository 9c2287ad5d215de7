package catalog

import (
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

func TestSetSpec(t *testing.T) {
	m := newMachine(t)
	f := m.file("f")
	set := func(key, value string) setSpecOp { return setSpecOp{f.Ino, key, value} }
	gen := f.Gen
	for _, x := range []struct {
		key, value string
		want       func(*dsm.Spec)
	}{
		{"mode", "relaxed", func(*dsm.Spec) {}},
		{"merge", "sum", func(s *dsm.Spec) { s.Merge = dsm.MergeSum }},
		{"apply", "sync", func(s *dsm.Spec) { s.Apply = dsm.ApplySync }},
		{"interval", "250", func(s *dsm.Spec) { s.Interval = 250 * time.Millisecond }},
		{"interval", "2s", func(s *dsm.Spec) { s.Interval = 2 * time.Second }},
		{"interval", "0", func(s *dsm.Spec) { s.Interval = 0 }},
		{"interval", "1h", func(s *dsm.Spec) { s.Interval = time.Hour }},
		{"dtype", "f32", func(s *dsm.Spec) { s.DType = dsm.DTypeF32 }},
	} {
		want := m.at(f.Ino).Spec
		x.want(&want)
		changes := want != m.at(f.Ino).Spec
		in := m.must(nodeA, set(x.key, x.value))
		if in.Spec != want {
			t.Errorf("%s=%s: %+v", x.key, x.value, in.Spec)
		}
		if (in.Gen == dsm.Generation(m.index)) != changes || (len(m.last.effects.changed) == 1) != changes || in.Gen < gen {
			t.Errorf("%s=%s: generation %d at %d, effects %v", x.key, x.value, in.Gen, m.index, m.last.effects)
		}
		gen = in.Gen
		if again := m.must(nodeA, set(x.key, x.value)); again != in {
			t.Errorf("%s=%s again: %+v", x.key, x.value, again)
		}
	}
	m.fails(errs.Invalid, set("colour", "red"), "colour", "mode merge dtype apply interval residency access locks")
	m.fails(errs.Invalid, set("mode", "psychic"), "psychic", "relaxed")
	m.fails(errs.Invalid, set("merge", "best"), "last sum mean min max")
	m.fails(errs.Invalid, set("dtype", "f31"), "f31", "bf16")
	m.fails(errs.Invalid, set("apply", "never"), "arrival")
	m.fails(errs.Invalid, set("residency", "some"), "full demand")
	m.fails(errs.Invalid, set("access", "shut"), "cached direct")
	m.must(nodeA, set("residency", "demand"))
	m.fails(errs.Invalid, set("access", "direct"), "residency full")
	m.must(nodeA, set("residency", "full"))
	m.must(nodeA, set("access", "direct"))
	m.fails(errs.Invalid, set("residency", "demand"), "residency full")
	for _, v := range []string{"", "-1", "-1ms", "soon", "2h", "3600001", "99999999999999999999"} {
		m.fails(errs.Invalid, set("interval", v), "250ms")
	}
	l := m.must(nodeA, createOp{Dir: dsm.RootIno, Name: "l", Kind: dsm.KindSymlink, Target: "f"})
	m.fails(errs.Unsupported, setSpecOp{l.Ino, "merge", "sum"})
	m.fails(errs.NotExist, setSpecOp{99, "merge", "sum"})
}

// There is one mode so far; the rule is one for those to come, too.
func TestModeIsFixedWhileNotEmpty(t *testing.T) {
	m := newMachine(t)
	f := m.file("f")
	m.inodes[f.Ino].Spec.Mode = dsm.ModeRelaxed + 1
	m.inodes[f.Ino].Size, m.reserved.full = 10, dsm.PageSize
	s := m.state
	if _, err := (setSpecOp{f.Ino, "mode", "relaxed"}).apply(s, step{index: 9}); !errs.Is(err, errs.Busy) {
		t.Errorf("the mode of a file of 10 bytes: %v", err)
	}
	m.inodes[f.Ino].Size, m.reserved.full = 0, 0
	if in, err := (setSpecOp{f.Ino, "mode", "relaxed"}).apply(s, step{index: 9}); err != nil || in.Spec.Mode != dsm.ModeRelaxed {
		t.Errorf("the mode of an empty file: %v", err)
	}
}

func TestExplicitType(t *testing.T) {
	m := newMachine(t)
	f := m.file("f")
	size := func(n int64) setAttrOp { return setAttrOp{f.Ino, dsm.SetAttr{Size: &n}} }
	m.must(nodeA, size(10))
	m.fails(errs.Invalid, setSpecOp{f.Ino, "dtype", "f32"}, "10 bytes", "4 bytes", "f32")
	m.must(nodeA, size(12))
	in := m.must(nodeA, setSpecOp{f.Ino, "dtype", "f32"})
	if in.Layout != (dsm.Layout{DType: dsm.DTypeF32}) || in.Gen != dsm.Generation(m.index) {
		t.Errorf("typed: %+v", in)
	}
	m.fails(errs.Invalid, size(13), "13", "4")
	m.must(nodeA, setAttrOp{f.Ino, dsm.SetAttr{GrowTo: ptr(int64(13))}}) // a writer may stop in an element
	m.must(nodeA, size(16))

	// What the header says does not count against the user's word.
	if in := m.must(nodeA, setLayoutOp{f.Area(), dsm.Layout{DType: dsm.DTypeF64, DataOffset: 8}}); in.Layout.DType != dsm.DTypeF32 {
		t.Errorf("layout %v", in.Layout)
	}
	if in := m.must(nodeA, size(0)); in.Layout != (dsm.Layout{DType: dsm.DTypeF32}) {
		t.Errorf("emptied: layout %v", in.Layout)
	}
	if in := m.must(nodeA, setSpecOp{f.Ino, "dtype", "auto"}); in.Layout != (dsm.Layout{}) {
		t.Errorf("auto: layout %v", in.Layout)
	}
}

func TestLayoutFromHeader(t *testing.T) {
	m := newMachine(t)
	f := m.file("f")
	size := func(n int64) setAttrOp { return setAttrOp{f.Ino, dsm.SetAttr{Size: &n}} }
	m.must(nodeA, size(1000))
	l := dsm.Layout{DType: dsm.DTypeF32, DataOffset: 128}
	in := m.must(nodeA, setLayoutOp{f.Area(), l})
	if in.Layout != l || in.Gen != dsm.Generation(m.index) || len(m.last.effects.changed) != 1 {
		t.Errorf("%+v", in)
	}
	if again := m.must(nodeA, setLayoutOp{f.Area(), l}); again != in || len(m.last.effects.changed) != 0 {
		t.Errorf("again: %+v", again)
	}
	if in := m.must(nodeA, size(999)); in.Layout != l { // no type was named, any size goes
		t.Errorf("shrunk: %+v", in)
	}
	if in := m.must(nodeA, size(128)); in.Layout != l {
		t.Errorf("shrunk to the header: %+v", in)
	}
	if in := m.must(nodeA, size(127)); in.Layout != (dsm.Layout{}) {
		t.Errorf("truncated in the header: %+v", in)
	}
	if in := m.must(nodeA, setLayoutOp{f.Area(), l}); in.Layout != (dsm.Layout{}) {
		t.Errorf("a header past the end: %+v", in)
	}
	m.must(nodeA, size(1000))
	m.must(nodeA, setLayoutOp{f.Area(), dsm.Layout{DType: dsm.DTypeI64}})
	if in := m.must(nodeA, size(0)); in.Layout != (dsm.Layout{}) {
		t.Errorf("emptied: %+v", in)
	}
	m.fails(errs.NotExist, setLayoutOp{99, l})
	m.fails(errs.Invalid, setLayoutOp{dsm.AreaID(dsm.RootIno), l})
	m.fails(errs.Invalid, setLayoutOp{f.Area(), dsm.Layout{DType: 200}})
	m.fails(errs.Invalid, setLayoutOp{f.Area(), dsm.Layout{DataOffset: -1}})
}

func TestRuleGoesByWhatTheHeaderTells(t *testing.T) {
	m := newMachine(t)
	f := m.file("f")
	m.must(nodeA, setAttrOp{f.Ino, dsm.SetAttr{Size: ptr(int64(1000))}})
	pairs := dsm.Layout{DType: dsm.DTypeF64, DataOffset: 128, Complex: true}
	m.must(nodeA, setLayoutOp{f.Area(), pairs})
	for _, rule := range []string{"min", "max"} {
		m.fails(errs.Invalid, setSpecOp{f.Ino, "merge", rule}, rule, "complex numbers have no order")
	}
	for _, rule := range []string{"mean", "sum"} {
		m.must(nodeA, setSpecOp{f.Ino, "merge", rule})
	}
	if in := m.at(f.Ino); in.Layout != pairs {
		t.Errorf("layout %+v", in.Layout)
	}
	m.must(nodeA, setSpecOp{f.Ino, "dtype", "f64"}) // the user's word counts
	m.must(nodeA, setSpecOp{f.Ino, "merge", "max"})

	g := m.file("g")
	m.must(nodeA, setSpecOp{g.Ino, "merge", "max"})
	m.must(nodeA, setAttrOp{g.Ino, dsm.SetAttr{Size: ptr(int64(1000))}})
	m.must(nodeA, setLayoutOp{g.Area(), pairs}) // the header came after the rule: no store is published until the rule fits
	m.must(nodeA, setSpecOp{g.Ino, "interval", "0s"})
	m.must(nodeA, setSpecOp{g.Ino, "merge", "sum"})
	m.fails(errs.Invalid, setSpecOp{g.Ino, "merge", "max"})

	opaque, err := dsm.LayoutOf([]dsm.Part{{From: 8, To: 16, Opaque: true}})
	if err != nil {
		t.Fatal(err)
	}
	h := m.file("h")
	m.must(nodeA, setAttrOp{h.Ino, dsm.SetAttr{Size: ptr(int64(16))}})
	m.must(nodeA, setLayoutOp{h.Area(), opaque})
	m.fails(errs.Invalid, setSpecOp{h.Ino, "merge", "sum"}, "from byte 8 on")
	m.fails(errs.Invalid, setLayoutOp{h.Area(), dsm.Layout{DType: dsm.DTypeI64, Complex: true}})
}

func TestSpecIsInherited(t *testing.T) {
	m := newMachine(t)
	d := m.mkdir(dsm.RootIno, "d")
	in := m.must(nodeA, setSpecOp{d, "dtype", "i64"})
	if in.Layout != (dsm.Layout{}) || len(m.last.effects.changed) != 0 {
		t.Errorf("directory: %+v", in)
	}
	m.must(nodeA, setSpecOp{d, "merge", "sum"})
	sub := m.must(nodeA, createOp{Dir: d, Name: "s", Kind: dsm.KindDir})
	f := m.must(nodeA, createOp{Dir: sub.Ino, Name: "f", Kind: dsm.KindFile})
	if f.Spec != m.at(d).Spec || f.Layout != (dsm.Layout{DType: dsm.DTypeI64}) {
		t.Errorf("file: %+v", f)
	}
	if g := m.file("g"); g.Spec != m.at(dsm.RootIno).Spec {
		t.Errorf("elsewhere: %+v", g)
	}
}
