package control

import "testing"

func TestNumbers(t *testing.T) {
	for _, c := range []Node{{rootDir, 0}, {areasDir, 1}, {areaFile + 3, 1<<56 - 1}} {
		if got, ok := Of(c.ID()); !ok || got != c {
			t.Errorf("%+v became %+v", c, got)
		}
	}
	if _, ok := Of(1<<62 + 5); ok {
		t.Error("an inode of the catalog taken for a control file")
	}
	if topFile+kind(len(topFiles)) > areaFile || areaFile+kind(len(areaFiles)) > kindEnd {
		t.Error("too many control files")
	}
}
