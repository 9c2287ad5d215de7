// Package transport carries everything between nodes over one TCP and one UDP
// port per node: the lanes.
//
//   - data: ordered frames from one node to another. For each ordered pair of
//     nodes the sender keeps one connection: a session. A frame of a session arrives
//     once and in order, or the session breaks, and both ends are told by OnReset.
//   - control: requests and replies by address, since who joins knows no more.
//   - raft, gossip: byte streams, and datagrams for gossip.
//
// A TCP connection starts with a hello that names lane, cluster, sender and
// target (hello.go); one that does not is closed and counted and changes nothing.
// The target is a node, which is one incarnation of a process: what was meant
// for the one that had this address before is refused.
//
// # Sessions
//
// A break loses what was queued or under way; OnReset comes after the last
// frame of the broken session and before the first of the next, on both ends. Frames that are
// sent between the break and the call of OnReset are lost with the session;
// those after, also from other goroutines while OnReset runs, belong to the next one.
// So a protocol that resends on OnReset must take its messages in any order
// around it. The receiver hears of a break twice when it notices it before the
// sender does: what it asked for in between may have been lost too.
//
// # Who writes
//
// What is sent to a node waits in a queue, which the sender himself writes if that takes one system call and
// no waiting, else a goroutine. A sender with more to say says so, and the messages leave together; so do the
// answers that OnFrame makes, when the frames that have come are handled. So a message waits for another
// only while somebody is at it who will flush the queue.
//
// # Concurrency
//
// Every callback runs on a goroutine of its own connection with no lock held,
// and may call anything but Close. A slow OnFrame holds up the frames of that
// peer only: first TCP pushes back, then the sender's queue grows to its bound and
// the session breaks.
package transport
