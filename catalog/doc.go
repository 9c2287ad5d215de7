// Package catalog keeps what all nodes must agree on: names, sizes, attributes, extended attributes
// and specs of files, which node claims which inode, the locks of files, the members of the cluster
// and the slot table. It owns one small deterministic state machine, replicated by raft to every
// node; it is the only importer of raft.
//
//	names.go attrs.go spec.go xattr.go                        what a command does:
//	members.go slots.go backups.go assign.go reserve.go shrinks.go   to names and to memory
//	state.go command.go session.go apply.go snapshot.go       the state machine around them
//	catalog.go fsm.go reign.go voters.go early.go push.go     raft around that
//	logstore.go snapstore.go streams.go pipeline.go           what raft needs
//	change.go propose.go abandon.go                           changes
//	query.go reads.go lease.go grants.go                      reads
//	locks.go yield.go                                         locks of files
//	join.go leave.go gone.go serve.go                         members
//	trust.go                                                  keys and tokens of the cluster
//	signs.go fence.go evict.go succeed.go                     their leases
//	apart.go                                                  members that do not reach each other
//
// # Promises
//
// Changes and reads are linearizable on every node: each takes effect at one moment between its
// call and its return. A change happens at most once, however often it is sent: each node numbers
// its commands, and the state machine keeps the result of every command for which the node may
// still wait (session.go). When a change returns, this node has applied it. Timestamps come from
// the node that proposes, but an inode's ctime never goes back.
//
// A change costs the way to the leader and, with the entry, the way back, if these two nodes are
// enough to commit it (early.go), as in a cluster of three. Otherwise it costs one round from the
// leader to a majority of the voters, and one message back (push.go). A read under a lease costs
// nothing (lease.go). Without a lease it costs one round to the leader and, unless that is enough,
// one from there to the voters (reads.go). On a node that leads alone it costs no message. A change
// first takes the leases away from the other nodes.
//
// # Members and voters
//
// Every member has a replica. One member votes in a cluster of one or two, three in a cluster of
// three or four, five in a larger one. The leader appoints them as members come and go (voters.go).
// A dead member stays a member until it is certain that its process has ended (gone.go). A dead
// minority of the voters stops nothing.
//
// # Memory only
//
// Log, term, vote and snapshots are in memory (logstore.go, snapstore.go): what the catalog
// describes is memory too, and ends with the last node. Raft expects them to survive a restart,
// because a server that forgets its vote could vote twice in a term, and one that forgets its log
// could elect a leader without entries that it acknowledged. Here no server restarts. A raft
// ServerID is the NodeID, drawn at random when the process starts, and the incarnation, which grows
// when a node that was evicted joins again; so each is a new server without a vote, which has to
// join, and to raft the old one is dead for ever. Both may have the same address, so streams and
// requests name the node that they are for, and streams the incarnation, and no other answers them.
//
// A node that is held (held.go) is the exception: it comes back as the same server, with its log and its vote.
//
// The price: a majority of the voters must not die at the same time, whether they are restarted or
// not.
//
// # Concurrency
//
// One goroutine of raft applies the log. It changes the state under Catalog.mu, and calls the
// Observer after it has released mu. Only then the applied index advances, for which reads and
// changes wait. Readers hold mu for reading, for the length of a map access. The other mutexes
// (progress, calls, rounds, lease, grants, signs, met, heir, reign, bell, pushers, layer) guard their own fields. No
// two locks are held at once, except that pushers.mu and reign's are held over calls of context and raft
// that do not block. None is held over the network.
package catalog
