package control

import (
	"context"
	"fmt"
	"log/slog"
	"syscall"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

func TestNumbers(t *testing.T) {
	for _, c := range []Node{{rootDir, 0}, {areasDir, 1}, {areaFile + 3, 1<<56 - 1}} {
		if got, ok := Of(c.ID()); !ok || got != c {
			t.Errorf("%+v became %+v", c, got)
		}
	}
	if _, ok := Of(1<<62 + 5); ok {
		t.Error("an inode of the catalog taken for a control file")
	}
	if topFile+kind(len(topFiles)) > areaFile || areaFile+kind(len(areaFiles)) > kindEnd {
		t.Error("too many control files")
	}
}

// mint makes tokens.
type mint struct {
	Info
	made int
}

func (m *mint) Tokens(context.Context) ([]string, error) { return []string{"all"}, nil }

func (m *mint) ChangeTokens(_ context.Context, order string) (string, error) {
	if order != "ttl 60" {
		return "", errs.E(errs.Invalid, "token", "%q", order)
	}
	m.made++
	return fmt.Sprint("token ", m.made), nil
}

// TestAnswersAreForWhoAsked: of two programs that have a token made at once, each reads its own, also if it reads it in parts.
func TestAnswersAreForWhoAsked(t *testing.T) {
	tree := New(Config{Info: new(mint), Log: slog.New(slog.DiscardHandler)})
	token, err := tree.Lookup(t.Context(), Root, "token")
	if err != nil {
		t.Fatal(err)
	}
	var all [3]*Handle
	for i := range all {
		if all[i], err = tree.Open(token, syscall.O_RDWR, dsm.Credentials{}); err != nil {
			t.Fatal(err)
		}
	}
	reads := func(h *Handle, off uint64, want string) {
		t.Helper()
		if text, err := h.Read(t.Context(), off); err != nil || text != want {
			t.Errorf("read at %d: %q, %v; want %q", off, text, err, want)
		}
	}
	if err := all[0].Write(t.Context(), []byte("ttl x\n")); !errs.Is(err, errs.Invalid) {
		t.Errorf("an order that is none: %v", err)
	}
	reads(all[0], 0, "all\n")
	for _, h := range all[:2] {
		if err := h.Write(t.Context(), []byte("ttl 60\n")); err != nil {
			t.Fatal(err)
		}
	}
	reads(all[0], 0, "token 1\n")
	reads(all[1], 0, "token 2\n")
	reads(all[0], 6, "1\n")
	reads(all[2], 0, "all\n")
}
