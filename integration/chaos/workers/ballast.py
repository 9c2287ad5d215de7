"""A file that takes nearly all the memory there is while a fault lasts."""

import contextlib
import os
import select
import sys

from integration.chaos.workers.worker import Worker

SPARE = 1 << 20


class Ballast(Worker):
    """One worker, which the nemesis starts and ends."""

    def work(self) -> None:
        path = self.path(f"ballast-{self.number}")
        with contextlib.suppress(OSError):
            self.op("fill", lambda: self.fill(path))
        select.select([sys.stdin], [], [])
        self.op("free", lambda: os.unlink(path))

    def fill(self, path: str) -> int:
        """Return how many bytes there are to spare, and take them."""
        free = os.statvfs(self.mount)
        size = max(0, free.f_bavail * free.f_frsize - SPARE)
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        try:
            os.posix_fallocate(fd, 0, max(size, 1))
            for at in range(0, size, SPARE):
                os.pwrite(fd, b"b" * min(SPARE, size - at), at)
        finally:
            os.close(fd)
        return size
