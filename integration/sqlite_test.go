package integration

import (
	"fmt"
	"strings"
	"testing"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// TestSQLite has programs of three nodes add to a counter, and insert rows, in one database with a rollback
// journal. Every transaction that SQLite has committed counts.
func TestSQLite(t *testing.T) {
	needNumPy(t)
	c := nodes(t, 3)
	for _, journal := range []string{"DELETE", "TRUNCATE", "PERSIST"} {
		t.Run(journal, func(t *testing.T) {
			db := harness.SQLite{Name: "/" + journal + ".db", Journal: journal, Rounds: 30}
			c.Node(1).Python(db.Create())
			everywhere(t, c, db.Count)
			look, want := db.Check(3)
			for _, n := range c.Nodes() {
				if got := n.Python(look); got != want {
					t.Errorf("%s: %s, want %s", n.Name, got, want)
				}
			}
		})
	}
}

// TestSQLiteReadersSeeWholeTransactions moves an amount between two rows on one node while others read
// the sum.
func TestSQLiteReadersSeeWholeTransactions(t *testing.T) {
	needNumPy(t)
	c := nodes(t, 3)
	c.Node(1).Python(`
import sqlite3
db = sqlite3.connect(mnt + '/bank.db')
db.execute('CREATE TABLE account (id INTEGER PRIMARY KEY, amount, pad)')
for i in range(200): db.execute('INSERT INTO account VALUES (?, 100, ?)', (i, 'x' * 500))
db.commit()
`)
	everywhere(t, c, func(n *harness.Node) string {
		if n == c.Node(2) {
			return `
import sqlite3, random
db = sqlite3.connect(mnt + '/bank.db', timeout=100)
for _ in range(40):
    a, b = random.sample(range(200), 2)
    db.execute('UPDATE account SET amount = amount - 7 WHERE id=?', (a,))
    db.execute('UPDATE account SET amount = amount + 7 WHERE id=?', (b,))
    db.commit()
`
		}
		return `
import sqlite3
db = sqlite3.connect(mnt + '/bank.db', timeout=100)
for _ in range(60):
    total, = db.execute('SELECT sum(amount) FROM account').fetchone()
    assert total == 20000, total
`
	})
}

// TestDiskcache has three nodes count in one cache, which is SQLite in its default mode: a write-ahead log,
// which takes memory that the programs of one machine share. So it is told to use a rollback journal. To open a
// cache while others write fails at once ("database is locked"), on any filesystem.
func TestDiskcache(t *testing.T) {
	needNumPy(t)
	c := nodes(t, 3)
	if res := c.Node(1).TryPython("import diskcache"); strings.Contains(res.Stderr, "No module") {
		t.Skip("no diskcache: pip install -r requirements-dev.txt")
	}
	const rounds = 8
	open := "import diskcache\ncache = diskcache.Cache(mnt + '/cache', timeout=100, sqlite_journal_mode='delete', sqlite_mmap_size=0)\n"
	c.Node(1).Python(open + "cache['n'] = 0; cache.close()")
	everywhere(t, c, func(n *harness.Node) string {
		return "import fcntl\nf = open(mnt + '/opening', 'w')\nfcntl.flock(f, fcntl.LOCK_EX)\n" + open + fmt.Sprintf(`
fcntl.flock(f, fcntl.LOCK_UN)
meet()
for i in range(%d):
    cache.incr('n')
    cache[%q + str(i)] = b'v' * 100
    with cache.transact():
        cache['m'] = cache.get('m', 0) + 1
cache.close()
`, rounds, n.Name)
	})
	for _, n := range c.Nodes() {
		if got, want := n.Python(open+"print(cache['n'], cache['m'], len(cache), cache.check())"), fmt.Sprintf("%d %d %d []", 3*rounds, 3*rounds, 3*rounds+2); got != want {
			t.Errorf("%s: %s, want %s", n.Name, got, want)
		}
	}
}
