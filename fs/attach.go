package fs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/dsmfs/dsmfs/fs/control"
	"github.com/dsmfs/dsmfs/fs/errno"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
	"github.com/dsmfs/dsmfs/internal/uffd"
	"golang.org/x/sys/unix"
)

// attachServer hands the working copies of areas to programs of this node, which
// map them: the memory plane. It needs no mount. mu guards which connections there are.
type attachServer struct {
	b   *bridge
	ln  *net.UnixListener
	wg  sync.WaitGroup
	ctx context.Context // of faults: ends when pages are fetched for nobody any more
	end context.CancelFunc

	mu struct {
		lockrank.Mutex
		conns  map[*attachConn]struct{}
		closed bool
	}
}

// attachConn is one connection of a program.
//
// mu guards the attachments; requests of one connection run at the same time.
type attachConn struct {
	b      *bridge
	faults context.Context // of the server
	conn   *net.UnixConn
	cred   credentials
	pidfd  *os.File
	ctx    context.Context // ends with the connection
	end    context.CancelFunc
	slots  chan struct{} // one for each request that may run
	waits  chan struct{} // and for each WAIT

	mu struct {
		lockrank.Mutex
		last        uint64
		attachments map[uint64]*attachment
	}
}

const (
	// attachRequests is how many requests of a connection run at the same time.
	attachRequests = 64
	// attachWaits is how many WAITs of one do.
	attachWaits = 1024
)

var errTooMany = &errs.Error{Op: "wait", Err: fmt.Errorf("%w: more than %d at once", unix.EAGAIN, attachWaits)}

func startAttach(b *bridge, path string) (*attachServer, error) {
	ln, err := listenAttach(path)
	if err != nil {
		return nil, &errs.Error{Op: "listen for programs that attach", Path: path, Err: err}
	}
	s := &attachServer{b: b, ln: ln}
	s.ctx, s.end = context.WithCancel(context.Background())
	s.mu.Init("fs.attachServer")
	s.mu.conns = make(map[*attachConn]struct{})
	s.wg.Go(s.accept)
	return s, nil
}

func (s *attachServer) accept() {
	for {
		c, err := s.ln.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no descriptors left: others may end
			s.b.log.Warn("attach: accept", "err", err)
			select {
			case <-s.b.life.Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		cred, pidfd, err := peer(c)
		if err != nil { // it has gone again, most likely
			s.b.log.Info("attach: connection refused", "err", err)
			_ = c.Close()
			continue
		}
		a := &attachConn{b: s.b, faults: s.ctx, conn: c, cred: cred, pidfd: pidfd, slots: make(chan struct{}, attachRequests), waits: make(chan struct{}, attachWaits)}
		a.ctx, a.end = context.WithCancel(context.Background())
		a.mu.Init("fs.attachConn")
		a.mu.attachments = make(map[uint64]*attachment)
		s.mu.Lock()
		refuse := s.mu.closed
		if !refuse {
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

// serve reads requests until the connection or the process ends, and then ends
// all its attachments: a child may have inherited the connection, but not the mappings.
func (s *attachServer) serve(a *attachConn) {
	var running sync.WaitGroup
	running.Go(func() {
		if raw, err := a.pidfd.SyscallConn(); err == nil {
			uffd.AwaitExit(raw)
		}
		a.close()
	})
	buf := make([]byte, attachHead+maxAttachPayload+1)
	for {
		packet, files, err := receive(a.conn, buf)
		if err != nil {
			break
		}
		h, payload, err := decodeAttach(packet)
		if err != nil {
			closeAll(files)
			s.b.log.Warn("attach: bad packet", "pid", a.cred.pid, "err", err)
			break
		}
		q := &attachRequest{attachHeader: h, payload: string(payload)}
		if len(files) > 0 {
			if h.op != opTrack || uffd.IsUserfaultfd(int(files[0].Fd())) != nil {
				// Closing it may wait for whoever serves it, so nobody here does.
				go closeAll(files)
				s.b.log.Warn("attach: a descriptor that is no userfaultfd of a TRACK", "pid", a.cred.pid)
				break
			}
			q.file = files[0]
		}
		slots := a.slots
		if h.op == opWait {
			slots = a.waits // without limit of time: they do not hold up the others
		}
		select {
		case slots <- struct{}{}:
		default:
			if h.op == opWait {
				running.Go(func() { a.reply(q, attachReply{}, errTooMany) })
				continue
			}
			select {
			case slots <- struct{}{}:
			case <-a.ctx.Done():
				closeAll(files)
				continue // the next receive fails
			}
		}
		running.Go(func() {
			defer func() { <-slots }()
			a.answer(q)
		})
	}
	a.close()
	_ = a.pidfd.Close() // ends AwaitExit
	running.Wait()
	a.detachAll()
	s.mu.Lock()
	delete(s.mu.conns, a)
	s.mu.Unlock()
}

// close ends the connection, from any goroutine.
func (a *attachConn) close() {
	a.end()
	_ = a.conn.Close() // its error is that it was closed
}

// close ends all attachments and returns when their stores are taken note of.
func (s *attachServer) close() {
	_ = s.ln.Close() // removes the socket; nobody could do anything about an error
	s.mu.Lock()
	s.mu.closed = true
	for a := range s.mu.conns {
		a.close()
	}
	s.mu.Unlock()
	s.end()
	s.wg.Wait()
}

// attachRequest is one request.
type attachRequest struct {
	attachHeader
	payload string
	file    *os.File // that came with it; whoever takes it sets nil
}

// attachReply is the answer to one.
type attachReply struct {
	attachment uint64
	arg        [4]uint64
	payload    string
	file       *os.File // sent along, then closed
}

// answer serves one request.
func (a *attachConn) answer(q *attachRequest) {
	r, err := a.serve(q)
	if q.file != nil {
		_ = q.file.Close() // nothing was written to it
	}
	a.reply(q, r, err)
}

// reply sends the answer.
func (a *attachConn) reply(q *attachRequest, r attachReply, err error) {
	h := attachHeader{op: q.op, tag: q.tag, attachment: q.attachment}
	if err != nil {
		h.errno = attachErrno(err)
		r.payload = err.Error()
		a.b.log.Info("attach", "pid", a.cred.pid, "op", q.op, "err", err)
	}
	if r.attachment != 0 {
		h.attachment = r.attachment
	}
	h.arg = r.arg
	packet := h.encode([]byte(r.payload[:min(len(r.payload), maxAttachPayload)]))
	err = transmit(a.conn, packet, r.file) // a packet is sent as a whole, whoever else sends
	if r.file != nil {
		_ = r.file.Close() // the program has its own now
	}
	if err != nil {
		a.close()
	}
}

// attachErrno is errno, but where the memory plane tells programs more than a mount can.
func attachErrno(err error) unix.Errno {
	switch errs.KindOf(err) {
	case errs.Timeout, errs.Unavailable:
		return unix.ETIMEDOUT
	case errs.Unsupported:
		return unix.ENODEV
	case errs.Closed:
		return unix.ENOTCONN
	}
	return errno.Of(err)
}

func (a *attachConn) serve(q *attachRequest) (attachReply, error) {
	ctx, cancel := context.WithTimeout(a.ctx, a.b.cfg.FaultTimeout)
	defer cancel()
	switch q.op {
	case opAttach:
		return a.attach(ctx, q)
	case opCreate:
		return a.create(ctx, q)
	}
	x, err := a.find(q.attachment)
	if err != nil {
		return attachReply{}, err
	}
	switch q.op {
	case opTrack:
		return x.track(q)
	case opUntrack:
		return attachReply{}, x.untrack(q.arg[0], q.arg[1])
	case opPublish:
		err = x.publish(ctx)
	case opAcquire:
		err = x.area.current().Acquire(ctx, x.write)
	case opSync:
		err = x.sync(ctx)
	case opWait:
		err = x.wait(a.ctx, q.arg[0], q.arg[1])
	case opStats:
		return attachReply{payload: control.FlatKeyed(a.b.areaStats(x.area))}, nil
	case opDetach:
		return attachReply{}, a.detach(x)
	case opResize:
		return x.resize(ctx, int64(q.arg[0]))
	default:
		return attachReply{}, errs.E(errs.Invalid, "attach", "unknown request %d", q.op)
	}
	return attachReply{arg: [4]uint64{uint64(x.area.current().Version())}}, err
}

// find returns an attachment by its number.
func (a *attachConn) find(id uint64) (*attachment, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if x := a.mu.attachments[id]; x != nil {
		return x, nil
	}
	return nil, &errs.Error{Op: "attach", Err: unix.ENOTCONN}
}

// detach ends one attachment.
func (a *attachConn) detach(x *attachment) error {
	a.mu.Lock()
	_, ok := a.mu.attachments[x.id]
	delete(a.mu.attachments, x.id)
	a.mu.Unlock()
	if !ok { // by a request at the same time
		return &errs.Error{Op: "attach", Err: unix.ENOTCONN}
	}
	x.end()
	return nil
}

func (a *attachConn) detachAll() {
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
		_ = a.detach(x) // it is there
	}
}
