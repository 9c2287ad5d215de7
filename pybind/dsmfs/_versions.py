"""Versions of an area with ``consistency='versioned'``: which there are, and snapshots of them."""

from __future__ import annotations

import errno
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _layout
from ._errors import (
    ClosedError,
    FormatError,
    NotFoundError,
    OperationError,
    VersionDroppedError,
    from_errno,
    translated,
)
from ._layout import Layout
from ._mounts import Location
from ._plane import Mapping
from ._tensors import Tensors

_LOGICAL_BITS = 12
_TRIES, _PAUSE = 10, 0.001  # how often snapshot looks for the newest version, and seconds between two looks
_OWNER = "user.dsm.owner"


def version_time(version: int) -> float:
    """Return when a version was made.

    Parameters
    ----------
    version
        A hybrid logical clock: the upper 52 bits are microseconds since 1970, the lower 12 count
        events within one.

    Returns
    -------
    float
        Seconds since 1970, as of `time.time`, by the clock of the node that made it.
        0.0 for version 0, which is before every publish.
    """
    return (version >> _LOGICAL_BITS) / 1e6


@dataclass(frozen=True)
class Version:
    """A version of an area.

    Attributes
    ----------
    number : int
        As of :attr:`Area.version`. Later versions have larger numbers.
    stamp : float
        When it was made: seconds since 1970, by the clock of its writer (a hybrid logical clock: it never goes backwards).
    size : int
        Of the file, in bytes.
    writer : str
        The name of the node that published it; ``-`` if that is not known any more.
    """

    number: int
    stamp: float
    size: int
    writer: str

    @property
    def age(self) -> float:
        """Seconds since it was made, by the clock of this node. Not negative."""
        return max(0.0, time.time() - self.stamp)


def control(where: Location, name: str) -> str:
    """Return the path of a control file of the area.

    Raises
    ------
    OperationError
        EOPNOTSUPP: it is out of reach.
    """
    path = where.control(name)
    if path is None:
        raise OperationError(
            errno.EOPNOTSUPP,
            "owner and versions of an area are reached through a mount, and there is none here",
            str(where),
        )
    return path


@contextmanager
def held(where: Location, number: int, doing: str) -> Iterator[str]:
    """Hold the file of an area without opening it, whatever becomes of its path; the value is a path that leads to it for as long.

    Raises
    ------
    OperationError
        ESTALE: the path leads to another file, or to none. EOPNOTSUPP: the area is reached without a mount.
    """
    control(where, "owner")
    assert where.path is not None
    try:
        with translated(str(where), doing):
            fd = os.open(where.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotFoundError as e:
        raise from_errno(errno.ESTALE, f"{doing}: the path leads to no file now", str(where)) from e
    try:
        if os.fstat(fd).st_ino != number:
            raise from_errno(errno.ESTALE, f"{doing}: the path leads to another file now", str(where))
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


@contextmanager
def unmoved(where: Location, number: int, doing: str) -> Iterator[None]:
    """Refuse what the body reads by the path of an area if that leads to another file, before or after.

    Raises
    ------
    OperationError
        As of `held`.
    """
    with held(where, number, doing):
        pass
    try:
        yield
    finally:
        with held(where, number, doing):
            pass


def versions(where: Location, number: int) -> list[Version]:
    """Return the versions of the area with this number that this node can read, the oldest first."""
    with unmoved(where, number, "versions"):
        return history(where)


def history(where: Location) -> list[Version]:
    """Return the versions of the file that the path leads to, the oldest first."""
    found = []
    with translated(str(where), "versions"), open(control(where, "history"), encoding="utf-8") as f:
        for line in f:
            number, *pairs = line.split()
            about = dict(pair.split("=", 1) for pair in pairs)
            found.append(Version(int(number), float(about["time"]), int(about["size"]), about["writer"]))
    return found


class Bytes(Mapping):
    """A version, mapped for reading, on no plane. It is kept for as long as it is mapped."""

    @property
    def demand(self) -> bool:
        """All of it is on this node."""
        return False


class Snapshot:
    """A version of an area that does not change: :meth:`Area.snapshot` returns one.

    As a context manager it is :attr:`array`, and is closed at the end. The version is kept, whatever is published meanwhile, until
    the snapshot is closed and its arrays are gone. That costs memory for what changes meanwhile; neither the writer nor other
    readers wait for it.

    Attributes
    ----------
    version : Version
        Which one it is.
    """

    def __init__(self, where: Location, version: Version, layout: Layout) -> None:
        self.version = version
        path = os.path.join(control(where, "versions"), str(version.number))
        try:
            with translated(str(where), f"version {version.number}"):
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    size = os.fstat(fd).st_size
                    mapping = Bytes(fd, size, mmap.MAP_SHARED, mmap.PROT_READ) if size else None
                finally:
                    os.close(fd)
        except OperationError as e:
            if e.errno in (errno.ESTALE, errno.ENOENT):
                raise VersionDroppedError(errno.ESTALE, dropped(where, version.number), str(where)) from e
            raise
        self._path = str(where)
        self._array: npt.NDArray[Any] | None
        if mapping is None:
            self._array, self._tensors = np.empty(0, layout.dtype), Tensors({})
            self._array.flags.writeable = False
            return
        if layout.headed or layout.tensors:
            layout = _layout.read(str(where), mapping, None, None, 0, "C")
        else:
            layout = layout.grown(size)
        if layout.size > size:
            raise FormatError(
                f"{where}: version {version.number} has {size} bytes: too few for {layout.shape} of {layout.dtype} from {layout.offset} on; "
                "open the file with the shape= that it had in this version, or without one"
            )
        self._array, self._tensors = layout.array(mapping), Tensors(layout.views(mapping))

    @property
    def array(self) -> npt.NDArray[Any]:
        """The array, read-only, with the shape and type that it had in this version."""
        if self._array is None:
            raise ClosedError(f"the snapshot of {self._path} is closed")
        return self._array

    @property
    def tensors(self) -> Tensors:
        """The tensors of a ``.safetensors`` file by name, each a read-only array. Empty for other files."""
        if self._array is None:
            raise ClosedError(f"the snapshot of {self._path} is closed")
        return self._tensors

    def close(self) -> None:
        """Let go of the version. Arrays that somebody still has stay as they are, and keep it."""
        self._array, self._tensors = None, Tensors({})

    def __enter__(self) -> npt.NDArray[Any]:
        return self.array

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._array is None else f"{self._array.shape} {self._array.dtype}"
        return f"<dsmfs.Snapshot {self._path!r} {self.version.number} {state}>"


def snapshot(where: Location, number: int, version: int | None, layout: Layout) -> Snapshot:
    """Return a version of the area with this number, None for the newest that is here."""
    for left in reversed(range(_TRIES)):
        with unmoved(where, number, "snapshot"):
            try:
                return newest(where, version, layout)
            except VersionDroppedError:
                if version is not None or left == 0:
                    raise
        time.sleep(_PAUSE)  # it has been dropped since: then there are newer ones
    raise AssertionError("no try was the last")


def newest(where: Location, version: int | None, layout: Layout) -> Snapshot:
    """Return a version, None for the newest that is listed."""
    kept = history(where)
    if version is None and not kept:
        raise from_errno(errno.ENODATA, "nothing has been published yet", str(where))
    found = [v for v in kept if version is None or v.number == version]
    if not found:
        raise VersionDroppedError(errno.ESTALE, dropped(where, version), str(where))
    return Snapshot(where, found[-1], layout)


def dropped(where: Location, number: int | None) -> str:
    """Say why a version cannot be read."""
    kept = history(where)
    if not kept:
        return f"version {number} is not kept on this node; none has been published yet"
    return f"version {number} is not kept on this node; the oldest that is kept is {kept[0].number}, the newest {kept[-1].number}"


def owner(where: Location, number: int) -> str | None:
    """Return the name of the node that owns the area with this number, None if none does."""
    with held(where, number, "owner") as path:
        return owner_of(where, path)


def owner_of(where: Location, path: str) -> str | None:
    """Return the name of the node that owns the file that a path leads to, None if none does."""
    try:
        with translated(str(where), "owner"):
            name = os.getxattr(path, _OWNER).decode()
    except OperationError as e:
        if e.errno == errno.ENODATA:  # the consistency is another one
            return None
        raise
    return None if name in ("", "-") else name


def take(where: Location, number: int) -> None:
    """Make this node the owner of the area with this number."""
    with held(where, number, "take") as path:
        was = None
        try:
            was = owner_of(where, path)
            with translated(str(where), "take"):
                os.setxattr(path, _OWNER, b"here")
        except OperationError as e:
            why = {
                errno.EBUSY: f"programs of node {was} have it open for writing, or it is on its way to another node",
                errno.EINVAL: "only an area with consistency='versioned' has an owner",
                errno.EIO: f"{silent(was)}; the file may still be moved later",
            }.get(e.errno or 0)
            if why is None:
                raise
            code = errno.ETIMEDOUT if e.errno == errno.EIO else e.errno or 0
            raise from_errno(code, f"take: {why}", str(where)) from e


def silent(owner: str | None) -> str:
    """Say who does not answer."""
    if owner is None:
        return "too few of the nodes that vote on names answer"
    return f"the owner, node {owner}, does not answer"
