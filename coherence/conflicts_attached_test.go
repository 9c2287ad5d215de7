package coherence

import (
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestConflictIsKeptWhereProgramsStore: likewise, where programs have attached the memory, and may be storing to it while it is compared.
func TestConflictIsKeptWhereProgramsStore(t *testing.T) {
	parted(t, dsm.Inode{}, func(p *parting) {
		p.n.area.step(func() { p.n.area.countAttachedLocked(+1) })
		p.calm()
		p.meet("1111....5.6.", "22..33..5..7")
		p.wants("221133bb5c67", "0: 22, not 11")
		p.n.area.step(func() { p.n.area.countAttachedLocked(-1) })
	})
}
