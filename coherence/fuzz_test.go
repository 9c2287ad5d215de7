package coherence

import (
	"bytes"
	"context"
	"fmt"
	"hash/maphash"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// dice draws from the bytes of a fuzzer; when they are used up it draws zeroes.
type dice struct{ b []byte }

func (d *dice) n(below int) int {
	if len(d.b) == 0 {
		return 0
	}
	v := int(d.b[0])
	d.b = d.b[1:]
	return v % below
}

func (d *dice) number(usual ...uint64) uint64 {
	i := d.n(len(usual) + 3)
	switch i - len(usual) {
	case 0:
		return uint64(d.n(256))
	case 1:
		return math.MaxUint64
	case 2:
		return 1 << (8*d.n(8) + 7)
	}
	return usual[i]
}

func (d *dice) pages() (p dsm.PageSet) {
	switch d.n(6) {
	case 0:
		p.Add(0)
	case 1:
		p.Add(d.n(256))
	case 2:
		p = dsm.Range(0, 1+d.n(4))
	case 3:
		p = dsm.AllPages
	case 4:
		p.Add(1)
		p.Add(3)
	}
	return p
}

// liar is a cluster of which the last node sends the first whatever a fuzzer wants, in the name of any other node. The others are honest.
type liar struct {
	dice
	*sim
	t      *testing.T
	victim *simNode

	mu    sync.Mutex
	heard []frame // what honest nodes have sent the victim: most of it is what it would be from a liar, too. Guarded by mu
}

// record is a Sender that keeps what it sends.
type record struct {
	*simNode
	l *liar
}

func (r record) keep(to dsm.NodeID, m any, payload []byte) {
	r.l.mu.Lock()
	defer r.l.mu.Unlock()
	if to == r.l.victim.id && len(r.l.heard) < 64 {
		r.l.heard = append(r.l.heard, frame{msg: m, payload: bytes.Clone(payload)})
	}
}

func (r record) Send(to dsm.NodeID, m any, payload [][]byte, more bool) {
	r.keep(to, m, flat(append([][]byte{nil}, payload...)))
	r.simNode.Send(to, m, payload, more)
}

func (r record) SendShared(to dsm.NodeID, m any, payload *wire.Shared, more bool) {
	r.keep(to, m, payload.Bytes)
	r.simNode.SendShared(to, m, payload, more)
}

// liarSpecs are the areas that a liar tries.
var liarSpecs = []dsm.Inode{
	sumOf(dsm.DTypeI32, dsm.ApplyArrival),
	sumOf(dsm.DTypeF32, dsm.ApplySync),
	{Spec: dsm.Spec{Merge: dsm.MergeMean, DType: dsm.DTypeI32}, Layout: dsm.Layout{DType: dsm.DTypeI32}},
	{Spec: dsm.Spec{Merge: dsm.MergeLast}},
	{Spec: dsm.Spec{Merge: dsm.MergeMax, DType: dsm.DTypeF64}, Layout: dsm.Layout{DType: dsm.DTypeF64}},
	{Spec: dsm.Spec{Mode: dsm.ModeVersioned, Retain: 3}},
	{Spec: dsm.Spec{Residency: dsm.ResidencyDemand}},
}

func newLiar(t *testing.T, b []byte) *liar {
	l := &liar{dice: dice{b}, t: t}
	ino := liarSpecs[l.n(len(liarSpecs))]
	ino.Size = 2*dsm.ExtentSize - int64(l.n(3))*dsm.PageSize*5
	l.sim = newHomed(t, 3, ino)
	home, copies := l.nodes[l.n(2)], l.n(4) // the victim, or another one
	l.victim = l.nodes[0]
	for _, n := range l.nodes {
		n.node.cfg.Sender = record{n, l}
	}
	l.changeView(func(v *dsm.View) {
		for i := range v.Slots {
			v.Slots[i].Primary = home.id
		}
		if ino.Spec.Mode == dsm.ModeVersioned {
			v.Place(simArea, dsm.SlotHome{Primary: home.id, Epoch: v.Epoch})
		}
		l.backups(v, copies)
	})
	l.catchUp()
	for _, n := range l.nodes {
		n.open(n == home || ino.Spec.Mode != dsm.ModeVersioned)
	}
	l.drain()
	for _, n := range l.nodes {
		l.store(n)
		l.drain()
	}
	return l
}

// backups has every row get backups, or none any more. The first of them is the victim if that is not the home. In sync are none, the first, or both.
func (l *liar) backups(v *dsm.View, kind int) {
	for _, row := range v.Rows() {
		var list []dsm.Backup
		for _, n := range l.nodes {
			if kind > 0 && n.id != row.Primary && n.id != row.Source {
				list = append(list, dsm.Backup{Node: n.id, InSync: kind > 1 && (kind == 3 || len(list) == 0), Since: v.Epoch})
			}
		}
		setBackups(row, list)
	}
}

// dies has the home of some row die, as far as the catalog knows. A backup takes over.
func (l *liar) dies(v *dsm.View) {
	row := v.Row(v.SlotOf(simArea, l.lastInode().Spec, 0))
	if h := row.Holder(); h != l.victim.id && len(deadOf(v)) == 0 {
		v.Members[h-1].Gone = true
		l.copies = 3
		l.takeOver(v, h)
	}
}

// store has a program store to a page, and publish or acquire.
func (l *liar) store(n *simNode) {
	off := int64(l.n(4)) * dsm.PageSize
	if n.writer == nil || off >= n.area.mu.ino.Size || !n.bring(dsm.PageIndex(off/dsm.PageSize)) {
		return
	}
	if n.area.WriteAt(context.Background(), []byte{byte(l.n(256)), 1, 2, 3, 4, 5, 6, 7}, off) != nil {
		return
	}
	call := n.area.Publish
	if l.n(4) == 0 {
		call = func(ctx context.Context) error { return n.area.Acquire(ctx, true) }
	}
	n.ask("store", func(ctx context.Context) error {
		_ = call(ctx) // after a lie it may fail
		return nil
	}, nil)
	l.rest()
}

// pass delivers up to k messages of nodes.
func (l *liar) pass(k int) {
	for ; k > 0; k-- {
		for from := range l.nodes {
			for to := range l.nodes {
				if q := (link{from, to}); len(l.net[q]) > 0 {
					f := l.take(q)
					l.nodes[to].ahead(f.msg)
					_ = l.nodes[to].node.Handle(l.nodes[from].id, f.msg, f.payload) // after a lie it may be refused
					if f.shared != nil {
						f.shared.Release()
					}
					l.rest()
				}
			}
		}
	}
}

// event is something that may happen.
func (l *liar) event() {
	switch l.n(14) {
	case 0:
		l.store(l.nodes[l.n(2)])
	case 1:
		l.resized(l.lastInode().Size/2 + int64(l.n(3))*dsm.ExtentSize/2)
	case 2:
		l.changeView(func(v *dsm.View) {
			row, to := v.Row(v.SlotOf(simArea, l.lastInode().Spec, 0)), l.nodes[l.n(2)].id
			if row.Settled() && row.Primary != to && !v.IsGone(row.Primary) && !v.IsGone(to) {
				*row = l.movedTo(v, *row, to)
			}
		})
		l.catchUp()
	case 3:
		l.pass(l.n(8))
	case 4:
		if len(l.wishes) > 0 {
			l.grant(l.n(len(l.wishes)))
			l.catchUp()
		}
	case 5:
		l.changeView(func(v *dsm.View) {
			if kind := l.n(5); kind < 4 {
				l.backups(v, kind)
			} else {
				l.dies(v)
			}
		})
		l.catchUp()
	default:
		l.lie()
	}
}

// lie sends the victim a message, made up or an honest one in which a part is changed.
func (l *liar) lie() {
	var f frame
	if k := len(l.heard); k > 0 && l.n(2) == 0 {
		honest := l.heard[l.n(k)]
		b, err := wire.Marshal(honest.msg)
		if err != nil {
			l.t.Fatal(err)
		}
		f = frame{msg: reflect.New(reflect.TypeOf(honest.msg).Elem()).Interface(), payload: bytes.Clone(honest.payload)}
		if err := wire.Unmarshal(b, f.msg); err != nil {
			l.t.Fatal(err)
		}
		if v := reflect.ValueOf(f.msg).Elem(); l.n(4) > 0 {
			l.fill(v.Field(l.n(v.NumField())), v.Type().Field(0).Name)
		}
		if l.n(8) == 0 {
			f.payload = f.payload[:len(f.payload)/2]
		}
	} else {
		types := liarTypes
		m := reflect.New(types[l.n(len(types))])
		for i := range m.Elem().NumField() {
			l.fill(m.Elem().Field(i), m.Elem().Type().Field(i).Name)
		}
		f.msg = m.Interface()
		f.payload = l.payload(m.Elem())
	}
	l.limit(reflect.ValueOf(f.msg).Elem())
	from := l.nodes[1+l.n(2)].id
	before := l.victim.area.known()
	text := fmt.Sprintf("%T %+v", f.msg, f.msg)
	l.t.Logf("%v sends %s and %d bytes", from, text, len(f.payload))
	err := l.victim.node.Handle(from, f.msg, f.payload)
	if err != nil && !errs.Is(err, errs.Corrupt) {
		l.t.Fatalf("%s: %v", text, err)
	}
	if after := l.victim.area.known(); err != nil && before != after {
		l.t.Fatalf("%s is refused (%v), and has changed what the node knows\nbefore: %s\nafter:  %s", text, err, before, after)
	}
	a := l.victim.area
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.newest > dsm.MaxVersion+1<<32 || l.victim.node.floor.Load() > uint64(dsm.MaxVersion) {
		l.t.Fatalf("after %s from %v no home can make versions any more", text, from)
	}
	if bad := a.problemLocked(nil); bad != "" { // of the bytes of pages a home can say anything
		l.t.Fatalf("after %s from %v: %s", text, from, bad)
	}
}

// liarTypes are the messages of the data plane.
var liarTypes = func() (list []reflect.Type) {
	wire.Messages(func(id uint16, m any) bool {
		if id >= 10 && id < 100 {
			list = append(list, reflect.TypeOf(m).Elem())
		}
		return true
	})
	slices.SortFunc(list, func(x, y reflect.Type) int { return strings.Compare(x.Name(), y.Name()) })
	return list
}()

// limit takes back what would have the victim wait for the catalog, and owners that the catalog refuses.
func (l *liar) limit(m reflect.Value) {
	if to := m.FieldByName("To"); to.IsValid() && to.Type() == reflect.TypeFor[dsm.NodeID]() {
		to.SetUint(to.Uint()%3 + 1)
	}
	for name, most := range map[string]uint64{"Rev": uint64(l.victim.ino.Rev), "Epoch": uint64(l.victim.view.Epoch)} {
		if x := m.FieldByName(name); x.IsValid() {
			x.SetUint(min(x.Uint(), most))
		}
	}
}

// fill sets a field to a value that means something, or may.
func (l *liar) fill(v reflect.Value, name string) {
	a := l.victim.area
	r := &a.mu.replica
	switch x := v.Addr().Interface().(type) {
	case *wire.Stamp:
		*x = wire.Stamp{Area: simArea, Gen: l.victim.ino.Gen, Rev: l.victim.ino.Rev, Epoch: l.victim.view.Epoch, Newest: a.mu.newest}
		if l.n(8) == 0 {
			x.Gen, x.Epoch = dsm.Generation(l.number(1, uint64(x.Gen))), dsm.Epoch(l.n(8))
			x.Newest, x.Area = dsm.Version(l.number(uint64(x.Newest)+1)), simArea+dsm.AreaID(l.n(2))
		}
	case *dsm.Version:
		*x = dsm.Version(l.number(0, uint64(a.mu.newest), uint64(a.mu.newest)+1, uint64(a.mu.newest)-1))
	case *dsm.ExtentIndex:
		*x = dsm.ExtentIndex(l.number(0, 0, 1, 1, 2))
	case *dsm.PageSet:
		*x = l.pages()
	case *dsm.Seq:
		*x = dsm.Seq(l.number(uint64(r.seq), uint64(r.seq)+1, 1, 2))
	case *dsm.NodeID:
		*x = dsm.NodeID(l.n(5))
	case *dsm.Slot:
		*x = dsm.Slot(l.number(uint64(a.slotLocked(0)), uint64(a.slotLocked(1))))
	case *dsm.RoundID:
		*x = dsm.RoundID{Group: dsm.AreaID(l.n(2) + 99), Generation: uint64(l.n(2)), Number: uint64(l.n(3))}
	case *[]byte: // an Index: all of each page
		*x = bytes.Repeat([]byte{1}, l.n(5))
	default:
		l.fillKind(v, name)
	}
}

func (l *liar) fillKind(v reflect.Value, name string) {
	a := l.victim.area
	r := &a.mu.replica
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(l.n(2) == 1)
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		n := l.number(r.round, r.round-1, a.mu.home.lastPush, a.mu.home.lastPush-1, a.mu.whole.stage.group, 0, 1)
		v.SetUint(n & (1<<v.Type().Bits() - 1))
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(l.number(0, 1, uint64(a.mu.ino.Size))))
	case reflect.String:
		v.SetString("why")
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), l.n(4), 4))
		for i := range v.Len() {
			l.fill(v.Index(i), name)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			l.fill(v.Field(i), v.Type().Field(i).Name)
		}
	default:
		l.t.Fatalf("a message has a %v", v.Type())
	}
}

// payload makes a payload, mostly as long as the message says.
func (l *liar) payload(m reflect.Value) []byte {
	p := m.FieldByName("Pages")
	if !p.IsValid() || p.Type() != reflect.TypeFor[dsm.PageSet]() {
		return nil
	}
	pages := p.Interface().(dsm.PageSet)
	if z := m.FieldByName("Zero"); z.IsValid() {
		pages = pages.Minus(z.Interface().(dsm.PageSet))
	}
	n := pages.Len() * dsm.PageSize
	if x := m.FieldByName("Index"); x.IsValid() && l.n(4) > 0 && m.Type() != reflect.TypeFor[wire.Push]() {
		x.SetBytes(bytes.Repeat([]byte{1}, pages.Len()))
	}
	if x := m.FieldByName("Versions"); x.IsValid() && l.n(4) > 0 {
		x.Set(reflect.MakeSlice(x.Type(), pages.Len(), pages.Len()))
		for i := range min(x.Len(), 4) {
			l.fill(x.Index(i), "Versions")
		}
	}
	switch l.n(8) {
	case 0:
		n /= 2
	case 1:
		n += 7
	}
	return bytes.Repeat([]byte{byte(l.n(256))}, n)
}

// known is a text of all that the node knows of the area, but which versions exist, of which it may hear in any way.
func (a *Area) known() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var b strings.Builder
	h, r, w := &a.mu.home, &a.mu.replica, &a.mu.whole
	var sum maphash.Hash
	sum.SetSeed(liarSeed)
	for _, e := range slices.Sorted(maps.Keys(h.extents)) {
		x := h.extents[e]
		fmt.Fprintf(&b, "home of %d: %d %v %v %v %v\n", e, x.version, x.pages, x.data, x.writers, x.parts)
	}
	for _, id := range h.rounds.inOrder() {
		hr := h.rounds.open[id]
		fmt.Fprintf(&b, "round %v: %v %v %v\n", id, hr.marked, hr.finish, hr.waiting)
	}
	fmt.Fprintf(&b, "rounds: %d %d %v\n", h.rounds.parts, h.rounds.bytes, h.rounds.ended)
	for _, id := range slices.Sorted(maps.Keys(h.subs)) {
		s := h.subs[id]
		fmt.Fprintf(&b, "subscriber %d: %v %v %d %d %d\n", id, s.onRequest, s.partial, s.lacking, s.inFlight, len(s.acquires))
		for _, e := range slices.Sorted(maps.Keys(s.extents)) {
			fmt.Fprintf(&b, "  %d: %+v\n", e, *s.extents[e])
		}
	}
	fmt.Fprintf(&b, "replica: %v %d %d %d %d %d %v\n", r.subscribed, r.version, r.whole, r.seq, len(r.subs), len(r.acquires), r.dropped)
	for _, e := range slices.Sorted(maps.Keys(r.extents)) {
		x := r.extents[e]
		fmt.Fprintf(&b, "  %d: %v %d %v %v %v %v %d %d\n", e, x.live, x.version, x.have, x.outdated, x.dirty, x.asked, x.started, x.acked)
	}
	if s := a.mu.standby; s != nil && len(s.extents)+len(s.staged) > 0 {
		fmt.Fprintf(&b, "standby: %v %v %v %d %d\n", s.whole, s.shrunk, s.broken, len(s.staged), s.bytes)
		for _, e := range slices.Sorted(maps.Keys(s.extents)) {
			fmt.Fprintf(&b, "  %d: %+v\n", e, *s.extents[e])
			for _, i := range slices.Sorted(maps.Keys(s.extents[e].pages)) {
				sum.Write(s.store.Look(page(e, i)))
			}
		}
	}
	if c := a.mu.copies; c != nil {
		for _, id := range slices.Sorted(maps.Keys(c.to)) {
			for x := range c.to[id].all() {
				fmt.Fprintf(&b, "backup %d: %d %d %d %v\n", id, x.id, x.extent, x.base, x.waits)
			}
		}
		fmt.Fprintf(&b, "withheld: %d\n", len(c.outputs))
	}
	fmt.Fprintf(&b, "versions: %v %d %d, parked: %d\n", w.kept, w.stage.group, len(w.stage.parts), len(a.mu.parked))
	for e := range dsm.ExtentIndex(a.extentsLocked()) {
		for _, i := range []int{0, 1, 2, 3, 100, 255} {
			if p := page(e, i); a.mu.mem != nil && a.inAreaLocked(e, i) {
				if a.replicaHasLocked(e, i) {
					sum.Write(a.mu.mem.Working(p))
				}
				if a.mu.mem.Homed(e) {
					sum.Write(a.mu.mem.Home(p))
				}
			}
		}
	}
	fmt.Fprintf(&b, "bytes: %x\n", sum.Sum64())
	return b.String()
}

var liarSeed = maphash.MakeSeed()

func lies(t *testing.T, b []byte) {
	l := newLiar(t, b)
	t.Cleanup(func() { // before the nodes are closed
		if !l.victim.area.mu.TryLock() {
			return // a step has panicked
		}
		l.victim.area.mu.Unlock()
		for _, q := range l.requests {
			q.cancel()
		}
		synctest.Wait()
	})
	for i := 0; len(l.b) > 0 && i < 40; i++ {
		l.event()
		l.rest()
	}
}

// FuzzHandle gives a node messages that another member made up: it does not panic, its sets agree, and a message that it refuses has
// changed nothing.
func FuzzHandle(f *testing.F) {
	for spec := range byte(len(liarSpecs)) {
		for home := range byte(2) {
			f.Add([]byte{spec, 0, home, 2})
			f.Add(append([]byte{spec, 1, home, spec % 4}, bytes.Repeat([]byte{0, 3, 5, 1, 9, 130, 66, 4}, 20)...))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) { synctest.Test(t, func(t *testing.T) { lies(t, b) }) })
}
