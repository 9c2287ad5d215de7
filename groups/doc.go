// Package groups lets programs on several nodes act together: they meet at barriers, count, and
// keep their clocks close to each other. A group is named by a file.
//
//	node.go member.go         what the programs of a node use
//	local.go                  a node's side of a group
//	coordinator.go            the other side: the one node that decides
//	takeover.go counter.go    parts of it
//	disagree.go               members that call different things
//	parked.go                 what waits for a view
//	valid.go                  what another node may say
//	round.go                  barriers at which areas are put together
//	inspect.go figures.go     what people see
//
// # Who decides
//
// The coordinator of a group is the home of the first extent of its file, or, if that node is gone,
// one that all nodes choose alike. So every node knows it from its view, and asks nobody.
//
// Nothing is stored. A coordinator only knows what the nodes report, and each report has all that
// the programs of a node have to say: who they are, at which barrier they have arrived, which
// additions have no answer yet. So a broken session costs one more report, and a new coordinator gets
// from the reports what the last one knew, as far as anybody alive has seen it.
//
// # Why two coordinators never contradict each other
//
// A new coordinator calls all nodes of its view, and decides nothing before each has answered or is
// gone. A node answers when its view is as new as the caller's. From then on it reports to no older
// coordinator, and drops what one of them sends: each message has the reign that it belongs to,
// which is the epoch of the coordinator's view when it took over. What older ones have decided is
// either known to a node that answers, or to nobody.
//
// # Barriers
//
// A member counts the barriers it has arrived at, and may begin the next one when it knows that the
// last is over. So a coordinator ends barrier n when all members that live have arrived at n, and
// the numbers of any two members differ by one at most.
//
// A member is gone when its program ends or leaves, or when its node is gone in the view. Its rank
// is free then, and barriers end without it and say so. Whoever takes the rank is waited for from
// the next barrier on.
//
// The coordinator names who took part, and all keep that as it was: the members may be others when
// a node hears of the end. A node whose last program has left keeps the result until all have it.
//
// # Members that disagree
//
// Of those who arrive at number n, the first decides whether that is a barrier or a round. Who then
// calls the other is refused: it has not arrived, is told what the others call, and may do the same.
// A refusal is for one arrival and for good, also if the others die meanwhile, because the program
// may have read it. Arrivals are numbered, so it is not taken for one of a later arrival. A new
// coordinator does not know who came first, and goes by rank.
//
// # Rounds
//
// A round of areas is a barrier: it has its number, and the data plane is told who took part. Each
// member contributes before it arrives, and finishes when it leaves. The members of a node share
// what the node contributes, so this package counts them: when the last of them is gone, without an
// end of the round, the contribution is taken back.
//
// They also share the memory from which each gets the end of the round. So none of them contributes to
// the next round before all of them have this one, or are gone. Nobody waits longer for that: the next
// round cannot end without them.
//
// # Counters
//
// An addition is reported until it is answered, and has a number, so it counts once. The answer has
// the value, and also all additions up to there that may not have been answered yet: if only one
// node that saw the value is left, it still knows which additions are in it.
//
// The value that a program has seen outlives its node, and any other one: a program of another node
// than the coordinator's has the answer there and here, one of the coordinator's own gets it when
// another node with members has all counters and has said so. A node whose last program leaves, and
// a coordinator that is replaced, keep the counters until another has them.
//
// # Concurrency
//
// All of a group is a step: a report, a state, a view or a call of a program, under the lock of
// Node, which makes messages and nothing else. They are sent when the lock is released, in the order
// of the steps. Programs are woken with no lock held too.
package groups
