"""Where a path is: in which mount, and what the filesystem calls it."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ._errors import NotMountedError, PlaneUnavailableError

CONTROL = ".dsm"

# The attach sockets that mounts have named, by mount point and device. A later mount may have the device of one that is gone.
_sockets: dict[tuple[str, str | None], str] = {}
FSTYPE = "fuse.dsmfs"


@dataclass(frozen=True)
class Mount:
    """A dsmfs mount as ``/proc/self/mountinfo`` has it.

    `root` is the directory of the filesystem that is mounted: ``/`` but for bind
    mounts. `device` is the same for all mounts of one node.
    """

    point: str
    root: str
    device: str


@dataclass(frozen=True)
class Location:
    """An area: its path as given, from the root of the filesystem, the point of a whole mount of it, and the mount's device.

    The first is None for an area of a node without a mount, and so are the last two; `top` is
    also None if only a part of the filesystem is mounted in this namespace.
    """

    path: str | None
    inside: str
    top: str | None
    device: str | None = None

    def beside(self, name: str) -> Location:
        """Return the place of another file in the same directory."""
        path = None if self.path is None else os.path.join(os.path.dirname(self.path), name)
        return Location(path, os.path.join(os.path.dirname(self.inside), name), self.top, self.device)

    def control(self, name: str) -> str | None:
        """Return the path of a control file of the area, None if it is out of reach."""
        return None if self.top is None else os.path.join(self.top, CONTROL, "areas", self.inside.lstrip("/"), name)

    def attach_socket(self, fresh: bool = False) -> str:
        """Return the path of the socket for attaching: what the mount has said before, unless it is to be asked once more.

        Raises
        ------
        PlaneUnavailableError
            The node has none.
        """
        named = os.environ.get("DSMFS_ATTACH")
        if named:
            return named
        if self.top is None:
            raise PlaneUnavailableError(errno.ENODEV, "only a part of the filesystem is mounted here", str(self))
        known = None if fresh else _sockets.get((self.top, self.device))
        if known is not None:
            return known
        path = os.path.join(self.top, CONTROL, "attach")
        try:
            name = _control(path).strip()
            _sockets[self.top, self.device] = name
            return name
        except FileNotFoundError as e:
            raise PlaneUnavailableError(errno.ENODEV, "the daemon has no /.dsm/attach", str(self)) from e
        except OSError as e:
            why = f"the daemon lets no program attach: {e.strerror}"
            raise PlaneUnavailableError(e.errno or errno.EIO, why, str(self)) from e

    def __str__(self) -> str:
        return self.inside if self.path is None else self.path


def _control(path: str) -> str:
    """Read a file of `/.dsm`. If the daemon that had opened it ends meanwhile, it is opened once more, at the one that follows."""
    for again in (*range(7), None):
        try:
            with open(path, encoding="utf-8") as f:
                return f.read()
        except OSError as e:
            if e.errno != errno.EBADF or again is None:
                raise
    raise AssertionError("the last one returns or raises")


def _unescape(s: str) -> str:
    if "\\" not in s and s.isascii():
        return s
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), s).encode("latin-1").decode("utf-8", "surrogateescape")


def _table() -> Iterator[tuple[str, Mount]]:
    with open("/proc/self/mountinfo", encoding="latin-1") as f:
        for line in f:
            left, _, right = line.partition(" - ")
            fields = left.split(" ")
            yield right.split(" ")[0], Mount(_unescape(fields[4]), _unescape(fields[3]), fields[2])


def mounts() -> Iterator[Mount]:
    """Yield the dsmfs mounts of this mount namespace."""
    return (m for kind, m in _table() if kind == FSTYPE)


def _below(path: str, point: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")


def is_area(status: os.stat_result) -> bool:
    """Tell whether a file is in a dsmfs mount."""
    device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    return stat.S_ISREG(status.st_mode) and any(m.device == device for m in mounts())


def find_mount(path: str) -> Mount | None:
    """Return the dsmfs mount that a path with no symlinks is in."""
    return _find(path, _table())


def _find(path: str, table: Iterable[tuple[str, Mount]]) -> Mount | None:
    best: tuple[str, Mount] | None = None
    for kind, m in table:  # a later mount hides an earlier one at the same point
        if _below(path, m.point) and (best is None or len(m.point) >= len(best[1].point)):
            best = kind, m
    return best[1] if best is not None and best[0] == FSTYPE else None


def locate(path: str | os.PathLike[str]) -> Location:
    """Find out where an area is.

    Parameters
    ----------
    path
        In a mount; the file itself need not exist. With ``$DSMFS_ATTACH`` set, a path in
        no mount is one from the root of the filesystem of that node.

    Raises
    ------
    NotMountedError
        The path is in no mount.
    """
    given = os.fsdecode(path)
    directory, name = os.path.split(os.path.abspath(given))
    real = os.path.join(os.path.realpath(directory), name)
    if os.path.islink(real):
        real = os.path.realpath(real)
    table = list(_table())
    mount = _find(real, table)
    if mount is not None:
        rest = real[len(mount.point.rstrip("/")) :]
        inside = os.path.normpath(mount.root.rstrip("/") + "/" + rest.lstrip("/"))
        whole = [m.point for k, m in table if k == FSTYPE and m.device == mount.device and m.root == "/"]
        return Location(real, inside, whole[0] if whole else None, mount.device)
    if os.environ.get("DSMFS_ATTACH"):
        return Location(None, os.path.normpath("/" + given.lstrip("/")), None)
    raise NotMountedError(
        errno.ENODEV,
        "in no dsmfs mount of this machine: 'mount -t fuse.dsmfs' lists them, dsmfs.mount() makes one",
        given,
    )
