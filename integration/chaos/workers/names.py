"""Names of a directory, and the size of a file. Each directory and file is used for some seconds only, so that a history falls into parts."""

import contextlib
import os
import time
from typing import Any

from integration.chaos.workers.worker import Worker

SPAN = 3  # seconds


class Names(Worker):
    """Create (O_EXCL), unlink, rename and stat of three names."""

    def step(self) -> None:
        part = f"names-{int(time.monotonic()) // SPAN}"
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.path(part))
        a, b = self.random.choice("xyz"), self.random.choice("xyz")
        at, to = self.path(part, a), self.path(part, b)
        k = self.random.randrange(10)
        if k < 3:
            self.op("create", lambda: self.create(at), f"{part}/{a}")
        elif k < 5:
            self.op("unlink", lambda: os.unlink(at), f"{part}/{a}")
        elif k < 7 and a != b:
            self.op("rename", lambda: os.rename(at, to), f"{part}/{a}", f"{part}/{b}")
        else:
            self.op("stat", lambda: os.stat(at).st_ino, f"{part}/{a}")

    def create(self, path: str) -> int:
        """Return the number of the file, which must not exist."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            return os.fstat(fd).st_ino
        finally:
            with contextlib.suppress(OSError):  # it has nothing to write
                os.close(fd)


class Sizes(Worker):
    """Append, truncate and stat of one file."""

    def step(self) -> None:
        name = f"sizes-{int(time.monotonic()) // SPAN}"
        path = self.path(name)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            n = self.random.randrange(1, 1 << 14)
            k = self.random.randrange(10)
            if k < 4:
                self.op("append", lambda: self.append(fd, n), name, n=n)
            elif k < 6:
                self.op("setsize", lambda: os.ftruncate(fd, n), name, n=n)
            else:
                self.op("getsize", lambda: os.stat(path).st_size, name)
        finally:
            os.close(fd)

    def append(self, fd: int, n: int) -> dict[str, Any]:
        """Write n bytes at the end; fewer are an unknown answer."""
        wrote = os.write(fd, b"a" * n)
        return {"v": wrote} if wrote == n else {"r": "unknown", "e": f"short write of {wrote}"}
