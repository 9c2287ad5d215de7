package integration

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// publisher stores numbers at a place of its own, and publishes each, until stop is closed.
type publisher struct {
	m  *harness.Map
	at int64
	mu sync.Mutex
	// stored was stored last, acked was published last.
	stored, acked int
	longest       time.Duration // a publish took, or an error
	began         time.Time     // of the publish under way
}

func (p *publisher) bytes() []byte { return fmt.Appendf(nil, "%08d", p.stored) }

func (p *publisher) run(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		p.mu.Lock()
		p.stored, p.began = p.stored+1, time.Now()
		p.mu.Unlock()
		p.m.Store(p.at, p.bytes())
		err := p.m.TrySync()
		p.mu.Lock()
		p.longest = max(p.longest, time.Since(p.began))
		if err == nil {
			p.acked = p.stored
		}
		p.mu.Unlock()
	}
}

// wait returns the longest that a publish took, also of the one under way.
func (p *publisher) wait() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(p.longest, time.Since(p.began))
}

// beyond waits until more has been published than there was.
func (p *publisher) beyond(t *testing.T) {
	t.Helper()
	p.mu.Lock()
	goal := p.stored + 1
	p.mu.Unlock()
	reaches(t, &p.mu, &p.acked, goal)
}

// reaches waits until a number that a program counts, under a lock, is as high as goal.
func reaches(t *testing.T, mu *sync.Mutex, number *int, goal int) {
	t.Helper()
	if !harness.Eventually(limit, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return *number >= goal
	}) {
		t.Fatal("a program does not go on")
	}
}

// TestCutLink cuts the link of two nodes that both reach the leader, in both directions or in one, while programs of all three publish to a file
// of which one of the two is the home, and another node has a copy. One of the two is put out, and the others go on. It does not come back as long
// as the link is cut, and says why; then it does by itself, and what its programs had stored is published.
func TestCutLink(t *testing.T) {
	for _, way := range []string{"both", "one"} {
		t.Run(way, func(t *testing.T) { cutLink(t, way == "one") })
	}
}

func cutLink(t *testing.T, oneWay bool) {
	if oneWay {
		long(t)
	}
	c := cluster(t, harness.Options{Nodes: 3, Network: harness.Namespaces})
	all := clients(c)
	lead := leader(t, c)
	pair := slices.DeleteFunc(c.Nodes(), func(n *harness.Node) bool { return n == lead })
	all[0].Must("mkdir %s", all[0].Path("d"))
	all[0].SetXattr("d", "user.dsm.replicas", "2")
	place := pair[1]
	if oneWay {
		place = pair[0]
	}
	all[0].SetXattr("d", "user.dsm.placement", place.Name)
	all[0].Open("d/f", "rw,creat,excl").Truncate(3 * page)
	home, backups := backupsOf(t, c.Node(1), all[0], "d/f", 2)
	t.Logf("leader %s, home %s, backups %v", lead.Name, home, backups)
	stop := make(chan struct{})
	var running sync.WaitGroup
	work := make(map[string]*publisher)
	for i, m := range attachAll(all, "d/f", 3*page) {
		p := &publisher{m: m, at: int64(i) * page}
		work[c.Node(i+1).Name] = p
		running.Go(func() { p.run(stop) })
	}
	for _, p := range work {
		p.beyond(t)
	}

	began := time.Now()
	if oneWay {
		c.Mute(pair[0], pair[1])
	} else {
		c.Partition(pair[:1], pair[1:])
	}
	var out, stays *harness.Node
	if !harness.Eventually(limit, func() bool {
		for _, m := range report[[]row](t, lead, "members") {
			for i, n := range pair {
				if m.text("name") == n.Name && strings.Contains(m.text("state"), "gone") {
					out, stays = n, pair[1-i]
				}
			}
		}
		return out != nil || len(report[[]row](t, lead, "members")) < 3
	}) {
		t.Fatal("two nodes do not reach each other, and none is put out")
	}
	if out == nil { // it is forgotten already
		rows := report[[]row](t, lead, "members")
		i := slices.IndexFunc(pair, func(n *harness.Node) bool {
			return !slices.ContainsFunc(rows, func(m row) bool { return m.text("name") == n.Name })
		})
		out, stays = pair[i], pair[1-i]
	}
	t.Logf("%s is put out after %v", out.Name, time.Since(began))
	for _, n := range []*harness.Node{lead, stays} {
		work[n.Name].beyond(t)
		const most = 6 * time.Second // a lease to find out, and as much for a machine that is busy
		if w := work[n.Name].wait(); w > most {
			t.Errorf("a program of %s waited for %v", n.Name, w)
		} else {
			t.Logf("the longest wait of a program of %s: %v", n.Name, w)
		}
	}
	all[slices.Index(c.Nodes(), stays)].Must("mkdir %s", stays.Mount+"/meanwhile")
	waits := ""
	if !harness.Eventually(limit, func() bool {
		stats, _ := report[row](t, out, "status")["stats"].(map[string]any)
		waits = fmt.Sprint(stats["joins_again_when"])
		return strings.Contains(waits, "["+stays.Name+"]")
	}) {
		t.Errorf("status of %s does not say what it waits for: %q", out.Name, waits)
	}
	evicted(t, lead, out.Name)
	member(t, lead, stays.Name)

	began = time.Now()
	c.Heal()
	member(t, lead, out.Name)
	t.Logf("%s joins again after %v", out.Name, time.Since(began))
	work[out.Name].beyond(t)
	close(stop)
	running.Wait()
	var maps []*harness.Map
	for _, p := range work {
		maps = append(maps, p.m)
	}
	settle(maps)
	for name, p := range work {
		for other, o := range work {
			if got := string(o.m.Load(p.at, 8)); got != string(p.bytes()) {
				t.Errorf("%s has stored %s, and %s has %q", name, p.bytes(), other, got)
			}
		}
	}
	if stats, _ := report[row](t, out, "status")["stats"].(map[string]any); stats["joins_again_when"] != nil {
		t.Errorf("a member says what it waits for: %v", stats["joins_again_when"])
	}
}

// rewriter writes to each of some files in turn, at a place of its own, with an open, a sync and a close each time, and makes a new file in each round.
type rewriter struct {
	cl   *harness.Client
	at   int64
	mu   sync.Mutex
	done int // rounds
	errs []string
	// tried was written to a file last, acked synced last.
	tried, acked []int
}

// run goes on until stop is closed. What failed is tried again in the next round.
func (w *rewriter) run(files []string, stop <-chan struct{}) {
	w.tried, w.acked = make([]int, len(files)), make([]int, len(files))
	for round := 1; ; round++ {
		for i, f := range files {
			select {
			case <-stop:
				return
			default:
			}
			w.tried[i] = round
			if err := w.write(f, "rw", round); err == nil {
				w.acked[i] = round
			}
		}
		_ = w.write(fmt.Sprintf("d/new-%d-%d", w.at, round), "rw,creat,excl", round) // it keeps the error
		w.mu.Lock()
		w.done = round
		w.mu.Unlock()
	}
}

func (w *rewriter) write(file, flags string, round int) (err error) {
	defer func() {
		if err != nil {
			w.mu.Lock()
			w.errs = append(w.errs, fmt.Sprintf("%s, round %d: %v", file, round, err))
			w.mu.Unlock()
		}
	}()
	fd, err := w.cl.Do("open %s %s", w.cl.Path(file), flags)
	if err != nil {
		return err
	}
	if _, err = w.cl.Do("pwrite %s %d %x", fd[0], w.at, fmt.Appendf(nil, "%08d", round)); err == nil {
		_, err = w.cl.Do("fsync %s", fd[0])
	}
	if _, failed := w.cl.Do("close %s", fd[0]); err == nil {
		err = failed
	}
	return err
}

// beyond waits until some rounds are over that begin now.
func (w *rewriter) beyond(t *testing.T, rounds int) {
	t.Helper()
	w.mu.Lock()
	goal := w.done + 1 + rounds // the round under way does not count
	w.mu.Unlock()
	reaches(t, &w.mu, &w.done, goal)
}

// TestCutLinkOfTwoHomes cuts the link of two nodes that both reach the leader, and each is the home of files of which the other has the only copy. The leader gets
// copies before one of the two is put out. Programs of the two that stay wait, and see no error; nothing that was synced is lost.
func TestCutLinkOfTwoHomes(t *testing.T) {
	c := cluster(t, harness.Options{Nodes: 3, Network: harness.Namespaces})
	all := clients(c)
	lead := leader(t, c)
	pair := slices.DeleteFunc(c.Nodes(), func(n *harness.Node) bool { return n == lead })
	all[0].Must("mkdir %s", all[0].Path("d"))
	all[0].SetXattr("d", "user.dsm.replicas", "2")
	all[0].SetXattr("d", "user.dsm.placement", "spread")
	var files []string
	both := make(map[string]bool) // the homes of files that have a copy at the other one of the pair
	for i := range 36 {
		f := fmt.Sprintf("d/f%d", i)
		files = append(files, f)
		all[0].Open(f, "rw,creat,excl").Truncate(3 * page)
		home, backups := backupsOf(t, c.Node(1), all[0], f, 2)
		if home != lead.Name && backups[0] != lead.Name {
			both[home] = true
		}
	}
	if len(both) != 2 {
		t.Fatalf("nothing is tested: only %v are homes of files with a copy at the other", both)
	}
	stop := make(chan struct{})
	var running sync.WaitGroup
	work := make(map[string]*rewriter)
	for i, n := range c.Nodes() {
		w := &rewriter{cl: n.Client(), at: int64(i) * page}
		work[n.Name] = w
		running.Go(func() { w.run(files, stop) })
	}
	for _, w := range work {
		w.beyond(t, 1)
	}

	c.Partition(pair[:1], pair[1:])
	out := func() *harness.Node {
		rows := report[[]row](t, lead, "members")
		for _, n := range pair {
			if !slices.ContainsFunc(rows, func(m row) bool { return m.text("name") == n.Name && !strings.Contains(m.text("state"), "gone") }) {
				return n
			}
		}
		return nil
	}
	if !harness.Eventually(limit, func() bool { return out() != nil }) {
		t.Fatal("two nodes do not reach each other, and none is put out")
	}
	gone := out()
	t.Logf("%s leads, %s is put out", lead.Name, gone.Name)
	for _, n := range c.Nodes() {
		if n != gone {
			work[n.Name].beyond(t, 2)
		}
	}
	c.Heal()
	member(t, lead, gone.Name)
	for _, w := range work {
		w.beyond(t, 1)
	}
	close(stop)
	running.Wait()
	for name, w := range work {
		if name != gone.Name && len(w.errs) > 0 {
			t.Errorf("a program of %s, which was not put out, saw %d errors: %s", name, len(w.errs), w.errs[0])
		}
		for i, f := range files {
			for _, cl := range all {
				text := string(cl.Open(f, "r").Read(w.at, 8))
				if got, err := strconv.Atoi(text); err != nil || got < w.acked[i] || got > w.tried[i] {
					t.Errorf("%s has synced %d to %s, and %q is read", name, w.acked[i], f, text)
				}
			}
		}
	}
}
