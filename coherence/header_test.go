package coherence

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

func TestBeginsHeader(t *testing.T) {
	length := func(n uint64) string { return string(binary.LittleEndian.AppendUint64(nil, n)) }
	for first, want := range map[string]bool{
		"":                         true,
		"\x00\x00\x00":             true, // it may come later than what is behind it
		"\x93NUMPY\x01\x00v":       true,
		"\x93NU":                   true,
		"\x00NUMPY\x01\x00v":       true,
		length(300):                true,
		length(300) + "{":          true,
		length(0) + "{":            true,
		length(300) + "\x00":       true,
		length(300) + "7":          false,
		length(mostHeader) + "{":   true,
		length(mostHeader + 1):     false,
		"hi\n":                     false,
		"hello wor":                false,
		"\x93PNG\r\n\x1a\n\x00":    false,
		"\x93NUMPX\x01\x00v":       false,
		length(0x3f8000003f800000): false,
	} {
		if got := beginsHeader([]byte(first)); got != want {
			t.Errorf("%q: %v", first, got)
		}
	}
}

// TestWritesWithoutAType: of an area that needs a type and has none, what begins no header is refused, before the area grows for it. The log says
// once what to do.
func TestWritesWithoutAType(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 1, dsm.Inode{Spec: dsm.Spec{Merge: dsm.MergeSum}})
		n := s.nodes[0]
		var log bytes.Buffer
		n.node.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		n.open(true)
		check := func(what, p string, off int64, want errs.Kind) {
			t.Helper()
			if err := n.area.CheckWrite([]byte(p), off, true); errs.KindOf(err) != want {
				t.Errorf("%s: %v, want kind %v", what, err, want)
			}
		}
		for range 2 {
			check("text", "hi\n", 0, errs.Invalid)
		}
		check("a header", "\x93NUMPY\x01\x00", 0, errs.Other)
		check("data before the header", "hi\n", 128, errs.Other)
		if k := strings.Count(log.String(), "user.dsm.dtype of the file"); k != 1 {
			t.Errorf("%d lines of the log say what to do:\n%s", k, &log)
		}

		s.resized(2 * dsm.PageSize)
		store := func(p string) {
			t.Helper()
			if err := n.area.WriteAt(t.Context(), []byte(p), 0); err != nil {
				t.Fatal(err)
			}
		}
		store("hello world\n") // when the rule was another one
		check("behind text", "hi\n", 128, errs.Invalid)
		check("a header over text", "\x93NUMPY\x01\x00", 0, errs.Other)
		store("\x93NUMPY\x01\x00")
		check("behind a header", "hi\n", 128, errs.Other)
		check("text over a header", "hi\n", 0, errs.Invalid)

		s.changeRules(func(ino *dsm.Inode) { ino.Layout = dsm.Layout{DType: dsm.DTypeU8} })
		s.catchUp()
		check("with a type", "hi\n", 0, errs.Other)
		s.changeRules(func(ino *dsm.Inode) { ino.Layout, ino.Spec.Merge = dsm.Layout{}, dsm.MergeLast })
		s.catchUp()
		check("by a rule that needs none", "hi\n", 0, errs.Other)
	})
}

// TestPageCacheOfARefusedWrite: the page cache has the bytes of a write(2) that is refused. It drops them.
func TestPageCacheOfARefusedWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 1, dsm.Inode{Size: dsm.PageSize, Spec: dsm.Spec{Merge: dsm.MergeSum}})
		n := s.nodes[0]
		n.open(true)
		n.page(0)
		if err := n.area.CheckWrite(bytes.Repeat([]byte{7}, 2*dsm.PageSize), 0, true); !errs.Is(err, errs.Invalid) {
			t.Error(err)
		}
		n.kernel.finishNotices()
		if n.kernel.cache[0] != nil {
			t.Error("the page cache goes on showing what was refused")
		}
	})
}
