package catalog

import (
	"errors"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// session is what makes the commands of a node happen once each: the results of
// those that the node may still wait for, and so may send again.
type session struct {
	low     uint64 // commands below are forgotten, and ignored
	results map[uint64]result
}

// result is the outcome of a command.
type result struct {
	Inode dsm.Inode
	Kind  errs.Kind // of the error
	Text  string    // of the error; "" with Kind 0: no error
}

// fail returns an error of the state machine; the operation's name is added
// where it leaves the catalog.
func fail(k errs.Kind, format string, args ...any) error { return errs.E(k, "", format, args...) }

func resultOf(in dsm.Inode, err error) result {
	if err == nil {
		return result{Inode: in}
	}
	return result{Kind: errs.KindOf(err), Text: err.Error()}
}

// err returns the error in the result, of operation name.
func (r result) err(name string) error {
	if r.Kind == errs.Other && r.Text == "" {
		return nil
	}
	return &errs.Error{Op: name, Kind: r.Kind, Err: errors.New(r.Text)}
}

// forget drops what lies below low. The numbers are consecutive, so this is
// constant work per command, but no more than there are results.
func (s *session) forget(low uint64) {
	if low <= s.low {
		return
	}
	if low-s.low <= uint64(len(s.results)) {
		for req := s.low; req < low; req++ {
			delete(s.results, req)
		}
	} else {
		for req := range s.results {
			if req < low {
				delete(s.results, req)
			}
		}
	}
	s.low = low
}
