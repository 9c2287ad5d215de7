package catalog

import (
	"errors"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// session makes sure that each command of a node is applied once. It keeps the results of those
// commands that the node may still wait for, and so may send again.
type session struct {
	low     uint64 // commands with smaller numbers are forgotten, and ignored
	results map[uint64]result
}

// result is the outcome of a command.
type result struct {
	Inode dsm.Inode
	Kind  errs.Kind // of the error
	Text  string    // of the error; "" with Kind 0: no error
}

// fail returns an error of the state machine. The name of the operation is added where the error
// leaves the catalog.
func fail(k errs.Kind, format string, args ...any) error { return errs.E(k, "", format, args...) }

func resultOf(in dsm.Inode, err error) result {
	if err == nil {
		return result{Inode: in}
	}
	return result{Kind: errs.KindOf(err), Text: err.Error()}
}

// err returns the error in the result, with the name of the operation.
func (r result) err(name string) error {
	if r.Kind == errs.Other && r.Text == "" {
		return nil
	}
	return &errs.Error{Op: name, Kind: r.Kind, Err: errors.New(r.Text)}
}

// forget drops results with numbers below low. The numbers are consecutive, so each command takes
// constant time, and never more than there are results.
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
