package integration

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/anishathalye/porcupine"

	"github.com/dsmfs/dsmfs/integration/harness"
	"github.com/dsmfs/dsmfs/integration/history"
)

// load is one random workload on names and the model it must fit.
type load struct {
	name    string
	prepare func(*harness.Client)
	draw    func(*rand.Rand) history.Op
	model   porcupine.Model
}

var loads = []load{
	{"names", func(cl *harness.Client) { cl.Must("mkdir %s", cl.Path("d")) }, randomNameOp, history.Names},
	{"sizes", func(cl *harness.Client) {
		cl.Must("mkdir %s", cl.Path("d"))
		cl.Open("d/f", "rw,creat").Close()
	}, randomSizeOp, history.Sizes},
}

func TestNamesAndSizesAreLinearizable(t *testing.T) {
	for _, l := range loads {
		t.Run(l.name, func(t *testing.T) {
			c := nodes(t, 3)
			l.prepare(c.Node(1).Client())
			rec, s := newRecorder(), seed(t)
			const perNode = 2
			ops := 60
			if *opsFlag > 0 {
				ops = *opsFlag
			}
			var wg sync.WaitGroup
			for id := range perNode * 3 {
				cl, rng := c.Node(id%3+1).Client(), rand.New(rand.NewPCG(s, uint64(id)))
				wg.Go(func() {
					for i := 0; i < ops && rec.do(id, cl, "d", l.draw(rng)); i++ {
					}
				})
			}
			wg.Wait()
			rec.check(t, l.model)
		})
	}
}

// TestNamesAreLinearizableWhileTheLeaderDies kills the daemon that leads the
// consensus in the middle of the history; the two others go on.
func TestNamesAreLinearizableWhileTheLeaderDies(t *testing.T) {
	for _, l := range loads {
		t.Run(l.name, func(t *testing.T) {
			if l.name != "names" {
				long(t)
			}
			c := nodes(t, 3)
			l.prepare(c.Node(1).Client())
			rec, s := newRecorder(), seed(t)
			victim := leader(t, c)
			const (
				perNode = 2
				before  = 20 // operations of each client before the kill
				after   = 30
			)
			var running, survivors sync.WaitGroup
			var dead atomic.Bool
			running.Add(perNode * 3)
			for id := range perNode * 3 {
				n := c.Node(id%3 + 1)
				cl, rng := n.Client(), rand.New(rand.NewPCG(s, uint64(id)))
				work := func() {
					for i := range before {
						if !rec.do(id, cl, "d", l.draw(rng)) {
							t.Errorf("client %d: operation %d has no clear answer before the kill", id, i)
							break
						}
					}
					running.Done()
					// A daemon that loses its leader may refuse what was under way: that is an
					// unknown answer, and the client goes on with the next.
					for i, clear := 0, 0; clear < after && i < 4*after; i++ {
						switch {
						case rec.do(id, cl, "d", l.draw(rng)):
							if dead.Load() {
								clear++
							}
						case n == victim:
							return
						}
					}
				}
				survivors.Go(work)
			}
			running.Wait()
			victim.Kill()
			dead.Store(true)
			survivors.Wait()
			rec.check(t, l.model)
		})
	}
}

// TestNamesOnEveryNode goes once through the operations on names and looks at
// the result from another node at once.
func TestNamesOnEveryNode(t *testing.T) {
	c := nodes(t, 3)
	all := clients(c)
	a, b := all[0], all[1]
	everywhere := func(what string, ok func(*harness.Client) bool) {
		t.Helper()
		for i, cl := range all {
			if !ok(cl) {
				t.Errorf("%s: not so on node %d", what, i+1)
			}
		}
	}
	missing := func(cl *harness.Client, name string) bool {
		_, err := cl.Do("stat %s", cl.Path(name))
		return err == harness.Failure("ENOENT")
	}

	a.Must("mkdir %s", a.Path("d"))
	b.Open("d/f", "rw,creat,excl").Close()
	all[2].Fails("EEXIST", "open %s rw,creat,excl", all[2].Path("d/f"))
	a.Fails("ENOTEMPTY", "rmdir %s", a.Path("d"))
	ino := a.Stat("d/f").Ino
	everywhere("one inode", func(cl *harness.Client) bool { return cl.Stat("d/f").Ino == ino })

	a.Open("d/g", "rw,creat,excl").Close()
	b.Must("rename %s %s", b.Path("d/f"), b.Path("d/g"))
	everywhere("renamed over an existing name", func(cl *harness.Client) bool {
		return missing(cl, "d/f") && cl.Stat("d/g").Ino == ino
	})

	a.Must("symlink g %s", a.Path("d/s"))
	everywhere("symlink", func(cl *harness.Client) bool {
		return cl.Must("readlink %s", cl.Path("d/s"))[0] == "g" && cl.Open("d/s", "r").Stat().Ino == ino
	})
	b.Must("chmod %s 600", b.Path("d/g"))
	b.Must("chown %s 12 34", b.Path("d/g"))
	b.Must("utimens %s 1000000", b.Path("d/g"))
	b.SetXattr("d/g", "user.colour", "blue")
	everywhere("attributes", func(cl *harness.Client) bool {
		st := cl.Stat("d/g")
		return st.Mode == 0o100600 && st.UID == 12 && st.GID == 34 && st.Mtime == 1000000 && cl.Xattr("d/g", "user.colour") == "blue"
	})
	a.Must("removexattr %s user.colour", a.Path("d/g"))
	b.Fails("ENODATA", "getxattr %s user.colour", b.Path("d/g"))

	f := a.Open("d/g", "rw")
	a.Must("fallocate %d 0 10000", f.FD)
	everywhere("fallocate", func(cl *harness.Client) bool { return cl.Stat("d/g").Size == 10000 })
	b.Must("truncate %s 3", b.Path("d/g"))
	everywhere("truncate", func(cl *harness.Client) bool { return cl.Stat("d/g").Size == 3 })

	// What does not exist here says so clearly.
	if _, err := a.Do("mkfifo %s", a.Path("d/p")); err != harness.Failure("EOPNOTSUPP") && err != harness.Failure("EPERM") {
		t.Errorf("fifo: %v, want EOPNOTSUPP or EPERM", err)
	}

	b.Must("unlink %s", b.Path("d/s"))
	b.Must("unlink %s", b.Path("d/g"))
	all[2].Must("rmdir %s", all[2].Path("d"))
	everywhere("removed", func(cl *harness.Client) bool { return missing(cl, "d") })
	if st := f.Stat(); st.Nlink != 0 {
		t.Errorf("an open file that was unlinked elsewhere has %d links", st.Nlink)
	}

	total := a.Must("statfs %s", c.Node(1).Mount)
	if total[0] == "0" {
		t.Errorf("statfs shows no memory budget: %v", total)
	}
}
