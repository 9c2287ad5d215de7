package catalog

import (
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

func benchmarkNodes(b *testing.B, count int) {
	nodes := cluster(b, count)
	lead := leaderOf(b, nodes)
	ctx := context.Background()
	var follower *node
	for _, n := range nodes {
		if n != lead {
			follower = n
		}
	}
	for _, x := range []struct {
		name string
		n    *node
	}{{"leader", lead}, {"follower", follower}} {
		if x.n == nil {
			continue
		}
		b.Run(x.name+"/read", func(b *testing.B) {
			for b.Loop() {
				if _, err := x.n.Getattr(ctx, dsm.RootIno); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(x.name+"/create", func(b *testing.B) {
			for b.Loop() {
				if _, err := x.n.Create(ctx, dsm.RootIno, fmt.Sprint(rand.Uint64()), file, false); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkNodes1(b *testing.B) { benchmarkNodes(b, 1) }
func BenchmarkNodes2(b *testing.B) { benchmarkNodes(b, 2) }
func BenchmarkNodes3(b *testing.B) { benchmarkNodes(b, 3) }
func BenchmarkNodes5(b *testing.B) { benchmarkNodes(b, 5) }

// BenchmarkIdle reports what part of a core a node of an idle cluster costs.
func BenchmarkIdle(b *testing.B) {
	for _, count := range []int{1, 3, 5} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			cluster(b, count)
			used := func() time.Duration {
				var u syscall.Rusage
				if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
					b.Fatal(err)
				}
				return time.Duration(u.Utime.Nano() + u.Stime.Nano())
			}
			const span = 5 * time.Second
			before := used()
			for b.Loop() {
				time.Sleep(span)
			}
			b.ReportMetric(100*float64(used()-before)/float64(b.Elapsed())/float64(count), "%core/node")
		})
	}
}
