package pages

import (
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

func TestStoreKeepsPagesWithData(t *testing.T) {
	var s Store
	defer s.Close()
	s.Page(3)[5] = 1
	if s.Page(4); s.Bytes() != 2*dsm.PageSize {
		t.Errorf("two pages take %d bytes", s.Bytes())
	}
	s.Settle(3)
	s.Settle(4)
	if s.Look(3)[5] != 1 || s.Bytes() != dsm.PageSize {
		t.Errorf("byte %d, %d bytes in all: a page without data takes memory, or one with data was dropped", s.Look(3)[5], s.Bytes())
	}
	s.Drop(3)
	if s.Page(9)[5] != 0 || s.Page(3)[5] != 0 {
		t.Error("a page that was not kept has data")
	}
}
