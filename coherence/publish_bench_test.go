package coherence

import (
	"fmt"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// BenchmarkPublish publishes an extent from one node to another, with its home at either, and says what a page of it takes: diff, merge,
// and the push into the other's memory, without a network and a kernel. Of each page all bytes change (dense), or eight.
func BenchmarkPublish(b *testing.B) {
	for _, home := range []string{"writer", "reader"} {
		for _, changed := range []int{8, dsm.PageSize} {
			b.Run(fmt.Sprintf("home=%s/changed=%d", home, changed), func(b *testing.B) {
				t := &testing.T{}
				s := newHomed(t, 2, dsm.Inode{Size: dsm.ExtentSize})
				b.Cleanup(s.close)
				writer, reader := s.nodes[0], s.nodes[1]
				if home == "reader" {
					writer, reader = reader, writer
				}
				writer.open(true)
				reader.open(false)
				s.drain()
				a, all := writer.area, dsm.AllPages
				k := byte(0)
				b.ResetTimer()
				for range b.N {
					k++
					for i := range all.All() {
						p := a.mu.mem.Working(page(0, i))
						for j := range p[:changed] {
							p[j] = k
						}
					}
					a.step(func() {
						x := a.extentLocked(0)
						a.dirtyLocked(0, x, all)
						a.requestPublishLocked()
					})
					s.drain()
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*dsm.ExtentPages), "ns/page")
				if got := reader.area.mu.mem.Working(7)[0]; got != k {
					b.Fatalf("the reader has %d, want %d", got, k)
				}
			})
		}
	}
}
