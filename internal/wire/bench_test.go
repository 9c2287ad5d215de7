package wire

import (
	"bytes"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// BenchmarkHot encodes and decodes the messages of the publish path, less the
// payload.
func BenchmarkHot(b *testing.B) {
	st := Stamp{Area: 1 << 20, Gen: 12345, Rev: 123456, Epoch: 7}
	v := dsm.Version(1) << 62
	one := dsm.PageSet{0, 1 << 17, 0, 0}
	for name, m := range map[string]any{
		"Publish":    &Publish{Stamp: st, Extent: 3, Seq: 99, Pages: one, Index: []byte{1, 2, 3, 4}},
		"PublishAck": &PublishAck{Stamp: st, Extent: 3, Seq: 99, Version: v, Complete: true},
		"Push":       &Push{Stamp: st, Extent: 3, ID: 42, Version: v, Contains: 99, Complete: true, Pages: dsm.AllPages, Zero: one},
		"PushAck":    &PushAck{Stamp: st, Extent: 3, ID: 42},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var buf []byte
			var src bytes.Reader
			r := NewReader(&src)
			for b.Loop() {
				var err error
				if buf, err = Append(buf[:0], m, 0, false, 0); err != nil {
					b.Fatal(err)
				}
				src.Reset(buf)
				if _, err := r.Read(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(buf)), "bytes/frame")
		})
	}
}
