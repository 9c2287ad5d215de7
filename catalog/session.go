package catalog

import (
	"cmp"
	"errors"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// session makes sure that each command of a node is applied once. It keeps the results of those
// commands that the node may still wait for, and so may send again.
type session struct {
	low     uint64 // commands with smaller numbers are forgotten, and ignored
	results map[uint64]result
	// Of one in state.evicted: the index in the log at which the node was evicted, and which incarnation that was.
	evicted, inc uint64
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

// mostEvicted is how many sessions of nodes that were evicted are kept.
const mostEvicted = 8

// keepEvicted keeps the session of a node that is being evicted, and whose next daemon may join the cluster again. Requests of the kernel that were not answered come again to that daemon: what they
// ask for may have happened. The oldest sessions go.
func (s *state) keepEvicted(m dsm.Member, index uint64) {
	ses := s.sessions[m.ID]
	if ses == nil || !followed(m) || s.evicted[m.ID] != nil { // there is one: no daemon has come back since that would know of later commands
		return
	}
	ses.evicted, ses.inc = index, m.Inc
	s.evicted[m.ID] = ses
	if len(s.evicted) > mostEvicted {
		delete(s.evicted, slices.MinFunc(sortedKeys(s.evicted), func(a, b dsm.NodeID) int { return cmp.Compare(s.evicted[a].evicted, s.evicted[b].evicted) }))
	}
}

// joinedAgain gives a node the results of commands that it has made as an incarnation that was evicted, and that may come again.
func (s *state) joinedAgain(id dsm.NodeID, inc uint64, keep []uint64) {
	was := s.evicted[id]
	delete(s.evicted, id)
	if was == nil || was.inc != inc {
		return
	}
	for _, req := range keep {
		if r, ok := was.results[req]; ok {
			s.sessions[id].results[req] = r
		}
	}
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
