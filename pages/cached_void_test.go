package pages

import (
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

// TestStoresOfBeforeAShrink: a program has stored to a page that another node truncates, and the area grows again before the kernel says so. The stores past the end
// do not count, until the kernel does not have the page of before the shrink any more. They are refused when a call of the program has been answered since: it may
// have stored after that.
func TestStoresOfBeforeAShrink(t *testing.T) {
	const size, end, stored = 2 * dsm.PageSize, dsm.PageSize + 100, 200 // byte 200 of page 1
	var early Notice
	for name, c := range map[string]struct {
		before  func(s ledgerScript) // the shrink
		between func(s ledgerScript) // the growth and the WRITE
		took    byte
		refused bool
	}{
		"at once":                                  {},
		"a READ came":                              {between: func(s ledgerScript) { s.read(1) }, took: 8},
		"the kernel was told":                      {between: func(s ledgerScript) { s.Done(s.notice(NoticeInvalidate, 1, 2)) }, took: 8},
		"the kernel was being told of an update":   {before: func(s ledgerScript) { s.update(1, 7); early = s.notice(NoticeInvalidate, 1, 2); s.read(1) }, between: func(s ledgerScript) { s.Done(early) }},
		"a write(2) of the program before":         {between: func(s ledgerScript) { s.Wrote(s.k, dsm.PageSize, make([]byte, 300), false) }},
		"a write(2) of the rest of the page":       {between: func(s ledgerScript) { s.Wrote(s.k, dsm.PageSize, make([]byte, dsm.PageSize), false) }, took: 8},
		"a write(2) was answered":                  {between: func(s ledgerScript) { s.Answered(dsm.PageSize+stored, 1) }, refused: true},
		"a write(2) before the end was answered":   {between: func(s ledgerScript) { s.Answered(dsm.PageSize, 100) }},
		"the program has made it longer":           {between: func(s ledgerScript) { s.KernelShrinks(size) }, refused: true},
		"and then it was made shorter again":       {between: func(s ledgerScript) { s.KernelShrinks(size); s.resize(end); s.resize(size) }},
		"the program has made it shorter as well":  {between: func(s ledgerScript) { s.KernelShrinks(end) }, took: 8},
		"the program has made it shorter, to more": {between: func(s ledgerScript) { s.KernelShrinks(end + 50) }, took: 8},
		"no shrink": {before: func(s ledgerScript) { s.resize(size + 1) }, took: 8},
	} {
		t.Run(name, func(t *testing.T) {
			s := newLedgerScript(t, size)
			s.SetWriters(true)
			s.read(1)
			if c.before != nil {
				c.before(s)
			}
			if s.area.Size() == size {
				s.resize(end)
				s.resize(size)
			}
			if c.between != nil {
				c.between(s)
			}
			k := make([]byte, dsm.PageSize)
			k[50], k[stored] = 8, 8
			if s.area.Working(1)[7] != 0 {
				k[7] = s.area.Working(1)[7]
			}
			if _, _, ok := s.Wrote(s.k, dsm.PageSize, k, true); ok == c.refused {
				t.Errorf("refused: %v", !ok)
			}
			want := pagetest.PageOf(0)
			want[7], want[50], want[stored] = k[7], 8, c.took
			pagetest.WantPage(t, "the working copy", s.area.Working(1), want)
			if bad := s.Problem(); bad != "" {
				t.Error(bad)
			}
			for range 3 {
				for n, ok := s.NextNotice(); ok; n, ok = s.NextNotice() {
					s.Done(n)
				}
			}
			if !s.Truncated() || !s.Idle() {
				t.Error("something is void still")
			}
		})
	}
}
