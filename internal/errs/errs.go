// Package errs is the one error type of dsmfs. A Kind says what went wrong in
// a way that fs maps to an errno in one table and cmd to an exit code; text is
// for people only and is never compared.
package errs

import (
	"errors"
	"fmt"
	"strings"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// Kind is what went wrong. Values travel between nodes: append only.
type Kind uint8

// The kinds, in the order they were added.
const (
	Other        Kind = iota // an error of the operating system or a library
	Invalid                  // a value that makes no sense: EINVAL
	NotExist                 // no such name: ENOENT
	Exist                    // the name is taken: EEXIST
	NotDir                   // a path component is no directory: ENOTDIR
	IsDir                    // a directory where a file is wanted: EISDIR
	NotEmpty                 // the directory has entries: ENOTEMPTY
	Permission               // not the owner, or the mode forbids it: EPERM
	Access                   // the mode forbids it: EACCES
	NoSpace                  // over the memory budget: ENOSPC
	TooLarge                 // over the largest size: EFBIG
	NameTooLong              // ENAMETOOLONG
	Unsupported              // what dsmfs does not do: EOPNOTSUPP
	Busy                     // in use: EBUSY
	NoAttr                   // no such extended attribute: ENODATA
	Timeout                  // no answer within the deadline: EIO
	Unavailable              // a node that is needed does not answer: EIO
	NotLeader                // asked a node that does not lead: retried inside
	StaleEpoch               // the message is of an older view: retried inside
	StaleGen                 // the message is of an older generation: retried inside
	Corrupt                  // bytes that break the protocol
	Closed                   // the node is shutting down
	Interrupted              // the caller gave up and nothing was done: EINTR
	CrossesDir               // rename of a directory into itself: EINVAL
	TooManyLinks             // EMLINK
	WouldBlock               // a lock of somebody else is in the way: EAGAIN
	Deadlock                 // the caller would wait for itself: EDEADLK
	Dropped                  // a version that is not kept any more: ESTALE
	Evicted                  // the node is not a member of the cluster any more: EIO
	NotFinite                // a number that is infinite or none at all, where only finite ones are published: ERANGE
	Replaced                 // the name is not that of the directory any more which is to be removed: ESTALE
)

var kindText = [...]string{"error", "invalid argument", "no such file or directory", "file exists", "not a directory",
	"is a directory", "directory not empty", "operation not permitted", "permission denied", "no space left in the memory budget",
	"file too large", "name too long", "not supported", "busy", "no such attribute", "timed out", "unavailable", "not the leader",
	"stale epoch", "stale generation", "corrupt message", "closed", "interrupted", "directory moved into itself", "too many links",
	"locked by another", "deadlock", "not kept any more", "evicted from the cluster", "not a finite number",
	"no more the directory of that name"}

// String returns the kind in words.
func (k Kind) String() string {
	if int(k) < len(kindText) {
		return kindText[k]
	}
	return fmt.Sprintf("kind %d", k)
}

// Error is an error with its context. Zero fields are not printed.
type Error struct {
	Op   string // what was being done: "publish", "join"
	Node dsm.NodeID
	Area dsm.AreaID
	Path string
	Kind Kind
	Err  error // the cause, or nil
}

// E returns an error of kind k in operation op. The message is formatted if
// format is not empty; %w wraps.
func E(k Kind, op, format string, args ...any) *Error {
	e := &Error{Op: op, Kind: k}
	if format != "" {
		e.Err = fmt.Errorf(format, args...)
	}
	return e
}

// Error prints the context from the outside in.
func (e *Error) Error() string {
	var b strings.Builder
	add := func(s string) {
		if b.Len() > 0 {
			b.WriteString(": ")
		}
		b.WriteString(s)
	}
	if e.Op != "" {
		add(e.Op)
	}
	if e.Path != "" {
		add(e.Path)
	}
	if e.Area != 0 {
		add(fmt.Sprintf("area %d", e.Area))
	}
	if e.Node != 0 {
		add("node " + e.Node.String())
	}
	if e.Err != nil {
		add(e.Err.Error())
	} else {
		add(e.Kind.String())
	}
	return b.String()
}

// ErrUnanswered is a cause of Unavailable: the connection ended after a request was sent, or a part of it, so it may have been carried out.
var ErrUnanswered = errors.New("the connection ended before the answer came")

// ErrLost is a cause of Unavailable: the only node that had some of the bytes has died.
var ErrLost = errors.New("they are lost")

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// KindOf returns the kind of the outermost *Error in err's chain that has one,
// and Other if there is none.
func KindOf(err error) Kind {
	for err != nil {
		var e *Error
		if !errors.As(err, &e) {
			return Other
		}
		if e.Kind != Other {
			return e.Kind
		}
		err = e.Err
	}
	return Other
}

// Is reports whether err is of kind k.
func Is(err error, k Kind) bool { return err != nil && KindOf(err) == k }
