"""A number in a file that is read and made one greater under a lock: a fencing token."""

import contextlib
import fcntl
import os
import time
from typing import Any

from integration.chaos.workers.worker import Refused, Worker

NAMES = ("posix", "flock")


class Locks(Worker):
    """Two files, one for each kind of lock."""

    def setup(self) -> None:
        for name in NAMES:
            with open(self.path("lock-" + name), "xb") as f:
                f.write(bytes(8))

    def step(self) -> None:
        name = self.random.choice(NAMES)
        self.op("section", lambda: self.section(name), name)

    def section(self, name: str) -> dict[str, Any]:
        """Take a token; s is when the lock was had, and when it was given back."""
        lock = fcntl.lockf if name == "posix" else fcntl.flock
        try:
            fd = os.open(self.path("lock-" + name), os.O_RDWR)
        except OSError as e:
            raise Refused(f"open: {e}") from e
        answer: dict[str, Any] = {}
        try:
            try:
                lock(fd, fcntl.LOCK_EX)
                held = time.monotonic_ns()
                token = int.from_bytes(os.pread(fd, 8, 0), "little")
            except OSError as e:
                raise Refused(f"lock: {e}") from e
            answer.update(v=token, s=[held, 0])
            try:
                os.pwrite(fd, (token + 1).to_bytes(8, "little"), 0)
                answer["s"][1] = time.monotonic_ns()
                lock(fd, fcntl.LOCK_UN)
            except OSError as e:
                answer.update(r="unknown", e=f"unlock: {e}")
        finally:
            with contextlib.suppress(OSError):
                os.close(fd)
        return answer
