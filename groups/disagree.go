package groups

import (
	"fmt"
	"strings"

	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// collective is what members call together.
func collective(round bool) string {
	if round {
		return "round"
	}
	return "barrier"
}

// agree refuses the arrivals of members that call a barrier where others call a round, or the other way round. What counts is the call of those
// who came first, as long as one of them lives.
func (c *coordinator) agree() {
	number := c.done + 1
	first := -1
	for rank, s := range c.at {
		if s == nil || s.Arrived < number {
			continue
		}
		if first < 0 {
			first = rank
		}
		if c.called == number && s.Round == c.round {
			first = rank
			break
		}
	}
	if first < 0 {
		return
	}
	c.called, c.round = number, c.at[first].Round
	var ranks []string
	var others []int
	for rank, s := range c.at {
		switch {
		case s == nil || s.Arrived < number:
		case s.Round != c.round:
			others = append(others, rank)
		case len(ranks) < maxNamed:
			ranks = append(ranks, fmt.Sprint(rank))
		case len(ranks) == maxNamed:
			ranks = append(ranks, "...")
		}
	}
	if len(others) == 0 {
		return
	}
	who := "rank "
	if len(ranks) > 1 {
		who = "ranks "
	}
	text := fmt.Sprintf("number %d is a %s of %s, and a %s of this member", number, collective(c.round), who+strings.Join(ranks, " "), collective(!c.round))
	for _, rank := range others {
		s := c.at[rank]
		c.peers[c.members[rank].Node].disagrees(s, disagreement{number, wire.GroupRefusal{Seat: s.ID, Try: s.Tries, Kind: errs.Invalid, Text: text}})
	}
}

// maxNamed bounds the ranks that an error names.
const maxNamed = 8

// disagreement is an arrival that does not count.
type disagreement struct {
	number  uint64
	refusal wire.GroupRefusal
}

// disagrees refuses the arrival of a seat.
func (p *peer) disagrees(s *wire.GroupSeat, d disagreement) {
	if p.disagree == nil {
		p.disagree = make(map[uint64]disagreement)
	}
	p.disagree[s.ID] = d
	p.refused = append(p.refused, d.refusal)
	s.Arrived = d.number - 1
}

// stillDisagree sees to it that what was refused is not taken for an arrival when the node reports it once more, before it has heard of that.
func (p *peer) stillDisagree() {
	before := p.disagree
	p.disagree = nil
	for i := range p.seats {
		s := &p.seats[i]
		if d, refused := before[s.ID]; refused && d.refusal.Try == s.Tries && d.number == s.Arrived {
			p.disagrees(s, d)
		}
	}
}

// disagreesLocked takes back an arrival that the coordinator has refused. An older one is over already.
func (m *Member) disagreesLocked(r wire.GroupRefusal) {
	if r.Try != m.seat.Tries || r.Try == m.refused || m.group.done >= m.seat.Arrived {
		return
	}
	m.refused, m.refusal = r.Try, errs.E(r.Kind, "group", "%s", r.Text)
	m.seat.Arrived--
	m.withdrawLocked()
}
