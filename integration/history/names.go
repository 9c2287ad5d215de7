package history

import (
	"fmt"
	"maps"
	"strings"

	"github.com/anishathalye/porcupine"
)

// Op is one operation on the names of one directory or on the size of one
// file; it is both the input and, with the answer, the output of a history.
type Op struct {
	Kind string // create unlink rename stat setsize append getsize
	A, B string
	Size int64

	Call, Done int64 // when it was under way, as in the history
}

// Answer is what the operation answered. An unknown one - the daemon died
// meanwhile - is an operation that may have happened, any time later, or not.
type Answer struct {
	Unknown bool
	Errno   string
	Ino     uint64
	Size    int64
}

// nameState is what is in a directory. The map is never changed once it is a state.
type nameState map[string]entry

// entry is one name: the inode number, or unseen if its create has an unknown
// answer and no stat has told it, and where the last rename took it from.
type entry struct {
	ino   int64
	from  string
	until int64 // when that rename answered
}

const unseen = -1

// Names is a directory: create is open(O_CREAT|O_EXCL).
//
// One thing differs from a local filesystem, and no FUSE filesystem can help it:
// of two concurrent rename(a, b) on different nodes both may succeed. The kernel
// looks up a, then b; if the other rename happens in between, it finds one inode
// under both names, for which rename(2) is defined to do nothing and succeed.
var Names = porcupine.Model{
	Init: func() any { return nameState{} },
	Step: func(state, input, output any) (bool, any) {
		s, op, got := state.(nameState), input.(Op), output.(Answer)
		e, found := s[op.A]
		want := "ENOENT"
		next := s
		switch {
		case op.Kind == "create" && found:
			want = "EEXIST"
		case op.Kind == "create":
			want = ""
			if next = s.with(op.A, entry{ino: int64(got.Ino)}); got.Unknown {
				next = s.with(op.A, entry{ino: unseen})
			}
		case op.Kind == "rename" && !found && s[op.B].from == op.A && s[op.B].until >= op.Call:
			return got.Unknown || got.Errno == "" || got.Errno == want, s
		case !found:
		case op.Kind == "unlink":
			want, next = "", s.without(op.A)
		case op.Kind == "rename":
			want, next = "", s.without(op.A).with(op.B, entry{ino: e.ino, from: op.A, until: op.Done})
		case got.Unknown:
		case e.ino == unseen:
			e.ino = int64(got.Ino)
			want, next = "", s.with(op.A, e)
		default:
			return got.Errno == "" && got.Ino == uint64(e.ino), s
		}
		return got.Unknown || got.Errno == want, next
	},
	Equal:             func(a, b any) bool { return maps.Equal(a.(nameState), b.(nameState)) },
	DescribeOperation: Describe,
}

// Sizes is the size of one file: a register that is set, and that an append adds to.
var Sizes = porcupine.Model{
	Init: func() any { return int64(0) },
	Step: func(state, input, output any) (bool, any) {
		op, got := input.(Op), output.(Answer)
		switch op.Kind {
		case "setsize":
			return got.Unknown || got.Errno == "", op.Size
		case "append":
			return got.Unknown || got.Errno == "", state.(int64) + op.Size
		}
		return got.Unknown || got.Errno == "" && got.Size == state.(int64), state
	},
	DescribeOperation: Describe,
}

func (s nameState) with(name string, e entry) nameState {
	next := s.without(name)
	next[name] = e
	return next
}

func (s nameState) without(name string) nameState {
	next := nameState{}
	for k, v := range s {
		if k != name {
			next[k] = v
		}
	}
	return next
}

// Describe is one line for an operation and its answer.
func Describe(input, output any) string {
	op, got := input.(Op), output.(Answer)
	call := strings.TrimSpace(op.Kind + " " + op.A + " " + op.B)
	switch {
	case got.Unknown:
		return call + ": unknown"
	case got.Errno != "":
		return call + ": " + got.Errno
	case strings.HasSuffix(op.Kind, "size"), op.Kind == "append":
		return fmt.Sprintf("%s %d: %d", call, op.Size, got.Size)
	}
	return fmt.Sprintf("%s: inode %d", call, got.Ino)
}
