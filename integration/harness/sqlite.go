package harness

import "fmt"

// SQLite is a database on a mount, in which programs of several nodes count together. Its methods return programs for Node.Python.
type SQLite struct {
	Name    string // of its file, in the mount
	Journal string // its mode
	Rounds  int    // how far each node counts
}

// Create makes it.
func (s SQLite) Create() string {
	return fmt.Sprintf(`
import sqlite3
db = sqlite3.connect(mnt + %q)
db.execute('PRAGMA journal_mode=%s')
db.execute('CREATE TABLE counter (n)')
db.execute('CREATE TABLE rows (node, i, text)')
db.execute('INSERT INTO counter VALUES (0)')
db.commit()
db.close()
`, s.Name, s.Journal)
}

// Count counts, and adds a row each time.
func (s SQLite) Count(n *Node) string {
	return fmt.Sprintf(`
import sqlite3
db = sqlite3.connect(mnt + %q, timeout=100, isolation_level=None)
db.execute('PRAGMA journal_mode=%s')
for i in range(%d):
    db.execute('BEGIN IMMEDIATE')
    n, = db.execute('SELECT n FROM counter').fetchone()
    db.execute('UPDATE counter SET n=?', (n + 1,))
    db.execute('INSERT INTO rows VALUES (?, ?, ?)', (%q, i, 'x' * (i * 97 %% 4000)))
    db.execute('COMMIT')
`, s.Name, s.Journal, s.Rounds, n.Name)
}

// Check prints what there is: want, when so many nodes have counted.
func (s SQLite) Check(nodes int) (program, want string) {
	return fmt.Sprintf(`
import sqlite3
db = sqlite3.connect(mnt + %q, timeout=100)
n, = db.execute('SELECT n FROM counter').fetchone()
rows = db.execute('SELECT DISTINCT node, i FROM rows').fetchall()
whole = all(len(t) == i * 97 %% 4000 for i, t in db.execute('SELECT i, text FROM rows'))
print(n, len(rows), whole, db.execute('PRAGMA integrity_check').fetchone()[0])
`, s.Name), fmt.Sprintf("%d %d True ok", nodes*s.Rounds, nodes*s.Rounds)
}
