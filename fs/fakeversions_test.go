package fs

import (
	"bytes"
	"context"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// fakeVersion is a version of an area.
type fakeVersion struct {
	VersionInfo
	data []byte
	pins int
}

// fakeRetained is how many versions an area keeps that nobody has pinned.
const fakeRetained = 2

// version makes a version of bytes, as a publish of another node does.
func (a *fakeArea) version(n dsm.Version, data []byte) {
	a.update(func() {
		a.versions = append(a.versions, &fakeVersion{VersionInfo: VersionInfo{n, int64(len(data)), 0xb}, data: bytes.Clone(data)})
		a.dropLocked()
	})
}

func (a *fakeArea) dropLocked() {
	kept := len(a.versions) - fakeRetained
	i := -1
	a.versions = slices.DeleteFunc(a.versions, func(v *fakeVersion) bool {
		i++
		return i < kept && v.pins == 0
	})
}

// pins returns how many pins there are.
func (a *fakeArea) pins() (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, v := range a.versions {
		n += v.pins
	}
	return n
}

func (a *fakeArea) Versions() (list []VersionInfo) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, v := range a.versions {
		list = append(list, v.VersionInfo)
	}
	return list
}

func (a *fakeArea) findLocked(n dsm.Version) *fakeVersion {
	for _, v := range a.versions {
		if v.Version == n {
			return v
		}
	}
	return nil
}

func (a *fakeArea) PinVersion(n dsm.Version) (info VersionInfo, err error) {
	if a.full.Load() {
		return info, errs.E(errs.NoSpace, "pin", "")
	}
	return a.PinToRead(context.Background(), n)
}

func (a *fakeArea) PinToRead(_ context.Context, n dsm.Version) (info VersionInfo, err error) {
	a.update(func() {
		if len(a.versions) == 0 {
			err = errs.E(errs.Unavailable, "pin", "")
			return
		}
		v := a.versions[len(a.versions)-1]
		if n != 0 {
			v = a.findLocked(n)
		}
		if v == nil {
			err = errs.E(errs.Dropped, "pin", "the oldest is %d", a.versions[0].Version)
			return
		}
		v.pins++
		info = v.VersionInfo
	})
	return info, err
}

func (a *fakeArea) PauseVersion(n dsm.Version) { a.UnpinVersion(n) }

func (a *fakeArea) GoesOnAt() dsm.Version { return a.goesOn }

func (a *fakeArea) UnpinVersion(n dsm.Version) {
	a.update(func() {
		a.findLocked(n).pins--
		a.dropLocked()
	})
}

func (a *fakeArea) ReadVersion(n dsm.Version, p []byte, off int64) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	v := a.findLocked(n)
	if v == nil || v.pins == 0 {
		panic("a version is read that is not pinned")
	}
	return copy(p, v.data[min(off, int64(len(v.data))):]), nil
}

func (p *fakeAreas) Reclaimed(context.Context, dsm.AreaID) error { return nil }

func (p *fakeAreas) Owner(dsm.AreaID) dsm.NodeID { return dsm.NodeID(p.owner.Load()) }

func (p *fakeAreas) Transfer(_ context.Context, _ dsm.AreaID, to dsm.NodeID) error {
	p.owner.Store(uint64(to))
	return nil
}
