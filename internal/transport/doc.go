// Package transport carries everything between nodes, over one TCP and one UDP port of each node,
// in lanes:
//
//   - data: ordered frames from one node to another. For each ordered pair of nodes the sender
//     keeps one connection: a session. A frame of a session arrives once and in order, or the
//     session breaks, and both ends are told by OnReset.
//   - control: requests and replies by address, because a node that joins knows no more.
//   - raft, gossip: byte streams, and datagrams for gossip.
//
// A TCP connection starts with a hello that names lane, cluster, sender and target (hello.go). A
// connection without one is closed and counted, and changes nothing. The target is a node, that is,
// one process: connections meant for an earlier process at the same address are
// refused.
//
// # Sessions
//
// A break loses what was queued or under way. On both ends OnReset comes after the last frame of
// the broken session and before the first of the next. Frames sent between the break and the call
// of OnReset are dropped with the session; frames sent later belong to the next one, even if another
// goroutine sends them while OnReset runs. So a protocol that resends on OnReset must accept its
// messages in any order around that moment. If the receiver hears of a break before the sender does,
// it is told twice, because what it asked for in between may have been dropped too. A process that follows
// another one (Config.Heir) is told before the first frame of each peer: answers to what it has asked
// for may have been dropped in a session with the process before.
//
// # Who writes
//
// What is sent to a node waits in a queue. The sender writes the queue itself if that takes one
// system call and no waiting; otherwise a goroutine writes it. A sender that is about to send more
// says so, and the messages leave together. So do the answers that OnFrame makes, when the frames
// that have arrived are handled. So a message waits for others only while a goroutine is at work
// that will flush the queue.
//
// # Concurrency
//
// Every callback runs on a goroutine of its own connection with no lock held, and may call anything
// but Close. A slow OnFrame delays the frames of that peer only: first TCP pushes back, then the
// sender's queue grows to its limit and the session breaks.
package transport
