"""A mount as a whole: its members and its areas."""

from __future__ import annotations

import errno
import os
import stat
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from . import _rules
from ._area import Area
from ._binary import run_binary
from ._errors import NotMountedError, translated
from ._html import html_table
from ._mounts import CONTROL, find_mount
from ._open import create, open
from ._plane import parse_stats

_START_LIMIT, _STOP_LIMIT = 120.0, 120.0  # seconds for dsmfs mount and umount


@dataclass(frozen=True)
class Member:
    """A node of the cluster, as ``/.dsm/members`` shows it. `budget` is its memory for areas, in bytes."""

    id: str
    name: str
    address: str
    state: str
    voter: bool
    leaving: bool
    budget: int

    @classmethod
    def parse(cls, line: str) -> Member:
        """Read a line ``ID key=value ...``; keys of newer daemons are skipped."""
        ident, *pairs = line.split()
        has = dict(p.split("=", 1) for p in pairs)
        return cls(
            id=ident,
            name=has.get("name", ""),
            address=has.get("addr", ""),
            state=has.get("state", ""),
            voter=has.get("voter") == "1",
            leaving=has.get("leaving") == "1",
            budget=int(has.get("budget", "0")),
        )


@dataclass(frozen=True)
class Conflict:
    """Elements to which both sides stored while a node was cut off, as ``/.dsm/areas/<path>/conflicts`` shows them.

    `node` has found and keeps them, `number` counts those of the area there, `found` is when they were found, in seconds since 1970, `offset` where they are in the
    file, `kept` the bytes that were given up, and `taken` those that stayed; None if these are many.
    """

    number: int
    found: float
    offset: int
    kept: bytes
    taken: bytes | None
    node: str = ""

    @classmethod
    def parse(cls, line: str) -> Conflict:
        """Read a line ``NODE/NUMBER time=... offset=... length=... kept=HEX taken=HEX``."""
        key, *pairs = line.split()
        node, _, number = key.rpartition("/")
        has = dict(p.split("=", 1) for p in pairs)
        taken = bytes.fromhex(has["taken"]) if "taken" in has else None
        return cls(int(number), float(has["time"]), int(has["offset"]), bytes.fromhex(has["kept"]), taken, node)


@dataclass(frozen=True)
class AreaInfo:
    """An area that need not be open. Sizes are in bytes; `resident` is what of it is in memory on this node."""

    name: str
    path: str
    size: int
    resident: int
    settings: _rules.Settings

    def open(self, mode: str = "r+", **options: Any) -> Area:
        """Open it: see :func:`dsmfs.open`."""
        return open(self.path, mode, **options)

    @property
    def conflicts(self) -> list[Conflict]:
        """What was given up when nodes, or homes, had been cut off and came back; those of each node together, the oldest first.

        All nodes are asked. There is a RuntimeWarning of a node that does not answer, or keeps more than is listed, or had no room for all.
        """
        lines = self._conflicts.read_text(encoding="utf-8").splitlines()
        other = [line for line in lines if "/" not in line.split()[0]]
        if other:
            text = f"conflicts of {self.name} that are not listed: {', '.join(other)}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        return [Conflict.parse(line) for line in lines if line not in other]

    def clear_conflicts(self, through: Conflict | int | None = None) -> None:
        """Forget conflicts of a node up to this one, those of this node up to a number, or with None all of all nodes."""
        order = "clear" if through is None else f"clear {through}"
        if isinstance(through, Conflict):
            order = f"clear {through.node}/{through.number}"
        self._conflicts.write_text(f"{order}\n", encoding="utf-8")

    @property
    def _conflicts(self) -> Path:
        return Path(self.path.removesuffix(self.name), CONTROL, "areas", self.name, "conflicts")


class Areas(Mapping[str, AreaInfo]):
    """The areas of a filesystem by name: the path from its root, without a slash at the start.

    A live view: every use looks at the mount.
    """

    def __init__(self, root: str) -> None:
        self._root = root

    def __iter__(self) -> Iterator[str]:
        for directory, below, files in os.walk(self._root):
            below.sort()
            for name in sorted(files):
                path = os.path.join(directory, name)
                if not os.path.islink(path):
                    yield os.path.relpath(path, self._root)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, name: str) -> AreaInfo:
        path = os.path.join(self._root, name)
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            raise KeyError(name) from None
        if not stat.S_ISREG(status.st_mode):
            raise KeyError(name)
        return AreaInfo(name, path, status.st_size, self._resident(name), _rules.read(path))

    def _resident(self, name: str) -> int:
        try:
            stats = Path(self._root, CONTROL, "areas", name, "stats").read_text(encoding="utf-8")
        except OSError:  # removed meanwhile
            return 0
        return int(parse_stats(stats).get("resident_bytes", 0))

    def __repr__(self) -> str:
        return f"<dsmfs.Areas of {self._root!r}: {len(self)}>"

    def _repr_html_(self) -> str:
        rows: dict[str, object] = {}
        for name in self:
            try:
                area = self[name]
            except KeyError:  # gone meanwhile
                continue
            rows[name] = (
                f"{area.size:,} bytes, {area.resident:,} here, {area.settings['merge']}, {area.settings['dtype']}"
            )
        return html_table(f"areas of {self._root}", rows)


class Filesystem:
    """A dsmfs mount of this machine.

    It is path-like (``os.path.join(fs, 'w.npy')``). As a context manager it unmounts if :func:`mount`
    mounted it.

    Parameters
    ----------
    path
        Anything in the mount.

    Raises
    ------
    NotMountedError
        The path is in no dsmfs mount.

    Attributes
    ----------
    path : str
        The mount point.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        given = os.fsdecode(path)
        found = find_mount(os.path.realpath(given))
        if found is None:
            raise NotMountedError(errno.ENODEV, "in no dsmfs mount of this machine", given)
        self.path = found.point
        self._owned = False
        self._owner = os.getpid()

    @property
    def version(self) -> str:
        """The version of the daemon."""
        return self._control("version").strip()

    @property
    def config(self) -> dict[str, int | float | str]:
        """What the daemon was started with, by name."""
        return parse_stats(self._control("config"))

    @property
    def stats(self) -> dict[str, int | float | str]:
        """Counters of this node since its start, by name."""
        return parse_stats(self._control("stats"))

    @property
    def members(self) -> list[Member]:
        """The nodes of the cluster."""
        return [Member.parse(line) for line in self._control("members").splitlines() if line.strip()]

    @property
    def areas(self) -> Areas:
        """The areas, by name."""
        return Areas(self.path)

    def open(self, name: str, mode: str = "r+", **options: Any) -> Area:
        """Open an area by its path from the root: see :func:`dsmfs.open`."""
        return open(self / name, mode, **options)

    def create(self, name: str, shape: int | tuple[int, ...] | None = None, dtype: Any = None, **options: Any) -> Area:
        """Make an area by its path from the root, and the directories above it: see :func:`dsmfs.create`."""
        path = self / name
        with translated(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
        return create(path, shape, dtype, **options)

    def unmount(self) -> None:
        """Publish everything, leave the cluster, unmount.

        Raises
        ------
        NodeError
            Something uses the mount, or the node did not leave cleanly; the text says what.
        """
        self._owned = False
        run_binary(["umount", self.path], _STOP_LIMIT)

    def __enter__(self) -> Filesystem:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._owned and os.getpid() == self._owner:
            self.unmount()

    def __fspath__(self) -> str:
        return self.path

    def __truediv__(self, name: str) -> str:
        return os.path.join(self.path, name.lstrip("/"))

    def __repr__(self) -> str:
        return f"<dsmfs.Filesystem {self.path!r}>"

    def _repr_html_(self) -> str:
        members: dict[str, object] = {
            m.name: f"{m.address}, {m.state}{', votes' if m.voter else ''}{', leaving' if m.leaving else ''}"
            for m in self.members
        }
        return html_table(f"dsmfs {self.version} at {self.path}", members) + self.areas._repr_html_()

    def _control(self, name: str) -> str:
        path = os.path.join(self.path, CONTROL, name)
        with translated(path):
            return Path(path).read_text(encoding="utf-8")


def mount(
    path: str | os.PathLike[str],
    *,
    join: str | Sequence[str] = (),
    listen: str | None = None,
    memory: int | str | None = None,
    name: str | None = None,
    token: str | None = None,
    insecure: bool = False,
    options: Mapping[str, str] | None = None,
) -> Filesystem:
    """Start a node of this machine, or find the one that is there.

    Parameters
    ----------
    path
        The mount point; made if it is missing. If it is a dsmfs mount already, the other parameters mean nothing,
        and the end of the context does not unmount it.
    join
        ``HOST[:PORT]`` of nodes of the cluster. None: the first node of a new one.
    listen, memory, name, token, insecure
        As the flags of ``dsmfs mount``; `memory` in bytes, or text such as ``2GiB``.
    options
        Other flags by name, as ``-o`` takes them.

    Raises
    ------
    NodeError
        It did not start; the text is what the daemon said, `code` the exit code.
    """
    point = os.path.realpath(os.fsdecode(path))
    there = find_mount(point)
    if there is not None and there.point == point:
        return Filesystem(point)
    with translated(point):
        os.makedirs(point, exist_ok=True)
    command = ["mount", point]
    for host in [join] if isinstance(join, str) else join:
        command += ["--join", host]
    flags = {
        "listen": listen,
        "memory": None if memory is None else str(memory),
        "name": name,
        "token": token,
        **(options or {}),
    }
    for flag, value in flags.items():
        if value is not None:
            command.append(f"--{flag}={value}")
    if insecure:
        command.append("--insecure")
    run_binary(command, _START_LIMIT)
    filesystem = Filesystem(point)
    filesystem._owned = True
    return filesystem
