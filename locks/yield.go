package locks

import "github.com/dsmfs/dsmfs/internal/dsm"

// Yield is the word of a node that it holds no lock of a file that is delegated to it in that term,
// and grants none in that term any more. The command of another node brings it to the book. The zero
// Yield is no word. Used says that the node has granted locks in that term.
type Yield struct {
	Term uint64
	Used bool
}

// idleLocked reports whether no program of this node has a lock of the file or asks for one.
func (n *Node) idleLocked(ino dsm.Ino) bool {
	if n.mu.resuming {
		return false
	}
	for _, w := range n.mu.asked {
		if w.ino == ino {
			return false
		}
	}
	return n.mu.local.tables[ino] == nil
}

// Yield gives up the delegation of that term for another node, which the leader of the catalog asks
// for before it appends that node's command. It is refused if programs of this node lock the file.
func (n *Node) Yield(ino dsm.Ino, term uint64) (y Yield, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f := n.mu.files[ino]
	if f == nil || !f.delegated || f.surrendering || f.term != term || !n.idleLocked(ino) {
		return Yield{}, false
	}
	f.yielded = true
	return Yield{Term: term, Used: f.used}, true
}
