// Package catalog keeps what all nodes must agree on: names, sizes, attributes,
// extended attributes and specs of files, who holds which inode, the members of
// the cluster and the slot table. It owns one small deterministic state machine,
// replicated by raft to every node; it is the only importer of raft.
//
//	names.go attrs.go spec.go xattr.go                        what a command does,
//	members.go slots.go reserve.go                            of names and of memory
//	state.go command.go session.go apply.go snapshot.go       the state machine around them
//	catalog.go fsm.go reign.go voters.go early.go push.go     raft around that
//	change.go propose.go                                      changes
//	query.go reads.go lease.go grants.go                      reads
//	join.go leave.go gone.go serve.go                         members
//
// # Promises
//
// Changes and reads are linearizable on every node: each takes effect at one
// moment between its call and its return. A change happens at most once, however often it is
// sent: commands are numbered by their node, and the state machine keeps the
// result of every command that its node may still wait for (session.go). When
// a change returns, this node has applied it. Timestamps come from the node
// that proposes, but an inode's ctime never goes back.
//
// A change costs the way to the leader, and from there, with the entry, back to the node that makes it, if the two are
// enough to commit it (early.go), as in a cluster of three; else one round
// from the leader to a majority of the voters, and one message back (push.go). A read under a lease costs nothing (lease.go).
// Without, it costs one round to the leader and, unless that suffices, one from there to
// the voters (reads.go); on a node that leads alone it costs no message. A change takes the
// leases of the other nodes away first.
//
// # Members and voters
//
// Every member has a replica. One votes in a cluster of one or two, three from
// three on, five from five on; the leader appoints them as members come and go
// (voters.go). A dead member stays one until it is certain that its process has ended (gone.go); a dead
// minority of the voters stops nothing.
//
// # Memory only
//
// Log, term, vote and snapshots are in memory (logstore.go, snapstore.go): what
// the catalog describes is memory too and ends with the last node.
// Raft wants them to survive a restart, because a server that forgets its
// vote could vote twice in a term, and one that forgets its log could elect a
// leader without entries that it acknowledged. Here no server restarts: a raft
// ServerID is the NodeID, drawn at random when the process starts. A process
// that starts again is a new server without a vote, and has to join; to raft the
// old one is dead for ever. Its address may be the same, so streams and
// requests name the node that they are for, and no other answers.
//
// The price: a majority of the voters must not die at the same time, restarted
// or not.
//
// # Concurrency
//
// One goroutine of raft applies the log, changes the state under Catalog.mu,
// and calls the Observer after it has let go of it; only then the applied index that
// reads and changes wait for advances. Readers hold mu for reading, for the
// length of a map access. The other mutexes (progress, calls, rounds, lease, grants, reign,
// bell, pushers, layer) guard their own fields, and no two are held at once,
// but that pushers.mu and reign's are held over calls of context and raft that do
// not block. Nothing is held over the network.
package catalog
