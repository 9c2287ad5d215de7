package catalog

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// TestOnce sends commands again, late and out of order.
func TestOnce(t *testing.T) {
	m := newMachine(t)
	m.must(nodeA, addMemberOp{member(nodeB)})
	create := createOp{Dir: dsm.RootIno, Name: "f", Kind: dsm.KindFile}
	first := command{Node: nodeB, Req: 1, Low: 1, Now: m.now}
	made, err := m.send(first, create)
	if err != nil {
		t.Fatal(err)
	}
	again, err := m.send(first, create)
	if err != nil || again != made || m.last.fate != repeated {
		t.Errorf("sent again: %+v, %v (%d), first %+v", again, err, m.last.fate, made)
	}
	// A failure is repeated too, though it would succeed now.
	second := command{Node: nodeB, Req: 2, Low: 1, Now: m.now}
	if _, err := m.send(second, create); !errs.Is(err, errs.Exist) {
		t.Fatal(err)
	}
	m.must(nodeA, unlinkOp{dsm.RootIno, "f"})
	if _, err := m.send(second, create); !errs.Is(err, errs.Exist) || m.last.fate != repeated {
		t.Errorf("a failed command, sent again: %v", err)
	}
	// What the node has given up does not happen any more, if it has not yet.
	if _, err := m.send(command{Node: nodeB, Req: 5, Low: 5, Now: m.now}, noopOp{}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []command{first, {Node: nodeB, Req: 3, Low: 1}, {Node: nodeB, Req: 4, Low: 4}} {
		if _, err := m.send(c, create); err != nil || m.last.fate != ignored || len(m.inodes) != 1 {
			t.Errorf("command %d after it was given up: %v, %d inodes", c.Req, err, len(m.inodes))
		}
	}
	if n := len(m.sessions[nodeB].results); n != 1 {
		t.Errorf("%d results kept, want 1", n)
	}
	// Others' numbers are others'.
	if _, err := m.send(command{Node: nodeA, Req: m.reqs[nodeA] + 1, Low: 1, Now: m.now}, create); err != nil {
		t.Error(err)
	}
	// A number far ahead costs no time.
	if _, err := m.send(command{Node: nodeB, Req: 1 << 63, Low: 1 << 63}, noopOp{}); err != nil || len(m.sessions[nodeB].results) != 1 {
		t.Errorf("%v, %d results kept", err, len(m.sessions[nodeB].results))
	}
}

// script is a random history of everything, also of members.
func script(t *testing.T, rng *rand.Rand, m *machine, steps int) {
	next := dsm.NodeID(0x10)
	for range steps {
		members := m.view.Members
		n := members[rng.IntN(len(members))].ID
		switch rng.IntN(20) {
		case 0:
			if len(members) < 6 {
				next++
				x := member(next)
				x.Budget = 1<<29 + rng.Int64N(1<<30)
				if _, err := m.do(n, addMemberOp{x}); err != nil && !errs.Is(err, errs.NoSpace) {
					t.Fatal(err)
				}
			}
		case 1:
			if len(members) > 2 {
				m.must(n, leavingOp{n})
				ready(m)
				_, err := m.do(n, removeMemberOp{n}) // also its own
				stays := func(x dsm.Member) bool { return !x.Leaving }
				stuck := m.checkLeaving(n)
				if slices.ContainsFunc(m.view.Members, stays) && (err != nil) != (stuck != nil) {
					t.Fatalf("%v: %v", err, stuck)
				}
				if len(m.view.Members) == 0 {
					t.Fatal("nobody is left")
				}
			}
		case 2:
			m.do(n, setSpecOp{dsm.Ino(1 + rng.IntN(30)), []string{"merge", "dtype", "interval"}[rng.IntN(3)], []string{"sum", "f32", "7"}[rng.IntN(3)]})
		case 3:
			m.do(n, setXattrOp{dsm.Ino(1 + rng.IntN(30)), "user." + string(rune('a'+rng.IntN(5))), []byte{byte(rng.IntN(9))}, dsm.XattrSet})
		case 4:
			m.do(n, setLayoutOp{dsm.AreaID(1 + rng.IntN(30)), dsm.Layout{DType: dsm.DTypeF32, DataOffset: rng.Int64N(100)}})
		case 5:
			m.index++
			m.configure(m.index, func(m dsm.Member) bool { return m.ID%2 == 0 })
		default:
			m.do(n, randomOp(rng, m.nextIno))
		}
	}
}

// TestDeterminism runs one history on two replicas, one of which is saved and
// restored on the way: they end as the same bytes.
func TestDeterminism(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for round := range uint64(10) {
		var images [2][]byte
		for i := range images {
			rng := rand.New(rand.NewPCG(seed, round))
			m := newMachine(t)
			for range 4 {
				script(t, rng, m, 100)
				if i == 1 {
					s, err := restore(mustEncode(t, m.image()))
					if err != nil {
						t.Fatal(err)
					}
					m.state = s
				}
			}
			images[i] = mustEncode(t, m.image())
		}
		if !bytes.Equal(images[0], images[1]) {
			t.Fatalf("round %d: the replicas differ", round)
		}
	}
}

// TestImageIsACopy changes the state while its image is being encoded.
func TestImageIsACopy(t *testing.T) {
	m := newMachine(t)
	rng := rand.New(rand.NewPCG(1, 2))
	script(t, rng, m, 200)
	img := m.image()
	before := mustEncode(t, img)
	script(t, rng, m, 200)
	if !bytes.Equal(before, mustEncode(t, img)) {
		t.Error("the image changed")
	}
}

func TestRestoreRefusesNonsense(t *testing.T) {
	m := newMachine(t)
	m.must(nodeA, addMemberOp{member(nodeB)})
	m.must(nodeA, apartOp{[]dsm.Link{dsm.LinkOf(nodeA, nodeB), dsm.LinkOf(nodeA, nodeC)}}) // C is no member
	f := m.file("f")
	d := m.mkdir(dsm.RootIno, "d")
	for name, break_ := range map[string]func(*image){
		"format":          func(i *image) { i.Format = 99 },
		"slots":           func(i *image) { i.Slots = i.Slots[:9] },
		"no root":         func(i *image) { i.Inodes = i.Inodes[1:] },
		"dangling entry":  func(i *image) { i.Inodes = i.Inodes[:2] },
		"unnamed inode":   func(i *image) { i.Inodes[0].Entries = i.Inodes[0].Entries[:1] },
		"named twice":     func(i *image) { i.Inodes[0].Entries = append(i.Inodes[0].Entries, entryImage{"x", f.Ino}) },
		"parent":          func(i *image) { i.Inodes[2].Parent = d },
		"links":           func(i *image) { i.Inodes[0].Inode.Nlink = 9 },
		"negative size":   func(i *image) { i.Inodes[1].Inode.Size = -1 },
		"great size":      func(i *image) { i.Inodes[1].Inode.Size = dsm.MaxAreaSize + 1 },
		"no memory":       func(i *image) { i.Members[0].Budget = 0 },
		"great memory":    func(i *image) { i.Members[0].Budget = maxBudget + 1 },
		"keeps slots":     func(i *image) { i.Members[0].Leaving = true },
		"entries of file": func(i *image) { i.Inodes[1].Entries = []entryImage{{"x", d}} },
		"spec":            func(i *image) { i.Inodes[1].Inode.Spec.Merge = 200 },
		"copies":          func(i *image) { i.Inodes[1].Inode.Spec.Replicas = dsm.MostReplicas + 1 },
		"many copies": func(i *image) {
			i.Inodes[1].Inode.Spec.Replicas, i.Inodes[1].Inode.Spec.Residency = 25, dsm.ResidencyDemand
		},
		"inode number":    func(i *image) { i.NextIno = 2 },
		"stranger claims": func(i *image) { i.Inodes[1].Claims = []dsm.NodeID{99} },
		"slot primary":    func(i *image) { i.Slots[7].Primary = 99 },
		"cycle": func(i *image) {
			dir := func(ino, parent dsm.Ino) inodeImage {
				return inodeImage{
					Inode:  dsm.Inode{Ino: ino, Kind: dsm.KindDir, Nlink: 3, Spec: dsm.DefaultSpec()},
					Parent: parent, Entries: []entryImage{{"x", parent}},
				}
			}
			i.Inodes = append(i.Inodes, dir(100, 101), dir(101, 100))
			i.NextIno = 102
		},
		"cut link": func(i *image) { i.Apart = []dsm.Link{{A: nodeB, B: nodeA}} },
		"members":  func(i *image) { i.Members = append(i.Members, i.Members[0]) },
	} {
		img, err := copyImage(m.image())
		if err != nil {
			t.Fatal(err)
		}
		if s, err := restore(mustEncode(t, img)); err != nil || !slices.Equal(s.view.Apart, []dsm.Link{{A: nodeA, B: nodeB}}) {
			t.Fatalf("the copy: %v; links %v", err, img.Apart)
		}
		break_(img)
		if _, err := restore(mustEncode(t, img)); !errs.Is(err, errs.Corrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzApply gives a state arbitrary bytes for commands.
func FuzzApply(f *testing.F) {
	for _, o := range ops {
		b, err := command{Node: nodeA, Req: 9, Low: 9, Now: 5}.encode(o.op)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for range 30 {
		b, _ := command{Node: nodeA, Req: 9, Low: 9, Now: 5}.encode(randomOp(rng, 3))
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m := newMachine(t)
		m.file("f")
		m.apply(m.index+1, b)
		if err := m.check(); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzRestore gives arbitrary bytes for snapshots: what is accepted obeys the
// invariants and can be saved again.
func FuzzRestore(f *testing.F) {
	m := newMachine(f)
	m.file("f")
	f.Add(mustEncode(f, m.image()))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := restore(b)
		if err != nil {
			return
		}
		mustEncode(t, s.image())
		if s.nextIno >= 1<<40 {
			return
		}
		rng := rand.New(rand.NewPCG(1, 1))
		for range 20 {
			c, err := command{Node: nodeA, Req: 1 << 40, Now: 5}.encode(randomOp(rng, max(1, s.nextIno)))
			if err != nil {
				t.Fatal(err)
			}
			s.apply(s.applied+1, c)
		}
		if err := s.check(); err != nil {
			t.Fatal(err)
		}
	})
}

func copyImage(img *image) (*image, error) {
	b, err := img.encode()
	if err != nil {
		return nil, err
	}
	c := new(image)
	return c, wire.Unmarshal(b, c)
}
