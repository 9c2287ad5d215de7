package fs

import "github.com/dsmfs/dsmfs/internal/dsm"

// nodeID is the number by which the kernel knows an inode of the catalog. It is the inode's own. A directory may have
// others, for aliases: a count is in the bits from nodeShift on. The kernel takes them for several directories, and the
// daemon serves all of them as the one. Bit 63 is that of /.dsm.
type nodeID uint64

const (
	nodeShift = 48
	maxNodes  = 1 << (63 - nodeShift)
	rootNode  = nodeID(dsm.RootIno)
)

// nodeOf returns the k-th number of an inode.
func nodeOf(ino dsm.Ino, k uint64) nodeID { return nodeID(uint64(ino)&(1<<nodeShift-1) | k<<nodeShift) }

// inoOf returns which inode of the catalog a request is about. The number is not one of /.dsm.
func inoOf(node uint64) dsm.Ino { return dsm.Ino(node & (1<<nodeShift - 1)) }
