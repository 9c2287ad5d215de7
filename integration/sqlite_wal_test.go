package integration

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// TestSQLiteWAL has a database in WAL mode used by two nodes: in turns, for the second is refused while programs of the first
// have it open. No commit is lost.
func TestSQLiteWAL(t *testing.T) {
	const refused = "OperationalError unable to open database file"
	c := nodes(t, 2)
	a, a2, b := newLocker(t, c.Node(1)), newLocker(t, c.Node(1)), newLocker(t, c.Node(2))
	insert := func(n int) string { return fmt.Sprintf(`sql("INSERT INTO t VALUES (hex(randomblob(200)))", %d)`, n) }
	count := func(want int) string { return fmt.Sprint(want) }
	const counted = `sql("SELECT count(*) FROM t")`

	a.do("ok", `connect("wal.db")`)
	a.do("wal", `sql("PRAGMA journal_mode=WAL")`)
	a.do("ok", `sql("CREATE TABLE t (x)")`)
	a.do("ok", insert(200))
	b.do("ok", `connect("wal.db")`)
	b.do(refused, counted)
	a2.do("ok", `connect("wal.db")`) // another program of the same node
	a2.do("ok", insert(100))
	a.do("ok", insert(100))
	b.do(refused, insert(1))
	b.do("EBUSY", `op("wal.db-shm", "g", os.O_RDWR)`)
	a.do(count(400), counted)
	a2.do("ok", "disconnect()")
	b.do(refused, counted)

	// The last program there goes, without a word: the log has commits that are not in the database.
	a.kill()
	var got string
	if harness.Eventually(limit, func() bool {
		b.start(counted)
		got = b.answer()
		return got != refused
	}); got != count(400) {
		t.Fatalf("%q, want 400", got)
	}
	b.do("ok", insert(100))
	a = newLocker(t, c.Node(1))
	a.do("ok", `connect("wal.db")`)
	a.do(refused, counted)
	b.do("ok", "disconnect()") // which removes the log
	a.do(count(500), counted)
	a.do("ok", `sql("PRAGMA integrity_check")`)
	b.do("ok", `connect("wal.db")`)
	b.do(refused, counted)
	b.do("ok", "disconnect()")
	a.do("delete", `sql("PRAGMA journal_mode=DELETE")`)
	b.do("ok", `connect("wal.db")`)
	b.do(count(500), counted)
	for i := range 20 {
		[]*locker{a, b}[i%2].do("ok", insert(1))
	}
	a.do(count(520), counted)

	// What only ends like it is a file like others.
	b.do("ok", `op("plain")`)
	b.do("ok", `op("plain-shm", "g")`)
	a.do("ok", `op("plain")`)
	a.do("ok", `op("plain-shm", "g")`)

	text, err := os.ReadFile(c.Node(2).LogFile())
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "PRAGMA journal_mode=DELETE"); n < 1 || n > 4 {
		t.Errorf("the log says %d times what to do", n)
	}
}

// TestSQLiteWALOfDeadNode: what a node that died had open is free some seconds later.
func TestSQLiteWALOfDeadNode(t *testing.T) {
	c := cluster(t, harness.Options{})
	impatient(c, 2, 1, "2s")
	a, b := newLocker(t, c.Node(1)), newLocker(t, c.Node(2))
	names := []string{"a.db", "b.db", "c.db", "d.db"} // the dead node may be the home of some
	for i, name := range names {
		b.do("ok", fmt.Sprintf("connect(%q)", name))
		b.do("wal", `sql("PRAGMA journal_mode=WAL")`)
		b.do("ok", `sql("CREATE TABLE t (x)")`)
		b.do("ok", fmt.Sprintf("files.update({%q: files['d']}) or 'ok'", name))
		a.do("ok", fmt.Sprintf("op(%q, %q)", name, fmt.Sprint(i)))
		a.do("EBUSY", fmt.Sprintf("op(%q, 'g')", name+"-shm"))
	}
	c.Node(2).Kill()
	for _, name := range names {
		if !harness.Eventually(limit, func() bool {
			a.start("op(%q, 'g')", name+"-shm")
			return a.answer() != "EBUSY"
		}) {
			t.Errorf("%s is taken for good", name)
		}
	}
}
