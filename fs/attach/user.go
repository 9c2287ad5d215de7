package attach

import (
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/errs"
)

// limits bounds what programs may use through the socket, to which everybody can connect.
// Everything costs the daemon memory or descriptors: a connection some 20 KiB and two descriptors,
// a request or a WAIT a goroutine, an attachment a handle of its area.
type limits struct {
	// For each connection: how many requests are served at the same time, and how many WAITs
	// besides.
	connRequests, connWaits int
	// For all programs of a user together.
	conns, attachments, requests, waits int
	// How much of what they hand over is mapped, likewise; what is more is read.
	mapped int
	// refusals is how many connections beyond the limit are told the reason at the same time.
	refusals int
}

var defaultLimits = limits{
	connRequests: 64, connWaits: 1024,
	conns: 4096, attachments: 16384, requests: 1024, waits: 8192, mapped: 4096,
	refusals: 64,
}

// user counts what the programs of a user have. The Server's lock guards the numbers.
type user struct {
	id                 uint32
	conns, attachments int
	warned             bool          // the log says that the user reached a limit
	requests, waits    chan struct{} // one token for each that is served
	mapped             atomic.Int32  // mappings of what they have handed over: see newMapping
	heads              *heads        // nil: no program of the user has watched an area
}

// userLocked returns the counters of a user.
func (s *Server) userLocked(id uint32) *user {
	u := s.mu.users[id]
	if u == nil {
		u = &user{id: id, requests: make(chan struct{}, s.limits.requests), waits: make(chan struct{}, s.limits.waits)}
		s.mu.users[id] = u
	}
	return u
}

// forgetLocked removes the counters of a user who has nothing.
func (s *Server) forgetLocked(u *user) {
	if u.conns > 0 || u.attachments > 0 || u.mapped.Load() > 0 {
		return
	}
	if u.heads != nil {
		if err := u.heads.pages.Close(); err != nil {
			s.log.Error("header pages are not given back", "err", err)
		}
		u.heads = nil
	}
	delete(s.mu.users, u.id)
}

// errTooMany says which limit was reached, and its value. A program most likely reaches one by
// mistake, for instance because it leaks areas.
func errTooMany(number error, of string, most int) error {
	return &errs.Error{Op: "attach", Err: fmt.Errorf("%w: more than %d %s", number, most, of)}
}

// refused warns once of a user who reaches a limit, and returns the error.
func (s *Server) refused(u *user, err error) error {
	s.mu.Lock()
	first := !u.warned
	u.warned = true
	s.mu.Unlock()
	if first {
		s.log.Warn("attach: a user wants more than programs may have", "uid", u.id, "err", err)
	}
	return err
}

// attached counts one more attachment of the user, or returns why it may have no more. endAttachment
// takes it back when the attachment is gone.
func (s *Server) attached(u *user) error {
	s.mu.Lock()
	full := u.attachments >= s.limits.attachments
	if !full {
		u.attachments++
	}
	s.mu.Unlock()
	if full {
		return s.refused(u, errTooMany(unix.EMFILE, "attachments of one user, those that are ending included", s.limits.attachments))
	}
	return nil
}

func (s *Server) endAttachment(u *user) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u.attachments--
	s.forgetLocked(u)
}
