"""Reads versions of an array whose elements are all of one value in each, and tells how many it saw and how many were torn.

Each line of input names a value; the answer comes when an array of that value, or a larger one, has been seen:
``ok SEEN TORN``. A torn array has several values, or an older one than the array before.
"""

import errno
import mmap
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

HOW, MOUNT, NAME, COUNT = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
PATH = os.path.join(MOUNT, NAME)
VERSIONS = os.path.join(MOUNT, ".dsm", "areas", NAME, "versions")
SIZE = 8 * COUNT


def newest() -> int:
    """Open the newest version, which may be dropped in between."""
    while True:
        names = os.listdir(VERSIONS)
        if not names:
            continue
        try:
            return os.open(os.path.join(VERSIONS, names[-1]), os.O_RDONLY)
        except OSError as e:
            if e.errno != errno.ESTALE:
                raise


def live(fd: int) -> Array:
    """One read() of the live name."""
    return np.frombuffer(os.pread(fd, SIZE, 0), "i8")


def pieces(fd: int) -> Array:
    """A file from one end to the other, as cat reads it."""
    os.lseek(fd, 0, os.SEEK_SET)
    found = b""
    while piece := os.read(fd, 1 << 17):
        found += piece
    return np.frombuffer(found, "i8")


def version() -> Array:
    """A version, by read()."""
    fd = newest()
    try:
        return pieces(fd)
    finally:
        os.close(fd)


def sent() -> Array:
    """A version, by sendfile(2), as shutil.copy reads it."""
    fd, to = newest(), os.memfd_create("copy")
    try:
        while os.sendfile(to, fd, None, SIZE):
            pass
        return np.frombuffer(os.pread(to, SIZE, 0), "i8")
    finally:
        os.close(fd)
        os.close(to)


def mapped() -> Array:
    """A version, by mmap."""
    fd = newest()
    try:
        return np.frombuffer(mmap.mmap(fd, SIZE, mmap.MAP_SHARED, mmap.PROT_READ), "i8")
    finally:
        os.close(fd)


def arrays() -> Iterator[Array]:
    """Yield what is read, again and again."""
    if HOW == "snapshot":
        import dsmfs

        with dsmfs.open(PATH, "r", dtype="i8") as w:
            while True:
                with w.snapshot() as a:
                    yield a
    if HOW in ("live", "pieces"):
        fd = os.open(PATH, os.O_RDONLY)
        read = live if HOW == "live" else pieces
        while True:
            yield read(fd)
    read_version = {"version": version, "sendfile": sent, "mmap": mapped}[HOW]
    while True:
        yield read_version()


def main() -> None:
    """Answer."""
    last, torn = 0, 0
    values: set[int] = set()
    kept: list[tuple[int, Array]] = []  # mappings of older versions, which do not change
    source = arrays()
    for line in sys.stdin:
        while last < int(line):
            a = next(source)
            least, most = (int(a.min()), int(a.max())) if len(a) == COUNT else (0, -1)
            if least != most or least < last:
                print(f"torn: {HOW}: {len(a)} elements from {least} to {most} after {last}", file=sys.stderr)
                torn += 1
            last = max(last, most)
            values.add(least)
            if HOW == "mmap":
                torn += sum(1 for v, b in kept if not (b == v).all())
                kept = [*kept[-3:], (least, a)]
        print("ok", len(values), torn, flush=True)


main()
