package attach

import (
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/head"
	"golang.org/x/sys/unix"
)

// heads are the header pages of a user, whose programs share the lines. The Server's lock guards the lines.
type heads struct {
	pages *head.Pages
	lines map[dsm.Ino]*line // of areas; those of memory that is one program's own are in no map
}

// line is a line that attachments watch.
type line struct {
	*head.Line
	off  int64
	file dsm.Ino // 0: it is in no map
	uses int
	told chan struct{} // closed when the line says something
}

// watch serves WATCH: it shows the program the line of the area. Programs that map the same memory share one, so to tell them is one
// store however many there are.
func (x *attachment) watch() (reply, error) {
	l, err := x.watched()
	if err != nil {
		return reply{}, err
	}
	pages := x.conn.user.heads.pages // stays as long as the attachment
	return reply{arg: [4]uint64{uint64(l.off), l.Number()}, file: pages.File(), keep: true}, nil
}

// watched returns the line, which the attachment uses from the first call on.
func (x *attachment) watched() (*line, error) {
	x.mu.Lock()
	l := x.mu.line
	x.mu.Unlock()
	if l != nil {
		return l, nil
	}
	l, first, err := x.conn.s.useLine(x.conn.user, x.file, x.at.Own())
	if err != nil {
		return nil, err
	}
	if first {
		x.at.Watch(l.Line)
		close(l.told)
	}
	<-l.told // Watch of the first always returns
	x.mu.Lock()
	ended, other := x.mu.ended, x.mu.line
	if !ended && other == nil {
		x.mu.line = l
	}
	x.mu.Unlock()
	switch {
	case ended:
		x.leave(l)
		return nil, &errs.Error{Op: "watch", Err: unix.ENOTCONN}
	case other != nil: // another request was faster
		x.leave(l)
		return other, nil
	}
	return l, nil
}

// unwatch gives up the line of an attachment that has ended.
func (x *attachment) unwatch() {
	x.mu.Lock()
	l := x.mu.line
	x.mu.line = nil
	x.mu.Unlock()
	if l != nil {
		x.leave(l)
	}
}

func (x *attachment) leave(l *line) {
	if x.conn.s.leaveLine(x.conn.user, l) {
		x.at.Unwatch(l.Line)
		x.conn.user.heads.pages.Give(l.Line)
	}
}

// useLine returns the line of a file, or one for memory of a program's own. first says that nobody else uses it.
func (s *Server) useLine(u *user, file dsm.Ino, own bool) (l *line, first bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u.heads == nil {
		p, err := head.NewPages(s.keeper, s.limits.attachments)
		if err != nil {
			return nil, false, err
		}
		u.heads = &heads{pages: p, lines: make(map[dsm.Ino]*line)}
	}
	if own {
		file = 0
	} else if l = u.heads.lines[file]; l != nil {
		l.uses++
		return l, false, nil
	}
	raw, off, err := u.heads.pages.Take()
	if err != nil {
		return nil, false, err
	}
	l = &line{Line: raw, off: off, file: file, uses: 1, told: make(chan struct{})}
	if file != 0 {
		u.heads.lines[file] = l
	}
	return l, true, nil
}

// leaveLine reports whether nobody uses the line any more.
func (s *Server) leaveLine(u *user, l *line) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.uses--; l.uses > 0 {
		return false
	}
	if l.file != 0 {
		delete(u.heads.lines, l.file)
	}
	return true
}
