"""A database of SQLite that programs of all nodes change: a counter, and a row for each time it was counted."""

import contextlib
import sqlite3
from typing import Any

from integration.chaos.workers.worker import Refused, Worker


class Database(Worker):
    """One connection, with a rollback journal."""

    db: sqlite3.Connection | None = None

    def connect(self) -> sqlite3.Connection:
        """Return the connection, made if there is none."""
        if self.db is None:
            self.db = sqlite3.connect(self.path("chaos.db"), timeout=20, isolation_level=None)
        return self.db

    def setup(self) -> None:
        db = self.connect()
        db.execute("CREATE TABLE counter (n)")
        db.execute("CREATE TABLE rows (worker, i, text)")
        db.execute("INSERT INTO counter VALUES (0)")

    def step(self) -> None:
        i = self.count + 1
        self.op("commit", lambda: self.transaction(i), n=i)

    def transaction(self, i: int) -> int:
        """Count, and insert a row."""
        try:
            db = self.connect()
            db.execute("BEGIN IMMEDIATE")
            (n,) = db.execute("SELECT n FROM counter").fetchone()
            db.execute("UPDATE counter SET n = ?", (n + 1,))
            db.execute("INSERT INTO rows VALUES (?, ?, ?)", (self.number, i, "x" * (i * 97 % 3000)))
        except sqlite3.Error as e:
            self.reset()
            raise Refused(str(e)) from e
        db.execute("COMMIT")
        return int(n) + 1

    def reset(self) -> None:
        db, self.db = self.db, None
        if db is not None:
            with contextlib.suppress(sqlite3.Error):
                db.close()

    def final(self) -> None:
        self.op("final", self.everything)

    def everything(self) -> dict[str, Any]:
        """Return the counter, the rows, and what is wrong with the file."""
        db = self.connect()
        (n,) = db.execute("SELECT n FROM counter").fetchone()
        rows = db.execute("SELECT worker, i FROM rows ORDER BY worker, i").fetchall()
        (check,) = db.execute("PRAGMA integrity_check").fetchone()
        return {"v": n, "s": [x for row in rows for x in row], "e": "" if check == "ok" else str(check)}
