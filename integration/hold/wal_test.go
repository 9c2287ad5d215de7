package hold_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// walProgram does what a line says to a database in WAL mode.
const walProgram = `
import sqlite3, sys
for line in sys.stdin:
    try:
        if line == 'open\n':
            db = sqlite3.connect(sys.argv[1] + '/wal.db', timeout=60, isolation_level=None)
            db.execute('PRAGMA journal_mode=WAL')
            db.execute('CREATE TABLE IF NOT EXISTS t (x)')
        elif line == 'insert\n':
            db.execute('INSERT INTO t VALUES (1)')
        elif line == 'close\n':
            db.close()
        print('ok', *db.execute('SELECT count(*) FROM t').fetchone() if line != 'close\n' else '', flush=True)
    except sqlite3.OperationalError as e:
        print('fail', e, flush=True)
`

// TestWALOverAKilledDaemon: a database in WAL mode stays with the node whose programs have it open, also when another daemon follows that of the node.
func TestWALOverAKilledDaemon(t *testing.T) {
	python, skip := harness.Interpreter()
	if skip != "" {
		t.Skip(skip)
	}
	nodes := heldCluster(t, 2, "--lease", "10s").Nodes()
	a, b := nodes[0].Program(python, "-c", walProgram, nodes[0].Mount), nodes[1].Program(python, "-c", walProgram, nodes[1].Mount)
	must := func(c *harness.Client, do, want string) {
		t.Helper()
		words, err := c.Do("%s", do)
		if err != nil || len(words) > 0 && words[0] != want {
			t.Fatalf("%s: %v %v, want %s", do, words, err, want)
		}
	}
	refused := func() {
		t.Helper()
		words, err := b.Do("open")
		if failed := harness.Failure(""); !errors.As(err, &failed) || failed != "unable to open database file" {
			t.Fatalf("another node opens the database: %v %v", words, err)
		}
	}
	must(a, "open", "0")
	must(a, "insert", "1")
	refused()
	last := 0
	for _, rows := range []string{"2", "3"} {
		covered(t, nodes[1])
		last = killDaemon(t, nodes[0], last, 0, syscall.SIGKILL)
		must(a, "insert", rows)
		refused()
	}
	must(a, "close", "")
	if !harness.Eventually(limit, func() bool { _, err := b.Do("open"); return err == nil }) {
		t.Fatal("another node is refused when the database is closed")
	}
	must(b, "insert", "4")
	a.Close()
	b.Close()
}
