package catalog

import (
	"cmp"
	"maps"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// fate says what happened with an entry of the log.
type fate uint8

const (
	happened fate = iota
	repeated      // it was applied before: the result is that one
	ignored       // its proposer gave it up, or it is not a command
)

// outcome is the effect of an entry of the log.
type outcome struct {
	command
	fate    fate
	result  result
	effects effects
}

// apply carries out the entry of the log at index, once for each command. An error means that the
// entry is not a command.
func (s *state) apply(index uint64, data []byte) (outcome, error) {
	s.applied = index
	c, o, err := decodeCommand(data)
	out := outcome{command: c}
	if err != nil {
		out.fate = ignored
		return out, err
	}
	first := c.Kind == kindBootstrap && s.view.Cluster == 0
	if m, member := s.view.Member(c.Node); (!member || m.Gone || m.Inc != c.Inc) && !first {
		// The results of nodes that left are forgotten, and those of nodes that were evicted are kept for their next incarnations only. So
		// their commands must not be applied: they may have been applied before.
		out.result = resultOf(dsm.Inode{}, fail(errs.Evicted, "node %s is no member", c.Node))
		return out, nil
	}
	ses := s.sessions[c.Node]
	if ses == nil {
		ses = &session{results: make(map[uint64]result)}
		s.sessions[c.Node] = ses
	}
	if c.Req < ses.low {
		out.fate = ignored
		return out, nil
	}
	if r, ok := ses.results[c.Req]; ok {
		out.fate, out.result = repeated, r
		return out, nil
	}
	s.effects = effects{}
	out.result = resultOf(o.apply(s, c.step(index)))
	if s.sessions[c.Node] == ses { // unless the node removed itself
		ses.results[c.Req] = out.result
		ses.forget(c.Low)
	}
	out.effects, s.effects = s.effects, effects{}
	return out, nil
}

// configure records which members vote, according to the entry of the log at index.
func (s *state) configure(index uint64, votes func(dsm.Member) bool) effects {
	s.applied = index
	s.setVoters(votes)
	e := s.effects
	s.effects = effects{}
	return e
}

// sortedKeys returns the keys of m in order.
func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
