package pages

import (
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestPauseEndsWithItsReason: what was paused is handed out when nothing may be paused any more.
func TestPauseEndsWithItsReason(t *testing.T) {
	for name, end := range map[string]func(s ledgerScript){
		"a sync":                 func(s ledgerScript) { s.SetPaused(false) },
		"no writer any more":     func(s ledgerScript) { s.SetWriters(false) },
		"an attached program":    func(s ledgerScript) { s.SetShared(true) },
		"a write past the cache": func(s ledgerScript) { s.WroteDirect(dsm.PageSize, []byte{9}) },
		"the page leaves":        func(s ledgerScript) { s.Drop(0, dsm.Range(1, 2)) },
		"the page is truncated":  func(s ledgerScript) { s.resize(dsm.PageSize) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newLedgerScript(t, 4*dsm.PageSize)
			s.SetWriters(true)
			s.SetPaused(true)
			s.read(1)
			s.update(1, 0)
			if n, ok := s.NextNotice(); ok || !s.Idle() {
				t.Errorf("notice %+v is not paused", n)
			}
			end(s)
			if problem := s.Problem(); problem != "" {
				t.Error(problem)
			}
			if _, ok := s.NextNotice(); !ok {
				t.Error("the notice is still paused")
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

// TestToldWhileAnUpdateIsPaused: a write(2) past the page cache is answered when the page cache does not have the old bytes any more. It
// does not wait for a later update, which may be paused for as long as the program makes no sync call.
func TestToldWhileAnUpdateIsPaused(t *testing.T) {
	s := newLedgerScript(t, 4*dsm.PageSize)
	s.SetWriters(true)
	s.SetPaused(true)
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
		t.Errorf("notice %+v is not paused", n)
	}
	if !s.Told(dsm.PageSize, 1) {
		t.Error("the write waits for an update that is paused")
	}
}
