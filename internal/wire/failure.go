package wire

import (
	"context"
	"errors"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// A request and its answer on the control lane; either side may give up:
//
//	client                                    server
//	   | request, id -------------------------->|
//	   |<------------------ reply or Failure, id|
//	   | Cancel, id --------------------------->|  the client gave up: stop

// Failure answers a request that failed.
type Failure struct {
	Kind errs.Kind
	Op   string
	Node dsm.NodeID // where it failed
	Area dsm.AreaID
	Path string
	Text string // the cause, for people
}

// Cancel says that nobody waits for the answer to the request any more.
type Cancel struct{}

// FailureOf describes err for another node. self is the node where it happened, unless err names a
// node. Text is truncated to 4 KiB.
func FailureOf(err error, self dsm.NodeID) *Failure {
	f := &Failure{Kind: errs.KindOf(err), Node: self, Text: err.Error()}
	var e *errs.Error
	if errors.As(err, &e) {
		f.Op, f.Area, f.Path, f.Text = e.Op, e.Area, e.Path, ""
		if e.Node != 0 {
			f.Node = e.Node
		}
		if e.Err != nil {
			f.Text = e.Err.Error()
		}
	} else if errors.Is(err, context.DeadlineExceeded) {
		f.Kind = errs.Timeout
	} else if errors.Is(err, context.Canceled) {
		f.Kind = errs.Interrupted
	}
	const most = 4096
	f.Text, f.Path = f.Text[:min(len(f.Text), most)], f.Path[:min(len(f.Path), most)]
	return f
}

// Err is the inverse of FailureOf.
func (f *Failure) Err() *errs.Error {
	e := &errs.Error{Kind: f.Kind, Op: f.Op, Node: f.Node, Area: f.Area, Path: f.Path}
	if f.Text != "" {
		e.Err = errors.New(f.Text)
	}
	return e
}
