package fs

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/dsmfs/dsmfs/groups"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// groupTalk is a membership that is an open file: a shell writes a line, and reads one line of answer.
//
//	join SIZE [SECONDS]     rank=0 size=4       waits 300 s unless told otherwise
//	barrier [SECONDS]       number=1 missing=   the ranks that nobody has, with commas
//	round PATH...           the same; puts together what all members have stored in the files
//	add NAME NUMBER         value=1
//	tick [SLACK]            clock=1 ahead=0
//	leave                   left
//
// What goes wrong is "error: " and the reason. Closing the file leaves the group.
type groupTalk struct {
	mount controlMount
	group dsm.AreaID
	who   dsm.Credentials
	ctx   context.Context // ends with the file
	end   context.CancelFunc
	said  chan string
	heard chan string

	// These belong to run.
	member *groups.Member
	number uint64 // of the last barrier
}

// maxSaid bounds the lines that wait, and the answers.
const maxSaid = 64

// newGroupTalk returns one that talks has counted.
func newGroupTalk(m controlMount, group dsm.AreaID, who dsm.Credentials) *groupTalk {
	t := &groupTalk{mount: m, group: group, who: who, said: make(chan string, maxSaid), heard: make(chan string, maxSaid)}
	t.ctx, t.end = context.WithCancel(m.b.life)
	go t.run()
	return t
}

// Say implements control.Talk.
func (t *groupTalk) Say(line string) error {
	select {
	case t.said <- line:
		return nil
	default:
		return errs.E(errs.WouldBlock, "write", "%d lines have no answer yet", maxSaid)
	}
}

// Hear implements control.Talk.
func (t *groupTalk) Hear(ctx context.Context) (string, error) {
	select {
	case answer := <-t.heard:
		return answer, nil
	case <-ctx.Done():
		return "", errs.E(errs.Interrupted, "read", "")
	}
}

// End implements control.Talk.
func (t *groupTalk) End() { t.end() }

// run answers one line after the other.
func (t *groupTalk) run() {
	defer t.mount.b.talks.end(t.who.UID)
	defer t.leave()
	for {
		select {
		case line := <-t.said:
			answer, err := t.answer(strings.Fields(line))
			if err != nil {
				answer = "error: " + err.Error()
			}
			select {
			case t.heard <- answer + "\n":
			case <-t.ctx.Done():
				return
			}
		case <-t.ctx.Done():
			return
		}
	}
}

func (t *groupTalk) leave() {
	if t.member != nil {
		t.member.Leave()
		t.member = nil
	}
}

var errUsage = errors.New("want join SIZE [SECONDS], barrier [SECONDS], round PATH..., add NAME NUMBER, tick [SLACK] or leave")

func (t *groupTalk) answer(words []string) (string, error) {
	if len(words) == 0 {
		return "", errUsage
	}
	verb, words := words[0], words[1:]
	switch {
	case verb == "join" && t.member == nil && len(words) > 0:
		return t.join(words)
	case t.member == nil:
		return "", errors.New("join SIZE comes first")
	case verb == "barrier" && len(words) <= 1:
		ctx, cancel, err := t.within(words, 0)
		if err != nil {
			return "", err
		}
		defer cancel()
		return t.barrier(ctx)
	case verb == "round" && len(words) > 0:
		return t.round(words)
	case verb == "add" && len(words) == 2:
		delta, err := strconv.ParseInt(words[1], 10, 64)
		if err != nil {
			return "", err
		}
		v, err := t.member.Add(t.ctx, words[0], delta)
		return fmt.Sprintf("value=%d", v), err
	case verb == "tick" && len(words) <= 1:
		slack, err := strconv.ParseUint(append(words, "0")[0], 10, 64)
		if err != nil {
			return "", err
		}
		k, err := t.member.Tick(t.ctx, t.member.Ticks()+1, slack)
		return fmt.Sprintf("clock=%d ahead=%d", k.Ticks, k.Ahead), err
	case verb == "leave" && len(words) == 0:
		t.leave()
		return "left", nil
	}
	return "", errUsage
}

// within returns a context that ends after the seconds that the first word says, or else after the
// given time; 0: never.
func (t *groupTalk) within(words []string, usual time.Duration) (context.Context, context.CancelFunc, error) {
	if len(words) > 0 {
		s, err := strconv.ParseFloat(words[0], 64)
		if err != nil || !(s > 0 && s < 1e9) {
			return nil, nil, fmt.Errorf("%q: want seconds", words[0])
		}
		usual = time.Duration(s * float64(time.Second))
	}
	if usual == 0 {
		ctx, cancel := context.WithCancel(t.ctx)
		return ctx, cancel, nil
	}
	ctx, cancel := context.WithTimeout(t.ctx, usual)
	return ctx, cancel, nil
}

func (t *groupTalk) join(words []string) (string, error) {
	size, err := strconv.Atoi(words[0])
	if err != nil {
		return "", err
	}
	ctx, cancel, err := t.within(words[1:], 5*time.Minute)
	if err != nil {
		return "", err
	}
	defer cancel()
	m, err := t.mount.b.cfg.Groups.Join(ctx, t.group, size)
	if err != nil {
		return "", err
	}
	t.member, t.number = m, m.First()-1
	return fmt.Sprintf("rank=%d size=%d", m.Rank(), size), nil
}

func (t *groupTalk) barrier(ctx context.Context) (string, error) {
	return t.met(t.member.Barrier(ctx, t.number+1))
}

// met is the answer to what has a result.
func (t *groupTalk) met(r groups.Result, err error) (string, error) {
	if err != nil {
		t.number = max(t.number, r.Number) // the round may be over all the same
		return "", err
	}
	t.number = r.Number
	missing := make([]string, len(r.Missing))
	for i, rank := range r.Missing {
		missing[i] = strconv.Itoa(rank)
	}
	return fmt.Sprintf("number=%d missing=%s", r.Number, strings.Join(missing, ",")), nil
}

func (t *groupTalk) round(paths []string) (string, error) {
	areas := make(map[dsm.AreaID]groups.Area)
	for _, path := range paths {
		i, err := t.file(path)
		if err != nil {
			return "", err
		}
		areas[i.Area()] = mountedArea{t.mount.b, i.Area()}
	}
	return t.met(t.member.Meet(t.ctx, t.number+1, areas, t.mount.b.cfg.FaultTimeout))
}

// file returns the file at a path from the root of the filesystem, which the user may write.
func (t *groupTalk) file(path string) (dsm.Inode, error) {
	ctx, cancel := t.mount.b.lasting()
	defer cancel()
	i, err := t.mount.Getattr(ctx, dsm.RootIno)
	for _, name := range strings.FieldsFunc(path, func(r rune) bool { return r == '/' }) {
		switch {
		case err != nil:
			return i, err
		case i.Kind != dsm.KindDir:
			return i, &errs.Error{Op: "round", Path: path, Kind: errs.NotDir}
		case !t.who.May(i, dsm.MaySearch):
			return i, &errs.Error{Op: "round", Path: path, Kind: errs.Access}
		}
		i, err = t.mount.Lookup(ctx, i.Ino, name)
	}
	switch {
	case err != nil:
		return i, err
	case i.Kind != dsm.KindFile:
		return i, &errs.Error{Op: "round", Path: path, Kind: errs.IsDir}
	case !t.who.May(i, dsm.MayWrite):
		return i, &errs.Error{Op: "round", Path: path, Kind: errs.Access}
	}
	return i, nil
}
