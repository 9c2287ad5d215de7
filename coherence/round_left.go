package coherence

import (
	"cmp"
	"slices"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// A daemon that was killed may leave parts of a round. The homes have them, or not; they have merged them, or will, or they are not in the round, and no program of
// this node ends it: with the daemon they have left their groups. But the others may be ending it, and count on these parts. So the daemon that follows sends them
// again under their numbers, and answers for them like one that is slow to end the round:
//
//	the others end the round with this node       the homes merge the parts, and ack
//	the others end it without this node           the homes give them back, and what programs have stored is published
//	a program of the node comes with that round   it is not over, or the program would not be in it, so the parts are in none: they are taken back before
//	another life of the group                     likewise: no member of the one before is left
//	none of these within Config.RoundPatience     they are taken back; the others have waited for so long as well
//
// If the daemon before was taking them back, so does this one (sentGone). A home may have given a part back already, and its answer come late. If the part was sent again for the round
// meanwhile, it would count there, and be published when the answer comes.
//
// What had been accumulated is dropped when it is taken back, as ever.

// DefaultRoundPatience is how long parts of a round stay that an earlier daemon has left, if nobody ends the round.
const DefaultRoundPatience = 30 * time.Second

// partLeftLocked takes over a part.
func (a *Area) partLeftLocked(e dsm.ExtentIndex, x *replicaExtent, pub *publication) {
	c := a.mu.replica.contribution
	if c == nil {
		c = a.contributionLocked(pub.round)
		c.whole, c.left = true, true
	}
	c.gone = c.gone || pub.kept.Head(sentGone) != 0
	a.keepPartLocked(x, pub)
	a.busyLocked(e, x)
	a.contributesLocked(pub, +1)
}

// endLeftLocked ends a contribution that was left when it has no part any more, and none is being made again, by other rules.
func (a *Area) endLeftLocked() {
	c := a.mu.replica.contribution
	joins := func(e dsm.ExtentIndex) bool { return a.extentLocked(e).joins }
	if c != nil && c.left && c.parts == 0 && !slices.ContainsFunc(a.busyExtentsLocked(), joins) {
		a.abandonLocked()
	}
}

// mayEndWithout reports whether others may be ending the round of a contribution that was left, when a program of this node comes with round id. The program waits.
func (c *contribution) mayEndWithout(id dsm.RoundID) bool {
	otherLife := c.id.Group == id.Group && c.id.Generation != id.Generation
	return c.left && !c.gone && c.id != id && !otherLife
}

// endLeftLater has endLeft be called if there is something to end.
func (n *Node) endLeftLater() {
	some := false
	for _, a := range n.all() {
		a.note(func() { some = some || a.mu.replica.contribution != nil })
	}
	if !some {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.left = time.AfterFunc(cmp.Or(n.cfg.RoundPatience, DefaultRoundPatience), n.endLeft)
}

// endLeft takes back the parts that an earlier daemon has left.
func (n *Node) endLeft() {
	for _, a := range n.all() {
		a.step(func() {
			if c := a.mu.replica.contribution; c != nil && c.left {
				a.abandonLocked()
			}
		})
	}
}
