package membership

import (
	"fmt"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// State is what this node believes about another.
type State uint8

const (
	// Alive: it answers.
	Alive State = iota
	// Suspect: it did not answer this node, or another process took its address.
	Suspect
	// Dead: it did not refute the suspicion in time.
	Dead
	// Left: it said goodbye.
	Left
)

var stateNames = [...]string{"alive", "suspect", "dead", "left"}

func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("state %d", s)
}

// Peer is another node. It has been in State, as far as this node knows, since Since.
type Peer struct {
	ID    dsm.NodeID
	Name  string // for people
	Addr  string // as the node advertises it
	State State
	Since time.Time
}

// Names and addresses travel in memberlist's metadata, which has at most 512 bytes.
const (
	metaVersion = 1
	maxName     = 200
	maxAddr     = 260 // a host name of 253 bytes and a port
)

// encodeMeta encodes the name and the advertised address as metadata.
func encodeMeta(name, addr string) ([]byte, error) {
	if len(name) > maxName || len(addr) > maxAddr {
		return nil, errs.E(errs.Invalid, "gossip", "name %q at %q: want at most %d and %d bytes", name, addr, maxName, maxAddr)
	}
	b := append(make([]byte, 0, 2+len(name)+len(addr)), metaVersion, byte(len(name)))
	return append(append(b, name...), addr...), nil
}

// decodePeer decodes a node's memberlist name and metadata.
func decodePeer(node string, meta []byte) (Peer, error) {
	id, err := dsm.ParseNodeID(node)
	if err != nil || id.String() != node {
		return Peer{}, errs.E(errs.Corrupt, "gossip", "node %q: want a node id", node)
	}
	if len(meta) < 2 || meta[0] != metaVersion || len(meta) < 2+int(meta[1]) || len(meta) > 2+maxName+maxAddr {
		return Peer{}, errs.E(errs.Corrupt, "gossip", "node %v: metadata %q", id, meta)
	}
	name := 2 + int(meta[1])
	return Peer{ID: id, Name: string(meta[2:name]), Addr: string(meta[name:])}, nil
}
