"""Integers in a mapped file that merge by one rule each: values that workers store, and what they load."""

import contextlib
import mmap
import os
from typing import Any

from integration.chaos.workers.worker import Refused, Worker

CELLS = 8  # that all workers share, each a MiB from the next: other extents, so other homes
STRIDE = (1 << 20) // 8
OWN = 1024  # the first of the cells that belong to one worker each
ROOM = 4096  # how many of them
SIZE = CELLS << 20


class Cells(Worker):
    """A file of integers."""

    rule = "last"
    name = "last"  # of the file
    file: int | None = None
    memory: mmap.mmap | None = None

    def setup(self) -> None:
        path = self.path(self.name)
        with open(path, "xb") as f:
            for key, value in {"merge": self.rule, "dtype": "i64", "placement": "spread"}.items():
                os.setxattr(path, f"user.dsm.{key}", value.encode())
            with contextlib.suppress(OSError):  # not known yet to all versions
                os.setxattr(path, "user.dsm.replicas", b"2")
            f.truncate(SIZE)

    def cells(self) -> "memoryview[int]":
        """Return the mapping, made if there is none."""
        if self.memory is None:
            self.file = os.open(self.path(self.name), os.O_RDWR)
            self.memory = mmap.mmap(self.file, SIZE)
        return memoryview(self.memory).cast("q")

    def reset(self) -> None:
        file, self.file, self.memory = self.file, None, None
        if file is not None:
            with contextlib.suppress(OSError):
                os.close(file)

    def store(self, value: int, cell: int) -> dict[str, Any]:
        """Store a value and publish it; what was there before is in the answer."""
        at = self.cells()
        before = int(at[cell * STRIDE])
        at[cell * STRIDE] = self.merged(before, value)
        at.release()
        assert self.memory is not None
        self.memory.flush()
        return {"v": before}

    def merged(self, before: int, value: int) -> int:
        """Return what is stored over a value."""
        return value

    def read(self, cell: int) -> int:
        """Open, which is an acquire, and read."""
        fd = os.open(self.path(self.name), os.O_RDONLY)
        try:
            return int.from_bytes(os.pread(fd, 8, cell << 20), "little", signed=True)
        finally:
            os.close(fd)

    def step(self) -> None:
        cell = self.random.randrange(CELLS)
        if self.random.randrange(2):
            value = self.value()
            self.op("write", lambda: self.store(value, cell), f"{self.name}/{cell}", n=value)
        else:
            self.op("read", lambda: self.read(cell), f"{self.name}/{cell}")

    def value(self) -> int:
        """Return a value that nobody else stores."""
        return self.number << 32 | self.count + 1

    def publish(self) -> None:
        self.op("publish", self.sync)

    def sync(self) -> None:
        """Publish all stores of the node."""
        fd = os.open(self.path(self.name), os.O_RDWR)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def final(self) -> None:
        self.op("final", self.everything)

    def everything(self) -> dict[str, Any]:
        """Return all cells, those of one worker too."""
        fd = os.open(self.path(self.name), os.O_RDONLY)
        try:
            shared = b"".join(os.pread(fd, 8, cell << 20) for cell in range(CELLS))
            own = os.pread(fd, 8 * ROOM, 8 * OWN)
        finally:
            os.close(fd)
        return {"s": list(memoryview(shared + own).cast("q"))}


class Last(Cells):
    """The last value stays."""


class Max(Cells):
    """The greatest value stays. Values are random, so few of them do."""

    rule, name = "max", "max"

    def value(self) -> int:
        return self.random.randrange(1 << 20) << 32 | (super().value() & 0xFFFFFFFF)

    def merged(self, before: int, value: int) -> int:
        return max(before, value)


class Min(Max):
    """The least value stays."""

    rule, name = "min", "min"

    def value(self) -> int:
        return -super().value()

    def merged(self, before: int, value: int) -> int:
        return min(before, value)


class Sum(Cells):
    """Every worker adds one to some cells that all share, and to one of its own."""

    rule, name = "sum", "sum"

    def step(self) -> None:
        cells = sorted(self.random.sample(range(CELLS), 2))
        self.op("add", lambda: self.add(cells), n=sum(1 << c for c in cells))

    def add(self, cells: list[int]) -> dict[str, Any]:
        """Add one and sync; the answer is the own cell, and in s what the others hold then."""
        try:
            at = self.cells()
        except OSError as e:
            raise Refused(f"open: {e}") from e
        own = OWN + self.number
        try:
            for cell in [*(c * STRIDE for c in cells), own]:
                at[cell] += 1
            assert self.memory is not None
            self.memory.flush()
            return {"v": int(at[own]), "s": [int(at[c * STRIDE]) for c in cells]}
        finally:
            at.release()

    def reset(self) -> None:
        """Keep the mapping: its stores are published later."""
