package dsm

import (
	"fmt"
	"strconv"
)

// NodeID names one incarnation of a node. It is drawn at random when the process starts, so a node
// that restarts is a new node, and no message to or from its predecessor can be mistaken for one of
// its own. Zero is no node.
type NodeID uint64

// String returns the id as it appears in logs, /.dsm and the command line.
func (n NodeID) String() string { return fmt.Sprintf("%016x", uint64(n)) }

// ParseNodeID reads what String wrote.
func ParseNodeID(s string) (NodeID, error) {
	v, err := strconv.ParseUint(s, 16, 64)
	if err != nil || v == 0 {
		return 0, fmt.Errorf("node id %q: want 16 hexadecimal digits, not all zero", s)
	}
	return NodeID(v), nil
}

// ClusterID names a cluster. Its first node draws it; two clusters never merge.
type ClusterID uint64

// String returns the id in hexadecimal.
func (c ClusterID) String() string { return fmt.Sprintf("%016x", uint64(c)) }

// AreaID names an area. It is the inode number of the file and never reused.
type AreaID uint64

// Ino is an inode number. Regular files are areas: AreaID(ino).
type Ino uint64

// RootIno is the root directory.
const RootIno Ino = 1

// Epoch counts the changes of the view (members and slot table).
type Epoch uint64

// Generation is the catalog index of the last change to an area's rules or of its last shrink,
// whichever is newer. A message made under an older one is refused.
type Generation uint64

// Seq numbers the publishes of one node to one area, from 1.
type Seq uint64
