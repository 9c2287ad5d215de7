// Package attach implements the memory plane: it gives programs of this node the working copies of
// areas, which they map. It owns the socket and its connections, what each program has attached and
// mapped, and the threads that wait for pages of areas on demand (overdue.go). It also owns the guard,
// a child process that keeps these threads from reading zeroes when the daemon is killed
// (guard_linux.go). docs/attach.md describes the protocol.
package attach

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dsmfs/dsmfs/fs/errno"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/head"
	"github.com/dsmfs/dsmfs/internal/lockrank"
	"github.com/dsmfs/dsmfs/internal/loop"
	"github.com/dsmfs/dsmfs/internal/procs"
	"github.com/dsmfs/dsmfs/internal/uffd"
	"golang.org/x/sys/unix"
)

// Config is what a Server needs of the daemon.
type Config struct {
	Mount Mount
	// Groups are the groups that programs can join; nil if they cannot.
	Groups Groups
	Log    *slog.Logger
	// Socket is where programs connect. Listener, if not nil, is what is there.
	Socket   string
	Listener *net.UnixListener
	// Journal keeps what outlives the daemon; nil if nothing does: see resume_linux.go.
	Journal Journal
	// GuardArgv is the command of the guard: a process that calls GuardMain.
	GuardArgv []string
	// Tracking is how stores are found.
	Tracking uffd.Mode
	// Timeout ends requests and waits for pages.
	Timeout time.Duration
	// Life ends when the daemon is about to end.
	Life context.Context
}

// Server serves the attach socket. It works without a FUSE mount too (--no-mount). mu guards the set
// of connections and the counters of each user.
type Server struct {
	cfg      Config
	limits   limits
	refusals chan struct{} // has one token for each connection that is being refused
	log      *slog.Logger
	guard    *guardProcess
	ln       *net.UnixListener
	wg       sync.WaitGroup
	ctx      context.Context // of faults; ends when no program needs pages any more
	end      context.CancelFunc
	keeper   *head.Keeper

	mu struct {
		lockrank.Mutex
		conns  map[*conn]struct{}
		users  map[uint32]*user
		left   map[uint64]Held // that the daemon before had: see Adopt
		closed bool
	}
}

// conn is one connection of a program.
//
// mu guards the attachments; requests of one connection run concurrently.
type conn struct {
	s     *Server
	conn  loop.Socket // a loop's if looped
	who   program
	user  *user
	pidfd *os.File
	// killed says that the process was: what it has not published of versioned files is not published. It is set before the attachments end.
	killed  atomic.Bool
	process *procs.Process  // of one that was attached when the daemon before was killed
	ctx     context.Context // ends with the connection
	end     context.CancelFunc
	slots   chan struct{} // has one token for each request that runs
	waits   chan struct{} // has one token for each WAIT

	looped *loop.Conn // conn, or nil if there were no descriptors for that
	buf    []byte     // of the packet that is read
	// left is what the loop leaves to the goroutine of the connection: a packet, or the rest of a request.
	left struct {
		rest   func()
		packet []byte
		fds    []int
		err    error
	}

	mu struct {
		lockrank.Mutex
		last        uint64
		attachments map[uint64]*attachment
		members     map[uint64]*membership
		mapped      mappings // of what the program has handed over by ACCUMULATE
	}
}

// New makes the socket, unless there is one. Programs wait until Serve.
func New(cfg Config) (*Server, error) { return newWithin(defaultLimits, cfg) }

// Serve serves all programs that connect.
func (s *Server) Serve() { s.wg.Go(s.accept) }

func newWithin(l limits, cfg Config) (*Server, error) {
	ln, err := cfg.Listener, error(nil)
	if ln == nil {
		ln, err = Listen(cfg.Socket)
	}
	if err != nil {
		return nil, &errs.Error{Op: "listen for programs that attach", Path: cfg.Socket, Err: err}
	}
	s := &Server{cfg: cfg, limits: l, refusals: make(chan struct{}, l.refusals), log: cfg.Log, guard: newGuard(cfg.GuardArgv, cfg.Log), ln: ln}
	s.ctx, s.end = context.WithCancel(context.Background())
	s.keeper = head.NewKeeper()
	s.mu.Init("attach.Server")
	s.mu.conns = make(map[*conn]struct{})
	s.mu.users = make(map[uint32]*user)
	s.mu.left = make(map[uint64]Held)
	return s, nil
}

func (s *Server) accept() {
	for {
		c, err := s.ln.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // perhaps no descriptor is left: somebody may close one
			s.log.Warn("attach: accept", "err", err)
			select {
			case <-s.cfg.Life.Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		who, pidfd, err := peer(c)
		if err != nil { // most likely the program is gone again
			s.log.Info("attach: connection refused", "err", err)
			_ = c.Close()
			continue
		}
		a := &conn{s: s, conn: c, who: who, pidfd: pidfd, slots: make(chan struct{}, s.limits.connRequests), waits: make(chan struct{}, s.limits.connWaits)}
		a.ctx, a.end = context.WithCancel(context.Background())
		a.mu.Init("attach.conn")
		a.mu.attachments = make(map[uint64]*attachment)
		a.mu.members = make(map[uint64]*membership)
		s.mu.Lock()
		refuse := s.mu.closed
		a.user = s.userLocked(who.UID)
		many := a.user.conns >= s.limits.conns
		switch {
		case refuse:
			s.forgetLocked(a.user)
		case many:
			select {
			case s.refusals <- struct{}{}:
				s.wg.Go(func() { s.refuse(a) })
			default:
				refuse = true
			}
		default:
			if l, err := loop.Take(c); err == nil {
				a.conn, a.looped = l, l
			}
			a.user.conns++
			s.mu.conns[a] = struct{}{}
			s.wg.Go(func() { s.serve(a) })
		}
		s.mu.Unlock()
		if refuse {
			a.close()
			_ = pidfd.Close()
		}
	}
}

// refusalLimit is how long a refused connection has time for a first request, so that the program
// learns the reason.
const refusalLimit = time.Second

// refuse answers the first request of a connection that is one too many, with an error that says so,
// and closes the connection.
func (s *Server) refuse(a *conn) {
	var fds []int
	defer func() {
		go func() { // the others are told no reason as long as this waits: see discard
			closeAll(fds)
			<-s.refusals
		}()
	}()
	err := s.refused(a.user, errTooMany(unix.EMFILE, "connections of one user", s.limits.conns))
	if e := a.conn.SetDeadline(time.Now().Add(refusalLimit)); e == nil {
		var packet []byte
		packet, fds, e = receive(a.conn, make([]byte, headSize+maxPayload+1))
		if h, _, derr := decode(packet); e == nil && derr == nil {
			a.reply(&request{header: h}, reply{}, err)
		}
	}
	a.close()
	_ = a.pidfd.Close() // nothing was written to it
}

// serve reads requests until the connection or the process ends, and then ends all attachments. The
// end of the process counts because a child may have inherited the connection, but not the
// mappings.
func (s *Server) serve(a *conn) {
	var running sync.WaitGroup
	running.Go(func() {
		if raw, err := a.pidfd.SyscallConn(); err == nil {
			uffd.AwaitExit(raw)
		}
		a.close()
	})
	for {
		packet, fds, err := a.receive()
		if err != nil {
			a.discard(fds)
			break
		}
		h, payload, err := decode(packet)
		if err != nil {
			a.discard(fds)
			s.log.Warn("attach: bad packet", "pid", a.who.pid, "err", err)
			break
		}
		q := &request{header: h, payload: string(payload)}
		if len(fds) > 0 {
			if q.file = fileOf(h.op, fds[0]); q.file == nil {
				a.discard(fds)
				s.log.Warn("attach: a descriptor that is no userfaultfd of a TRACK, and no memory of an ACCUMULATE", "pid", a.who.pid)
				a.reply(q, reply{}, errs.E(errs.Invalid, "attach", "the descriptor is no userfaultfd of a TRACK, and no memory of an ACCUMULATE"))
				break // or it could have descriptors closed without end
			}
		}
		if h.op.waits() { // it has no time limit, so it must not delay the others
			if err := a.takeWait(); err != nil {
				// Answered in this goroutine, so that no more requests are read of a program that
				// reads no answers.
				a.reply(q, reply{}, err)
				continue
			}
			if q.isArrival() {
				if _, rest := a.arrive(q, false); rest != nil {
					rest()
				}
				continue
			}
			running.Go(func() {
				defer a.endWait()
				a.answer(q)
			})
			continue
		}
		if q.file == nil && a.answerNow(q) {
			continue
		}
		if !a.takeSlot() {
			if q.file != nil {
				_ = q.file.Close() // nothing was written to it
			}
			continue // then the next receive fails
		}
		running.Go(func() {
			defer a.endSlot()
			a.answer(q)
		})
	}
	a.close()
	if raw, err := a.pidfd.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { a.killed.Store(procs.Killed(a.who.pid, int(fd))) }) // else it is closed
	}
	_ = a.pidfd.Close() // ends AwaitExit
	running.Wait()
	a.leaveAll()
	a.unmapAll()
	a.detachAll()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.conns, a)
	a.user.conns--
	s.forgetLocked(a.user)
}

// takeSlot waits until another request of the connection and of the user may run. It returns false
// when the connection ends.
func (a *conn) takeSlot() bool {
	select {
	case a.slots <- struct{}{}:
	case <-a.ctx.Done():
		return false
	}
	select {
	case a.user.requests <- struct{}{}:
		return true
	case <-a.ctx.Done():
		<-a.slots
		return false
	}
}

func (a *conn) endSlot() {
	<-a.user.requests
	<-a.slots
}

// takeWait admits another WAIT, or returns why it may not run.
func (a *conn) takeWait() error {
	select {
	case a.waits <- struct{}{}:
	default:
		return errTooMany(unix.EAGAIN, "WAITs of one connection at once", a.s.limits.connWaits)
	}
	select {
	case a.user.waits <- struct{}{}:
		return nil
	default:
		<-a.waits
		return a.s.refused(a.user, errTooMany(unix.EAGAIN, "WAITs of one user at once", a.s.limits.waits))
	}
}

func (a *conn) endWait() {
	<-a.user.waits
	<-a.waits
}

// close ends the connection. Any goroutine may call it.
func (a *conn) close() {
	a.end()
	_ = a.conn.Close() // its error is that it was closed
}

// Close ends all attachments and returns when their last stores have been found.
func (s *Server) Close() {
	_ = s.ln.Close() // removes the socket; an error could not be handled
	s.mu.Lock()
	s.mu.closed = true
	for a := range s.mu.conns {
		a.close()
	}
	for _, u := range s.mu.users {
		if u.heads != nil {
			u.heads.pages.End()
		}
	}
	s.mu.Unlock()
	s.end()
	s.wg.Wait()
	s.keeper.Close()
}

// request is a request of a program.
type request struct {
	header
	replied bool // it has been answered, and goes on
	payload string
	file    *os.File // the descriptor that came with it; who takes it over sets this to nil
}

// reply is the answer to a request.
type reply struct {
	attachment uint64
	arg        [4]uint64
	payload    string
	file       *os.File // sent along, then closed
	keep       bool     // the file is not closed
}

// answer serves one request.
func (a *conn) answer(q *request) {
	r, err := a.serve(q)
	if q.file != nil {
		_ = q.file.Close() // nothing was written to it
	}
	if !q.replied {
		a.reply(q, r, err)
	}
}

// reply sends the answer.
func (a *conn) reply(q *request, r reply, err error) {
	packet := a.packet(q, r, err)
	if r.file != nil || !replyNow(a.conn, packet) {
		a.send(packet, r.file)
	}
	if r.file != nil && !r.keep {
		_ = r.file.Close() // the program has its own now
	}
}

// send sends a packet, and waits until the program reads if it must. Packets are sent whole, so concurrent senders do not mix.
func (a *conn) send(packet []byte, file *os.File) {
	if err := transmit(a.conn, packet, file); err != nil {
		a.close()
	}
}

// packet returns the answer as it travels.
func (a *conn) packet(q *request, r reply, err error) []byte {
	h := header{op: q.op, tag: q.tag, attachment: q.attachment}
	if err != nil {
		h.errno = errnoOf(err)
		r.payload = err.Error()
		a.s.log.Debug("attach", "pid", a.who.pid, "op", q.op, "err", err)
	}
	if r.attachment != 0 {
		h.attachment = r.attachment
	}
	h.arg = r.arg
	return h.encode([]byte(r.payload[:min(len(r.payload), maxPayload)]))
}

// errnoOf returns the error number for err. It differs from package errno where the memory plane
// can tell programs more than a mount can.
func errnoOf(err error) unix.Errno {
	switch errs.KindOf(err) {
	case errs.Timeout, errs.Unavailable:
		return unix.ETIMEDOUT
	case errs.Unsupported:
		return unix.ENODEV
	case errs.Closed:
		return unix.ENOTCONN
	case errs.StaleGen: // a member without which its group has gone on
		return unix.ESTALE
	}
	return errno.Of(err)
}

func (a *conn) serve(q *request) (reply, error) {
	ctx, cancel := context.WithTimeout(a.ctx, a.s.cfg.Timeout)
	defer cancel()
	switch q.op {
	case opAttach:
		return a.attach(ctx, q)
	case opCreate:
		return a.create(ctx, q)
	case opPrepare:
		return a.prepare(ctx, q)
	case opResume:
		return a.resume(ctx, q)
	case opJoin, opLeave, opBarrier, opCount, opTick, opRound, opAccumulate:
		return a.together(q)
	}
	x, err := a.find(q.attachment)
	if err != nil {
		return reply{}, err
	}
	switch q.op {
	case opTrack:
		return x.track(ctx, q)
	case opUntrack:
		return reply{}, x.untrack(q.arg[0], q.arg[1])
	case opPublish:
		err = x.area.Publish(ctx)
	case opAcquire:
		err = x.at.Acquire(ctx)
	case opSync:
		err = x.at.Sync(ctx)
	case opWait:
		err = x.wait(a.ctx, q.arg[0], q.arg[1])
	case opExpect:
		return reply{}, x.expect(a.ctx, q)
	case opWatch:
		return x.watch()
	case opStats:
		return reply{payload: x.area.Stats()}, nil
	case opDetach:
		return reply{}, a.detach(x)
	case opResize:
		return x.resize(ctx, int64(q.arg[0]))
	case opName:
		err = x.giveName(ctx, q.payload)
	default:
		return reply{}, errs.E(errs.Invalid, "attach", "unknown request %d", q.op)
	}
	return reply{arg: [4]uint64{uint64(x.area.Version())}}, err
}

// find returns an attachment by its number.
func (a *conn) find(id uint64) (*attachment, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if x := a.mu.attachments[id]; x != nil {
		return x, nil
	}
	return nil, &errs.Error{Op: "attach", Err: unix.ENOTCONN}
}

// detach ends one attachment.
func (a *conn) detach(x *attachment) error {
	a.mu.Lock()
	_, ok := a.mu.attachments[x.id]
	delete(a.mu.attachments, x.id)
	a.mu.Unlock()
	if !ok { // another request has detached it
		return &errs.Error{Op: "attach", Err: unix.ENOTCONN}
	}
	x.end()
	return nil
}

func (a *conn) detachAll() {
	for {
		a.mu.Lock()
		var x *attachment
		for _, x = range a.mu.attachments {
			break
		}
		a.mu.Unlock()
		if x == nil {
			return
		}
		_ = a.detach(x) // cannot fail: the attachment is there
	}
}

// EndGuard ends the guard and waits for it. No thread may wait for pages any more: call it after Close,
// and after the work that Mount.Background runs has ended.
func (s *Server) EndGuard() { s.guard.stop() }
