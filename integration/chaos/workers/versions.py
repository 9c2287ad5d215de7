"""An array of one value that a single owner publishes again and again, while readers look whether what they see is whole."""

import contextlib
import mmap
import os
import struct
from typing import Any

from integration.chaos.workers.worker import Worker

COUNT = 40_000


class Versioned(Worker):
    """The worker of the first node writes; the others read."""

    memory: mmap.mmap | None = None
    file: int | None = None

    def setup(self) -> None:
        path = self.path("versioned")
        with open(path, "xb") as f:
            os.setxattr(path, "user.dsm.mode", b"versioned")
            with contextlib.suppress(OSError):  # not known yet to all versions
                os.setxattr(path, "user.dsm.replicas", b"2")
            f.truncate(8 * COUNT)

    def step(self) -> None:
        if self.node == "n1":
            value = self.number << 32 | self.count + 1
            self.op("publish", lambda: self.put(value), n=value)
        elif self.random.randrange(3):
            self.op("open", self.fresh)
        else:
            self.op("read", self.again)

    def put(self, value: int) -> None:
        """Publish a version; this node becomes the owner if it is not."""
        if self.memory is None:
            try:
                self.file = os.open(self.path("versioned"), os.O_RDWR)
            except PermissionError:
                with open(self.path(".dsm/areas/versioned/owner"), "w") as f:
                    f.write("here\n")
                raise
            self.memory = mmap.mmap(self.file, 8 * COUNT)
        self.memory[:] = struct.pack("<q", value) * COUNT
        self.memory.flush()

    def fresh(self) -> dict[str, Any]:
        """Open the file and read it in one call."""
        fd = os.open(self.path("versioned"), os.O_RDONLY)
        try:
            return self.whole(os.pread(fd, 8 * COUNT, 0))
        finally:
            os.close(fd)

    def again(self) -> dict[str, Any]:
        """Read once more by a descriptor that stays open."""
        if self.file is None:
            self.file = os.open(self.path("versioned"), os.O_RDONLY)
        return self.whole(os.pread(self.file, 8 * COUNT, 0))

    def whole(self, read: bytes) -> dict[str, Any]:
        """Return the value, and in s the first that differs from it."""
        if read == read[:8] * COUNT:
            return {"v": struct.unpack("<q", read[:8])[0]}
        values = struct.unpack(f"<{len(read) // 8}q", read[: len(read) & ~7])
        return {"v": values[0] if values else 0, "s": [len(values), *[v for v in values if v != values[0]][:1]]}

    def reset(self) -> None:
        file, self.file, self.memory = self.file, None, None
        if file is not None:
            with contextlib.suppress(OSError):
                os.close(file)

    def final(self) -> None:
        self.op("final", self.fresh)
