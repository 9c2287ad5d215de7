package uffd

import (
	"testing"
	"time"
)

// benchScan tracks 256 MiB that is all there and reports the time of a scan after
// dirty of its pages were stored to, spread evenly; storing is not in it.
func benchScan(b *testing.B, mode Mode, dirty uint64) {
	if _, err := Choose(Probe(), mode.String()); err != nil {
		b.Skip(err)
	}
	const pages = 65536
	a, c := newProgram(b, pages)
	c.do("store", c.addr, a.size, pageSize, 1)
	r := a.trackAt(c, mode, c.addr, a.size, 0)
	var s Stores
	var storing, scanning time.Duration
	for b.Loop() {
		start := time.Now()
		if dirty > 0 {
			c.do("store", c.addr, a.size, pages/dirty*pageSize, 1)
		}
		stored := time.Now()
		s.Reset()
		if err := r.Scan(&s); err != nil {
			b.Fatal(err)
		}
		scanning += time.Since(stored)
		storing += stored.Sub(start)
		n := int64(0)
		for _, w := range s.Written {
			n += w.Len / int64(pageSize)
		}
		if n != int64(dirty) || len(s.Suspect) > 0 {
			b.Fatal(n, "pages, want", dirty)
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(scanning.Microseconds())/float64(b.N), "us/scan")
	if dirty > 0 {
		b.ReportMetric(float64(storing.Nanoseconds())/float64(b.N)/float64(dirty), "ns/store")
	}
}

func BenchmarkScanClean(b *testing.B)     { benchScan(b, Async, 0) }
func BenchmarkScan4096(b *testing.B)      { benchScan(b, Async, 4096) }
func BenchmarkScanAll(b *testing.B)       { benchScan(b, Async, 65536) }
func BenchmarkScanSyncClean(b *testing.B) { benchScan(b, Sync, 0) }
func BenchmarkScanSync4096(b *testing.B)  { benchScan(b, Sync, 4096) }

func BenchmarkArm(b *testing.B) {
	a, c := newProgram(b, 65536)
	c.do("store", c.addr, a.size, pageSize, 1)
	r := a.trackAt(c, Async, c.addr, a.size, 0)
	var disarming time.Duration
	for b.Loop() {
		start := time.Now()
		if err := r.Disarm(); err != nil {
			b.Fatal(err)
		}
		disarming += time.Since(start)
		if err := r.Arm(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(disarming.Microseconds())/float64(b.N), "us/Disarm")
}
