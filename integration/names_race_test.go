package integration

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// TestRenameOfADirectoryMovedElsewhere renames across directories what another node has moved a moment ago: the
// kernel knows the directory under its old name still, and cannot find the new one while it renames.
func TestRenameOfADirectoryMovedElsewhere(t *testing.T) {
	c := nodes(t, 2)
	a, b := c.Node(1).Client(), c.Node(2).Client()
	for _, d := range []string{"p", "q", "r"} {
		a.Must("mkdir %s", a.Path(d))
	}
	for _, x := range []struct{ name, seen, to string }{
		{"elsewhere", "stat p/x", "r/x"}, {"back", "stat p/x", "p/y"}, {"listed", "ls p", "r/x"},
	} {
		a.Must("mkdir %s", a.Path("p/x"))
		how, what, _ := strings.Cut(x.seen, " ")
		b.Must("%s %s", how, b.Path(what))
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

// TestRenameOfAnOpenDirectoryMovedElsewhere is that of a directory which the kernel cannot forget, because a program has
// a file in it open. The other node gives the old name to another directory.
func TestRenameOfAnOpenDirectoryMovedElsewhere(t *testing.T) {
	c := nodes(t, 2)
	a, b := c.Node(1).Client(), c.Node(2).Client()
	for _, d := range []string{"p", "q", "r", "p/r"} {
		a.Must("mkdir %s", a.Path(d))
	}
	for _, x := range []struct{ name, from, to, then string }{
		{"to a third", "p/x", "q/x", "r/x"},
		{"back", "p/x", "q/x", "p/y"},
		{"over a directory", "p/x", "q/x", "p/r"},
		{"from the root", "x", "q/x", "r/x"},
		{"to the root", "p/x", "x", "r/x"},
	} {
		for i := range 4 {
			a.Must("mkdir %s", a.Path(x.from))
			b.Stat(x.from)
			f := b.Open(x.from+"/f", "rw,creat")
			a.Must("rename %s %s", a.Path(x.from), a.Path(x.to))
			a.Must("mkdir %s", a.Path(x.from))
			b.Stat(x.from)
			if _, err := b.Do("rename %s %s", b.Path(x.to), b.Path(x.then)); err != nil {
				t.Errorf("%s, round %d: %v", x.name, i, err)
				b.Stat(x.to)
				b.Must("rename %s %s", b.Path(x.to), b.Path(x.then))
			}
			a.Stat(x.then + "/f")
			f.Close()
			a.Must("unlink %s", a.Path(x.then+"/f"))
			a.Must("rmdir %s", a.Path(x.then))
			a.Must("rmdir %s", a.Path(x.from))
			if x.then == "p/r" {
				a.Must("mkdir %s", a.Path(x.then))
			}
		}
	}
}

// TestRenameInAWorkingDirectory renames what another node moved into the working directory. A program has a file in it
// open, so the kernel cannot forget where it was. No lookup comes before the kernel takes its locks, so nobody but
// this rename can find it in its new place.
func TestRenameInAWorkingDirectory(t *testing.T) {
	c := nodes(t, 2)
	a, b := c.Node(1).Client(), c.Node(2).Client()
	for _, d := range []string{"p", "q"} {
		a.Must("mkdir %s", a.Path(d))
	}
	b.Must("chdir %s", b.Path("p"))
	for i := range 4 {
		a.Must("mkdir %s", a.Path("q/x"))
		b.Stat("q/x")
		f := b.Open("q/x/f", "rw,creat")
		a.Must("rename %s %s", a.Path("q/x"), a.Path("p/x"))
		if _, err := b.Do("rename x ../y"); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		a.Stat("y/f")
		b.Must("rename %s %s", b.Path("y"), b.Path("q/z"))
		b.Stat("q/z/f")
		f.Close()
		b.Must("unlink %s", b.Path("q/z/f"))
		a.Must("rmdir %s", a.Path("q/z"))
	}
}

// TestMakeADirectoryMovedElsewhere makes what another node has moved there a moment ago. The kernel needs the lock of where it
// was to take that in, and other programs have it nearly all the time.
func TestMakeADirectoryMovedElsewhere(t *testing.T) {
	c := nodes(t, 2)
	a, b := c.Node(1).Client(), c.Node(2).Client()
	for _, d := range []string{"p", "q"} {
		a.Must("mkdir %s", a.Path(d))
	}
	stop := make(chan struct{})
	var busy sync.WaitGroup
	defer busy.Wait()
	defer close(stop)
	for _, name := range []string{"p/a", "p/b"} {
		cl := c.Node(2).Client()
		busy.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				cl.Must("mkdir %s", cl.Path(name))
				cl.Must("rmdir %s", cl.Path(name))
			}
		})
	}
	b.Open("file", "rw,creat").Close()
	for range 4 {
		for _, make := range []string{"mkdir", "mkfifo", "symlink to", "link " + b.Path("file")} {
			a.Must("mkdir %s", a.Path("p/x"))
			b.Stat("p/x")
			f := b.Open("p/x/f", "rw,creat")
			a.Must("rename %s %s", a.Path("p/x"), a.Path("q/x"))
			if _, err := b.Do("%s %s", make, b.Path("q/x")); err != harness.Failure("EEXIST") {
				t.Errorf("%s: %v", make, err)
			}
			f.Close()
			a.Must("unlink %s", a.Path("q/x/f"))
			a.Must("rmdir %s", a.Path("q/x"))
		}
	}
}

// TestWorkInADirectoryMovedElsewhere goes on in a working directory that another node moves.
func TestWorkInADirectoryMovedElsewhere(t *testing.T) {
	c := nodes(t, 2)
	a, b := c.Node(1).Client(), c.Node(2).Client()
	for _, d := range []string{"p", "q", "p/x"} {
		a.Must("mkdir %s", a.Path(d))
	}
	b.Must("chdir %s", b.Path("p/x"))
	a.Must("rename %s %s", a.Path("p/x"), a.Path("q/x"))
	a.Must("mkdir %s", a.Path("p/x"))
	id := b.Must("open f rw,creat")
	b.Must("close %s", id[0])
	a.Stat("q/x/f")
	b.Must("rename f g")
	a.Must("open %s rw,creat", a.Path("q/x/h"))
	if got := b.Must("ls ."); len(got) != 2 {
		t.Errorf("the working directory lists %v, want g and h", got)
	}
	b.Stat("q/x/g")
	b.Must("rename g %s", b.Path("p/g"))
	a.Stat("p/g")
	b.Must("mkdir ../y")
	if _, err := a.Do("stat %s", a.Path("q/y")); err != nil {
		t.Errorf("what was made beside the working directory is not where that is: %v", err)
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

// TestRemovedDirectoryThatIsOpen changes the mode of a directory that a program has open and another node has removed.
func TestRemovedDirectoryThatIsOpen(t *testing.T) {
	c := nodes(t, 2)
	a, b := c.Node(1).Client(), c.Node(2).Client()
	a.Must("mkdir %s", a.Path("d"))
	dir := b.Open("d", "r")
	a.Must("rmdir %s", a.Path("d"))
	b.Must("fchmod %d 700", dir.FD)
	if got := dir.Stat(); got.Mode&0o777 != 0o700 || got.Nlink != 0 {
		t.Errorf("the removed directory is %+v", got)
	}
}

// TestRemoveByANameThatMoves removes directories by a name that another node gives to another one at that moment. What had it before
// is not removed, so a program that works in it goes on.
func TestRemoveByANameThatMoves(t *testing.T) {
	c := nodes(t, 2)
	a, b, inside := c.Node(1).Client(), c.Node(2).Client(), c.Node(2).Client()
	for _, x := range []struct {
		call string
		may  []error // the name may be nobody's, or that of the directory which is not empty
	}{
		{"rmdir " + b.Path("x"), []error{harness.Failure("ENOTEMPTY"), harness.Failure("ENOENT")}},
		{"rename " + b.Path("w") + " " + b.Path("x"), []error{harness.Failure("ENOTEMPTY")}},
	} {
		wrong := 0
		const rounds = 50
		for range rounds {
			for _, d := range []string{"w", "x", "x/d", "y"} {
				a.Must("mkdir %s", a.Path(d))
			}
			inside.Must("chdir %s", inside.Path("x"))
			var removing sync.WaitGroup
			removing.Go(func() {
				for {
					_, err := b.Do("%s", x.call)
					if err == nil {
						return
					}
					if !slices.Contains(x.may, err) {
						t.Errorf("%s: %v", x.call, err)
						return
					}
				}
			})
			a.Must("rename %s %s", a.Path("x"), a.Path("z"))
			_, err := a.Do("rename %s %s", a.Path("y"), a.Path("x"))
			removing.Wait()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := inside.Do("stat d"); err != nil {
				wrong++
			}
			inside.Must("chdir %s", inside.Path("."))
			a.Must("rmdir %s", a.Path("z/d"))
			a.Must("rmdir %s", a.Path("z"))
			_, _ = a.Do("rmdir %s", a.Path("w"))
			_, _ = a.Do("rmdir %s", a.Path("x"))
		}
		if wrong > 0 {
			t.Errorf("%s: in %d rounds of %d the directory that was moved away is taken for removed", x.call, wrong, rounds)
		}
	}
}
