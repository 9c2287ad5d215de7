package integration

import (
	"sync"
	"testing"
)

// TestRenameOfADirectoryMovedElsewhere renames across directories what another node has moved a moment ago: the
// kernel knows the directory under its old name still, and cannot find the new one while it renames.
func TestRenameOfADirectoryMovedElsewhere(t *testing.T) {
	c := nodes(t, 2)
	a, b := c.Node(1).Client(), c.Node(2).Client()
	for _, d := range []string{"p", "q", "r"} {
		a.Must("mkdir %s", a.Path(d))
	}
	for _, x := range []struct{ name, to string }{{"elsewhere", "r/x"}, {"back", "p/y"}} {
		a.Must("mkdir %s", a.Path("p/x"))
		b.Stat("p/x")
		a.Must("rename %s %s", a.Path("p/x"), a.Path("q/x"))
		if _, err := b.Do("rename %s %s", b.Path("q/x"), b.Path(x.to)); err != nil {
			t.Errorf("%s: %v", x.name, err)
			continue
		}
		a.Stat(x.to)
		a.Fails("ENOENT", "stat %s", a.Path("p/x"))
		a.Must("rmdir %s", a.Path(x.to))
	}
}

// TestOpenOfANameThatIsRenamedOver opens a name on one node while another puts new files in its place: there is
// always one.
func TestOpenOfANameThatIsRenamedOver(t *testing.T) {
	c := nodes(t, 3)
	writer := c.Node(1).Client()
	writer.Open("name", "rw,creat").Close()
	stop := make(chan struct{})
	var writing, reading sync.WaitGroup
	writing.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			writer.Open("new", "rw,creat").Close()
			writer.Must("rename %s %s", writer.Path("new"), writer.Path("name"))
		}
	})
	const opens = 1000
	for _, n := range c.Nodes()[1:] {
		cl := n.Client()
		reading.Go(func() {
			for i := range opens {
				id, err := cl.Do("open %s r", cl.Path("name"))
				if err != nil {
					t.Errorf("open %d on %s: %v", i, n.Name, err)
					return
				}
				cl.Must("close %s", id[0])
			}
		})
	}
	reading.Wait()
	close(stop)
	writing.Wait()
}
