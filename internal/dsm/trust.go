package dsm

// NodeKey is the public key of a node (Ed25519). A process draws one when it starts, so it belongs
// to one incarnation, as the NodeID does. Zero: none, in a cluster without encryption.
type NodeKey [32]byte

// Trust is how the nodes of an encrypted cluster know each other. Every member has it in its replica
// of the catalog, so each can let others in and sign its own certificate. It is immutable once
// shared, and must not get into a log.
type Trust struct {
	Serial uint64   // counts the changes
	CA     []byte   // certificate of the authority, DER
	CAKey  []byte   // its Ed25519 seed
	Tokens []Secret // who knows one may ask for a certificate
	// Gossip has the keys of gossip: the next, the one in use, the one before. So a node that lags by
	// one change still understands the others.
	Gossip [][]byte
	// Turned is when they last took turns, Unix seconds.
	Turned int64
	// Left has the nodes that are not members any more, as long as a certificate of theirs may be valid.
	Left []Departed
}

// Secret is what a join token proves to know.
type Secret struct {
	Bytes   []byte
	Expires int64 // Unix seconds; 0: never
}

// Departed is a node that was a member.
type Departed struct {
	ID   NodeID
	At   int64 // Unix seconds
	Gone bool  // it was given up, and may join again; otherwise it left, and may still have to say goodbye
	Key  NodeKey
}
