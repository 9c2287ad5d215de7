package transport

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// BenchmarkPingPong sends 4 KiB there and back: over a bare TCP connection, and
// over the data lane.
func BenchmarkPingPong(b *testing.B) {
	b.Run("bare", func(b *testing.B) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		defer l.Close()
		done := make(chan struct{})
		go func() {
			defer close(done)
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			buf := make([]byte, 4096)
			for {
				if _, err := io.ReadFull(c, buf); err != nil {
					return
				}
				if _, err := c.Write(buf); err != nil {
					return
				}
			}
		}()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		buf := make([]byte, 4096)
		for b.Loop() {
			if _, err := c.Write(buf); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(c, buf); err != nil {
				b.Fatal(err)
			}
		}
		c.Close()
		<-done
	})
	for _, name := range []string{"lane", "encrypted"} {
		b.Run(name, func(b *testing.B) {
			start := newNode
			r := newRealm(b)
			if name == "encrypted" {
				start = func(_ testing.TB, self dsm.NodeID, change func(*Config)) *node { return r.member(self, change) }
			}
			var bn *node
			bn = start(b, 2, func(c *Config) {
				c.Log = slog.New(slog.DiscardHandler)
				c.OnFrame = func(from dsm.NodeID, f *wire.Frame) error {
					bn.Send(from, f.Msg, [][]byte{bytes.Clone(f.Payload)}, false)
					return nil
				}
			})
			// Each answer sends the next question: as bare, with no goroutine between.
			var a *node
			left, done := 0, make(chan struct{})
			payload := [][]byte{make([]byte, 4096)}
			m := &wire.Push{Pages: dsm.PageSet{1}}
			a = start(b, 1, func(c *Config) {
				c.Log = slog.New(slog.DiscardHandler)
				c.OnFrame = func(dsm.NodeID, *wire.Frame) error {
					if left--; left < 0 {
						close(done)
					} else {
						a.Send(2, m, payload, false)
					}
					return nil
				}
			})
			know(a, bn)
			for !a.Stats().Peers[2].Connected || !bn.Stats().Peers[1].Connected {
				runtime.Gosched()
			}
			left = b.N
			used := processorTime()
			b.ResetTimer()
			a.Send(2, m, payload, false)
			<-done
			b.ReportMetric(float64(processorTime()-used)/float64(b.N)/1e3, "cpu-us/op")
		})
	}
}

// BenchmarkThroughput sends frames of 1 MiB, sixteen under way.
func BenchmarkThroughput(b *testing.B) {
	const size, window = 1 << 20, 16
	b.Run("bare", func(b *testing.B) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		defer l.Close()
		got := make(chan struct{})
		go func() {
			defer close(got)
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			buf := make([]byte, size)
			for {
				if _, err := io.ReadFull(c, buf); err != nil {
					return
				}
			}
		}()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		buf := make([]byte, size)
		b.SetBytes(size)
		for b.Loop() {
			if _, err := c.Write(buf); err != nil {
				b.Fatal(err)
			}
		}
		c.Close()
		<-got
	})
	for _, name := range []string{"lane", "encrypted"} {
		b.Run(name, func(b *testing.B) {
			room := make(chan struct{}, window)
			r := newRealm(b)
			take := func(c *Config) {
				c.OnFrame = func(dsm.NodeID, *wire.Frame) error { <-room; return nil }
				c.Log = slog.New(slog.DiscardHandler)
			}
			var a *node
			if name == "encrypted" {
				r.member(2, take)
				a = r.member(1, take)
			} else {
				bn := newNode(b, 2, take)
				a = newNode(b, 1, nil)
				know(a, bn)
			}
			payload := [][]byte{make([]byte, size)}
			b.SetBytes(size)
			used := processorTime()
			for b.Loop() {
				room <- struct{}{}
				a.Send(2, &wire.Push{}, payload, false)
			}
			b.ReportMetric(float64(processorTime()-used)/float64(b.N)/size, "cpu-ns/B")
		})
	}
}

// processorTime is what this process has used: a busy machine changes it less than the time that goes by.
func processorTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
