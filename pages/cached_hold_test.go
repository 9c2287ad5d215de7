package pages

import (
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestHoldEndsWithItsReason: what was on hold is handed out when nothing may be on hold any more.
func TestHoldEndsWithItsReason(t *testing.T) {
	for name, end := range map[string]func(s ledgerScript){
		"a sync":                 func(s ledgerScript) { s.SetHold(false) },
		"no writer any more":     func(s ledgerScript) { s.SetWriters(false) },
		"an attached program":    func(s ledgerScript) { s.SetShared(true) },
		"a write past the cache": func(s ledgerScript) { s.WroteDirect(dsm.PageSize, []byte{9}) },
		"the page leaves":        func(s ledgerScript) { s.Drop(0, dsm.Range(1, 2)) },
		"the page is cut off":    func(s ledgerScript) { s.resize(dsm.PageSize) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newLedgerScript(t, 4*dsm.PageSize)
			s.SetWriters(true)
			s.SetHold(true)
			s.read(1)
			s.update(1, 0)
			if n, ok := s.NextNotice(); ok || !s.Idle() {
				t.Errorf("notice %+v is not on hold", n)
			}
			end(s)
			if problem := s.Problem(); problem != "" {
				t.Error(problem)
			}
			if _, ok := s.NextNotice(); !ok {
				t.Error("the notice is still on hold")
			}
		})
	}
}

// TestWriteDirectLeavesNoState: the ledger gets no state of an extent of which the page cache has nothing.
func TestWriteDirectLeavesNoState(t *testing.T) {
	s := newLedgerScript(t, 4*dsm.PageSize)
	s.WroteDirect(dsm.PageSize, []byte{9})
	if len(s.extents) != 0 {
		t.Errorf("there is state of %d extents", len(s.extents))
	}
}

// TestToldWhileAnUpdateIsOnHold: a write(2) past the page cache is answered when the page cache does not have the old bytes any more. It
// does not wait for a later update, which may be on hold for as long as the program makes no sync call.
func TestToldWhileAnUpdateIsOnHold(t *testing.T) {
	s := newLedgerScript(t, 4*dsm.PageSize)
	s.SetWriters(true)
	s.SetHold(true)
	s.read(1)
	s.WroteDirect(dsm.PageSize, []byte{9})
	n, ok := s.NextNotice()
	if !ok || s.Told(dsm.PageSize, 1) {
		t.Fatal("the write is answered before the page cache has dropped the page")
	}
	s.read(1)
	s.update(1, 0)
	s.Done(n)
	if n, ok := s.NextNotice(); ok {
		t.Errorf("notice %+v is not on hold", n)
	}
	if !s.Told(dsm.PageSize, 1) {
		t.Error("the write waits for an update that is on hold")
	}
}
