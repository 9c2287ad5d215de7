package errno

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/dsmfs/dsmfs/internal/errs"
)

// TestTableIsTotal: every kind of error is in the table.
func TestTableIsTotal(t *testing.T) {
	for k := errs.Kind(0); !strings.HasPrefix(k.String(), "kind "); k++ {
		if int(k) >= len(table) || table[k] == 0 {
			t.Errorf("no errno for kind %d, %q", k, k)
		}
	}
	for _, tt := range []struct {
		err  error
		want syscall.Errno
	}{
		{nil, 0},
		{errs.E(errs.NoSpace, "x", ""), syscall.ENOSPC},
		{&errs.Error{Op: "outer", Err: errs.E(errs.Exist, "x", "")}, syscall.EEXIST},
		{&errs.Error{Op: "read", Kind: errs.Timeout, Err: context.DeadlineExceeded}, syscall.EIO},
		{&errs.Error{Op: "x", Err: syscall.ENOLCK}, syscall.ENOLCK},
		{context.Canceled, syscall.EINTR},
		{context.DeadlineExceeded, syscall.EIO},
		{errors.New("x"), syscall.EIO},
		{errs.E(errs.Kind(250), "x", ""), syscall.EIO},
	} {
		if got := Of(tt.err); got != tt.want {
			t.Errorf("%v: %v, want %v", tt.err, got, tt.want)
		}
	}
}
