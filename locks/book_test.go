package locks

import (
	"fmt"
	"strings"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// said is what a command makes the nodes hear, in words.
func said(events []Event) string {
	var all []string
	for _, e := range events {
		what := [...]string{"answered", "delegated", "recalled", "surrendered", "ended", "dropped", "shared"}[e.What]
		switch e.What {
		case Answered:
			what = fmt.Sprintf("%s %d", e.Answer.Verdict, e.Ticket)
		case Delegated, Recalled:
			what = fmt.Sprintf("%s %d in term %d", what, e.Ticket, e.Term)
		}
		all = append(all, fmt.Sprintf("%d: %s", e.Node, what))
	}
	return strings.Join(all, ", ")
}

// bookTest makes commands on one file, and says what is wrong with what they return, and with the book after them.
type bookTest struct {
	*testing.T
	*Book
}

const bookIno = 5

func (b *bookTest) wants(want string, got []Event, err error) {
	b.Helper()
	if s := said(got); err != nil || s != want {
		b.Errorf("nodes hear %q, %v; want %q", s, err, want)
	}
	if err := b.Check(); err != nil {
		b.Error(err)
	}
}

func (b *bookTest) asks(want string, node dsm.NodeID, r Request, y Yield) {
	b.Helper()
	events, err := b.Ask(bookIno, node, r, y)
	b.wants(want, events, err)
}

func (b *bookTest) surrenders(want string, node dsm.NodeID, term uint64, granted []Lock, waiting ...Request) {
	b.Helper()
	events, err := b.Surrender(bookIno, node, term, granted, waiting)
	b.wants(want, events, err)
}

func (b *bookTest) opens(want string, node dsm.NodeID, alone bool, y Yield) {
	b.Helper()
	b.wants(want, b.Open(bookIno, node, alone, y), nil)
}

// all is a lock of the whole file, of the first owner of a node.
func all(node dsm.NodeID, t Type) Lock {
	return Lock{Owner: Owner{Node: node, ID: 1}, Type: t, Last: End}
}

func wait(node dsm.NodeID, ticket uint64) Request {
	return Request{Lock: all(node, Write), How: Wait, Ticket: ticket}
}

// TestBookRecall: a delegation is recalled once, by who asks first; a surrender that was delayed ends no other one; and all who wait have it in turn.
func TestBookRecall(t *testing.T) {
	b := &bookTest{t, NewBook()}
	b.asks("1: delegated 10 in term 1", 1, wait(1, 10), Yield{})
	b.asks("1: delegated 11 in term 1", 1, wait(1, 11), Yield{})
	b.asks("1: delegated 12 in term 2", 1, Request{Lock: all(1, Write), Ticket: 12, Renew: 1}, Yield{})
	b.asks("1: delegated 13 in term 2", 1, Request{Lock: all(1, Write), Ticket: 13, Renew: 1}, Yield{})
	b.asks("2: granted 20", 2, Request{Lock: all(2, Unlock), Ticket: 20}, Yield{})
	b.asks("2: queued 21, 1: recalled 0 in term 2", 2, wait(2, 21), Yield{})
	b.asks("3: queued 30", 3, wait(3, 30), Yield{})
	b.asks("3: queued 30", 3, wait(3, 30), Yield{}) // once more: it is in the queue once
	b.asks("3: queued 31", 3, wait(3, 31), Yield{Term: 2})
	b.asks("1: queued 14", 1, Request{Lock: all(1, Write), Ticket: 14}, Yield{})
	b.surrenders("", 1, 1, nil)
	b.surrenders("", 2, 2, nil)
	b.surrenders("", 2, 0, nil)
	b.surrenders("1: surrendered, 1: granted 14", 1, 2, []Lock{all(1, Write)})
	b.surrenders("", 1, 2, nil)
	b.asks("1: granted 15, 2: granted 21", 1, Request{Lock: all(1, Unlock), Ticket: 15}, Yield{})
	b.wants("3: cancelled 31", b.Cancel(bookIno, 3, 31), nil)
	b.wants("", b.Cancel(bookIno, 3, 31), nil)
	b.asks("2: granted 22, 3: granted 30", 2, Request{Lock: all(2, Unlock), Ticket: 22}, Yield{})
	b.wants("3: ended", b.Close(bookIno, 3), nil)
	b.asks("2: granted 23", 2, Request{Lock: all(2, Write), How: Test, Ticket: 23}, Yield{})  // of nothing: no reason to delegate
	b.asks("2: granted 24", 2, Request{Lock: all(2, Unlock), How: Wait, Ticket: 24}, Yield{}) // likewise
	b.asks("2: delegated 25 in term 3", 2, wait(2, 25), Yield{})
}

// TestBookYield: whose word ends a delegation, and who then has it.
func TestBookYield(t *testing.T) {
	keeper := func(b *bookTest, other dsm.NodeID) string {
		if k, term, ok := b.Keeper(bookIno, other); ok {
			return fmt.Sprint(k, " in term ", term)
		}
		return ""
	}
	b := &bookTest{t, NewBook()}
	if k := keeper(b, 2); k != "" {
		t.Errorf("%s keeps what nobody has", k)
	}
	b.opens("", 1, false, Yield{}) // others have it open too
	b.opens("1: delegated 0 in term 1", 1, true, Yield{})
	b.opens("", 1, true, Yield{})
	for other, want := range map[dsm.NodeID]string{1: "", 2: "0000000000000001 in term 1"} {
		if k := keeper(b, other); k != want {
			t.Errorf("node %d is to ask %q, want %q", other, k, want)
		}
	}
	b.opens("1: shared", 2, false, Yield{})
	b.opens("1: shared", 2, false, Yield{Term: 2, Used: true})
	b.opens("1: surrendered, 2: delegated 0 in term 2", 2, false, Yield{Term: 1})       // not used: it is passed on once
	b.opens("2: surrendered", 3, false, Yield{Term: 2})                                 // and not again
	b.opens("", 3, false, Yield{Term: 2})                                               // nobody has it
	b.asks("3: delegated 30 in term 3", 3, wait(3, 30), Yield{})                        //
	b.opens("3: surrendered, 1: delegated 0 in term 4", 1, false, Yield{3, true})       // used: it may be passed on
	b.opens("1: surrendered, 2: delegated 0 in term 5", 2, false, Yield{Term: 4})       // once, that is
	b.opens("2: surrendered, 3: delegated 0 in term 6", 3, false, Yield{5, true})       // if it is used it may again
	b.asks("3: surrendered, 1: delegated 10 in term 7", 1, wait(1, 10), Yield{Term: 6}) // who asks gets it in any case
	b.asks("2: queued 20, 1: recalled 0 in term 7", 2, wait(2, 20), Yield{Term: 6})
	if k := keeper(b, 2); k != "" {
		t.Errorf("%s is to be asked though it is told to surrender", k)
	}
	b.opens("", 3, false, Yield{Term: 7})
	b.surrenders("1: surrendered, 2: delegated 20 in term 8", 1, 7, nil)
}

// TestBookRefuses: what a node that is false, or mistaken, says of locks. Nothing of it changes the book.
func TestBookRefuses(t *testing.T) {
	b := &bookTest{t, NewBook()}
	b.asks("1: delegated 10 in term 1", 1, wait(1, 10), Yield{})
	b.asks("2: queued 20, 1: recalled 0 in term 1", 2, wait(2, 20), Yield{})
	before := fmt.Sprint(b.Pages())
	other, half := all(1, Write), all(1, Read)
	other.Owner.ID, half.Last = 2, End+1
	for name, granted := range map[string][]Lock{
		"of another node":       {all(2, Read)},
		"of no type":            {all(1, Unlock)},
		"past the end":          {half},
		"that exclude another":  {all(1, Read), other},
		"of a type there is no": {all(1, Write+1)},
	} {
		if events, err := b.Surrender(bookIno, 1, 1, granted, nil); err == nil {
			t.Errorf("locks %s are taken: %s", name, said(events))
		}
	}
	for name, r := range map[string]Request{
		"of another node":    wait(2, 1),
		"that does not wait": {Lock: all(1, Write), How: Try},
		"that is a test":     {Lock: all(1, Write), How: Test},
		"past the end":       {Lock: half, How: Wait},
	} {
		if events, err := b.Surrender(bookIno, 1, 1, nil, []Request{r}); err == nil {
			t.Errorf("a request %s is taken: %s", name, said(events))
		}
		if r.How != Wait {
			continue
		}
		if events, err := b.Ask(bookIno, 1, r, Yield{}); err == nil {
			t.Errorf("a request %s is taken: %s", name, said(events))
		}
	}
	if events, err := b.Ask(bookIno, 1, Request{Lock: all(1, Write), How: Test + 1}, Yield{}); err == nil {
		t.Errorf("a request of no kind is taken: %s", said(events))
	}
	if after := fmt.Sprint(b.Pages()); after != before {
		t.Errorf("the book has %s, had %s", after, before)
	}
}
