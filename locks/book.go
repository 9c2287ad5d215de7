package locks

import (
	"fmt"
	"maps"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// Book is the state of all locks that the cluster agrees on. It is part of the catalog's state
// machine: plain data, changed only by commands, which all nodes apply in the same order. Each
// command returns the events that nodes must be told of.
type Book struct {
	set       set // the locks of files that are not delegated; for delegated files, the requests that wait for the recall
	delegated map[dsm.Ino]delegation
	last      uint64 // term
}

type delegation struct {
	node     dsm.NodeID
	term     uint64 // numbers the delegations of all files
	recalled bool
	passed   bool // it came from a node that had not used it
}

// What is the kind of an event.
type What uint8

const (
	// Answered is an answer to a request of the node.
	Answered What = iota
	// Delegated: from now on the node decides on locks of the file by itself, beginning with the
	// request of the ticket, if there is one.
	Delegated
	// Recalled: the node must surrender the file.
	Recalled
	// Surrendered: the node has surrendered or yielded the file.
	Surrendered
	// Ended: the node has closed the file and has no locks of it.
	Ended
	// Dropped: the node was taken for dead. Ino is 0.
	Dropped
	// Shared: another node has opened the file, which is delegated to the node.
	Shared
)

// Event is something that a node must be told. Events come in the order of the commands.
type Event struct {
	What   What
	Ino    dsm.Ino
	Node   dsm.NodeID
	Ticket uint64
	Answer Answer // to the ticket
	Term   uint64 // of the delegation
}

// NewBook returns an empty book.
func NewBook() *Book {
	b := &Book{delegated: make(map[dsm.Ino]delegation)}
	b.set.init()
	return b
}

func answered(ino dsm.Ino, answers []Answer) (events []Event) {
	for _, a := range answers {
		events = append(events, Event{What: Answered, Ino: ino, Node: a.Node, Ticket: a.Ticket, Answer: a})
	}
	return events
}

// Open says that a program of the node opens the file for writing; alone says that no other node has
// it open. Such a program may soon lock the file. So the node gets its locks delegated, which costs
// no command of its own, if it is alone or if the node that has them yields them. But what was passed
// on without being used is not passed on again: nobody seems to lock that file.
func (b *Book) Open(ino dsm.Ino, node dsm.NodeID, alone bool, y Yield) []Event {
	d, delegated := b.delegated[ino]
	switch {
	case alone && !delegated && b.set.tables[ino] == nil:
		return []Event{b.delegate(ino, node)}
	case !delegated || d.node == node || d.recalled:
		return nil
	}
	events, yielded := b.yielded(ino, y)
	switch {
	case !yielded:
		return []Event{{What: Shared, Ino: ino, Node: d.node}}
	case d.passed && !y.Used:
		return events
	}
	events = append(events, b.delegate(ino, node))
	d = b.delegated[ino]
	d.passed = !y.Used
	b.delegated[ino] = d
	return events
}

// yielded ends a delegation that its node has yielded, if this is still the one.
func (b *Book) yielded(ino dsm.Ino, y Yield) (events []Event, ok bool) {
	d, delegated := b.delegated[ino]
	if !delegated || d.recalled || y.Term != d.term {
		return nil, false
	}
	delete(b.delegated, ino)
	return []Event{{What: Surrendered, Ino: ino, Node: d.node}}, true
}

// Ask is a request of a node for a lock of a file.
func (b *Book) Ask(ino dsm.Ino, node dsm.NodeID, r Request, y Yield) (events []Event, err error) {
	if r.Lock.Owner.Node != node || !r.Lock.valid() || r.How > Test {
		return nil, fmt.Errorf("a request of node %s: %+v", node, r)
	}
	b.set.cancel(ino, node, r.Ticket) // in case this is a repetition of an earlier request
	d, delegated := b.delegated[ino]
	if delegated && d.node != node {
		if events, ok := b.yielded(ino, y); ok {
			more, err := b.Ask(ino, node, r, Yield{})
			return append(events, more...), err
		}
	}
	switch {
	case delegated && d.node == node && !d.recalled:
		if r.Renew == d.term {
			b.last++
			d.term = b.last
			b.delegated[ino] = d
		}
		return []Event{{What: Delegated, Ino: ino, Node: node, Ticket: r.Ticket, Term: d.term}}, nil
	case delegated && r.Lock.Type == Unlock:
		return answered(ino, []Answer{r.answer(Granted)}), nil // it can have none
	case delegated:
		t := b.set.table(ino)
		t.queue = append(t.queue, r)
		events := answered(ino, []Answer{r.answer(Queued)})
		if !d.recalled {
			events = append(events, Event{What: Recalled, Ino: ino, Node: d.node, Term: d.term})
		}
		d.recalled = true
		b.delegated[ino] = d
		return events, nil
	case b.set.tables[ino] == nil && r.How != Test && r.Lock.Type != Unlock:
		e := b.delegate(ino, node)
		e.Ticket = r.Ticket
		return []Event{e}, nil
	}
	return answered(ino, b.set.ask(ino, r)), nil
}

// Keeper returns the node whose word a command of another node that wants locks of the file should
// bring along: the locks are delegated to it in that term.
func (b *Book) Keeper(ino dsm.Ino, other dsm.NodeID) (keeper dsm.NodeID, term uint64, ok bool) {
	d, delegated := b.delegated[ino]
	return d.node, d.term, delegated && d.node != other && !d.recalled
}

// delegate begins a delegation.
func (b *Book) delegate(ino dsm.Ino, node dsm.NodeID) Event {
	b.last++
	b.delegated[ino] = delegation{node: node, term: b.last}
	return Event{What: Delegated, Ino: ino, Node: node, Term: b.last}
}

// Surrender ends the delegation of a file to the node. granted and waiting are what its programs have and wait for. It does nothing if the file is delegated in
// another term: then it is a late message, which does not know what the node has granted since.
func (b *Book) Surrender(ino dsm.Ino, node dsm.NodeID, term uint64, granted []Lock, waiting []Request) ([]Event, error) {
	var its table
	for _, l := range granted {
		if _, blocked := its.conflict(l); blocked || l.Owner.Node != node || !l.valid() || l.Type == Unlock {
			return nil, fmt.Errorf("a lock of node %s: %+v", node, l)
		}
		its.place(l)
	}
	for _, r := range waiting {
		if r.Lock.Owner.Node != node || !r.Lock.valid() || r.How != Wait {
			return nil, fmt.Errorf("a request of node %s: %+v", node, r)
		}
	}
	if d := b.delegated[ino]; d.node != node || d.term != term {
		return nil, nil
	}
	delete(b.delegated, ino)
	t := b.set.table(ino)
	t.granted, t.queue = its.granted, append(slices.Clone(waiting), t.queue...)
	events := []Event{{What: Surrendered, Ino: ino, Node: node}}
	if next, ok := t.heir(); ok {
		e := b.delegate(ino, next)
		for _, r := range t.queue {
			e.Ticket = r.Ticket
			events = append(events, e)
		}
		delete(b.set.tables, ino)
		return events, nil
	}
	return append(events, answered(ino, b.set.settle(ino))...), nil
}

// heir returns the node to which the file can be delegated next: nobody holds a lock of the file,
// and only programs of this node wait for one.
func (t *table) heir() (node dsm.NodeID, ok bool) {
	if len(t.granted) > 0 || len(t.queue) == 0 {
		return 0, false
	}
	node = t.queue[0].Lock.Owner.Node
	return node, !slices.ContainsFunc(t.queue, func(r Request) bool { return r.Lock.Owner.Node != node || r.How == Test })
}

// Cancel ends a request that waits. It is answered, unless it was answered before.
func (b *Book) Cancel(ino dsm.Ino, node dsm.NodeID, ticket uint64) []Event {
	if !b.set.cancel(ino, node, ticket) {
		return nil
	}
	return answered(ino, []Answer{{Node: node, Ticket: ticket, Verdict: Cancelled}})
}

// Close says that the node does not have the file open any more.
func (b *Book) Close(ino dsm.Ino, node dsm.NodeID) []Event {
	if _, delegated := b.delegated[ino]; !delegated && b.set.tables[ino] == nil {
		return nil
	}
	return append([]Event{{What: Ended, Ino: ino, Node: node}}, b.forget(ino, node)...)
}

// Drop removes all locks and requests of a node.
func (b *Book) Drop(node dsm.NodeID) (events []Event) {
	events = append(events, Event{What: Dropped, Node: node})
	for _, ino := range b.files() {
		events = append(events, b.forget(ino, node)...)
	}
	return events
}

// forget removes all that a node has of a file.
func (b *Book) forget(ino dsm.Ino, node dsm.NodeID) []Event {
	d, delegated := b.delegated[ino]
	if delegated && d.node != node {
		if t := b.set.tables[ino]; t != nil {
			t.queue = slices.DeleteFunc(t.queue, func(r Request) bool { return r.Lock.Owner.Node == node })
			b.set.tidy(ino)
		}
		return nil
	}
	delete(b.delegated, ino)
	return answered(ino, b.set.drop(ino, node))
}

// Remove forgets a file that was deleted. No node has it open.
func (b *Book) Remove(ino dsm.Ino) {
	delete(b.delegated, ino)
	delete(b.set.tables, ino)
}

// Delegated returns the files that are delegated to the node, in order.
func (b *Book) Delegated(node dsm.NodeID) (files []dsm.Ino) {
	for ino, d := range b.delegated {
		if d.node == node {
			files = append(files, ino)
		}
	}
	slices.Sort(files)
	return files
}

// Standing is the state of one file in the book, as one node sees it.
type Standing struct {
	Delegated, Recalled bool
	HasLocks            bool
	Term                uint64 // of the delegation
	Others              bool   // other nodes have the delegation, or locks or requests
}

// Standing returns the state of a file for a node.
func (b *Book) Standing(ino dsm.Ino, node dsm.NodeID) (s Standing) {
	d, delegated := b.delegated[ino]
	if delegated && d.node == node {
		s.Delegated, s.Recalled, s.Term = true, d.recalled, d.term
	}
	s.Others = delegated && d.node != node
	if t := b.set.tables[ino]; t != nil {
		s.Others = s.Others || slices.ContainsFunc(t.granted, func(l Lock) bool { return l.Owner.Node != node }) ||
			slices.ContainsFunc(t.queue, func(r Request) bool { return r.Lock.Owner.Node != node })
		s.HasLocks = slices.ContainsFunc(t.granted, func(l Lock) bool { return l.Owner.Node == node })
	}
	return s
}

func (b *Book) files() []dsm.Ino {
	all := slices.Concat(b.set.files(), slices.Collect(maps.Keys(b.delegated)))
	slices.Sort(all)
	return slices.Compact(all)
}

// Page is one file's part of the book, as it is stored in snapshots.
type Page struct {
	Ino      dsm.Ino
	Delegate dsm.NodeID // of the delegation
	Term     uint64
	Recalled bool
	Passed   bool
	Granted  []Lock
	Queue    []Request
}

// Pages returns a copy of the book, one Page for each file.
func (b *Book) Pages() (pages []Page) {
	for _, ino := range b.files() {
		d := b.delegated[ino]
		p := Page{Ino: ino, Delegate: d.node, Term: d.term, Recalled: d.recalled, Passed: d.passed}
		if t := b.set.tables[ino]; t != nil {
			p.Granted, p.Queue = slices.Clone(t.granted), slices.Clone(t.queue)
		}
		pages = append(pages, p)
	}
	return pages
}

// LastTerm returns the term of the newest delegation.
func (b *Book) LastTerm() uint64 { return b.last }

// ReadBook makes a book from pages and the last term, which may come from another node and are checked.
func ReadBook(pages []Page, last uint64) (*Book, error) {
	b := NewBook()
	b.last = last
	for _, p := range pages {
		if p.Delegate != 0 {
			b.delegated[p.Ino] = delegation{p.Delegate, p.Term, p.Recalled, p.Passed}
		}
		if len(p.Granted)+len(p.Queue) > 0 {
			b.set.tables[p.Ino] = &table{slices.Clone(p.Granted), slices.Clone(p.Queue)}
		}
	}
	return b, b.Check()
}

// Check returns an error if an invariant of the book is violated.
func (b *Book) Check() error {
	for _, ino := range b.files() {
		d, delegated := b.delegated[ino]
		t := b.set.tables[ino]
		switch {
		case d.term > b.last:
			return fmt.Errorf("locks of inode %d: delegated in term %d, the last is %d", ino, d.term, b.last)
		case t == nil:
			if d.recalled && !delegated {
				return fmt.Errorf("locks of inode %d: recalled from nobody", ino)
			}
			continue
		case t.empty():
			return fmt.Errorf("locks of inode %d: an empty table", ino)
		case delegated && (len(t.granted) > 0 || !d.recalled):
			return fmt.Errorf("locks of inode %d: delegated with %d locks granted", ino, len(t.granted))
		}
		if !slices.IsSortedFunc(t.granted, compareLocks) {
			return fmt.Errorf("locks of inode %d are out of order", ino)
		}
		for i, l := range t.granted {
			if !l.valid() || l.Type == Unlock {
				return fmt.Errorf("locks of inode %d: %+v", ino, l)
			}
			for _, o := range t.granted[i+1:] {
				if l.conflicts(o) || l.Owner == o.Owner && o.First <= l.Last {
					return fmt.Errorf("locks of inode %d: %+v and %+v", ino, l, o)
				}
			}
		}
		for _, r := range t.queue {
			_, blocked := t.conflict(r.Lock)
			if !r.Lock.valid() || !delegated && (r.How != Wait || !blocked) {
				return fmt.Errorf("locks of inode %d: %+v waits", ino, r)
			}
		}
	}
	return nil
}
