"""The interface of the two ways to an area's memory."""

from __future__ import annotations

import mmap
import time
from typing import Protocol


class Mapping(mmap.mmap):
    """Shared memory of a whole area.

    Arrays refer to it and it refers to its plane, so that the memory of an array is mapped, tracked and
    published for as long as somebody has the array, whatever became of the :class:`Area`.
    """

    plane: Plane

    @property
    def demand(self) -> bool:
        """Whether a page that is touched may fail to come, which is an exception then."""
        return self.plane.demand


class Plane(Protocol):
    """A way to the memory of one area. Versions are hybrid logical clocks, see :attr:`Area.version`."""

    @property
    def name(self) -> str:
        """``memory`` or ``page-cache``."""

    @property
    def number(self) -> int:
        """The number of the area, as the daemon of this node knows it."""

    def settle(self) -> None:
        """Return when the daemon that serves now knows what this program has of the area: a member of a group goes by it."""

    @property
    def writable(self) -> bool:
        """Whether the program may store."""

    @property
    def demand(self) -> bool:
        """Whether a page that is touched may fail to come, which is an exception then."""

    def map(self) -> Mapping:
        """Map the whole area. Called once."""

    def size_now(self) -> int:
        """Return the size of the file, in bytes, which others may have changed."""

    def published(self, most: int) -> bytes | None:
        """Return the start of the file as it is published. None if memory has that; nothing if it is out of reach."""

    def again(self, writable: bool | None = None) -> tuple[Plane, Mapping]:
        """Return a plane for the current size of the area, and the mapping. The old mapping stays.

        `writable` is whether the program may store by the new one; None: if it may by this one.
        """

    def resize(self, nbytes: int) -> tuple[Plane, Mapping]:
        """Change the size of the area, and do what :meth:`again` does."""

    def publish(self, wait: bool = True) -> int:
        """Make stores visible to other nodes; return the version. Only for a writable plane.

        `wait` is whether to wait for another daemon if that of the node has ended.
        """

    def acquire(self) -> int:
        """Bring in every publish that completed before; return the version."""

    def sync(self) -> int:
        """Do what msync does; return the version. Only for a writable plane."""

    def version(self) -> int:
        """Return the newest version that this node knows of."""

    def known(self) -> float:
        """Return a time, as of `time.time`: what was published before is in memory. 0: nothing is known."""

    def wait(self, version: int, timeout: float | None) -> int:
        """Return once memory has `version` or a newer one; `timeout` is in seconds."""

    def stats(self) -> dict[str, int | float | str]:
        """Return figures about the area on this node."""

    def close(self) -> None:
        """End it. What is mapped stays mapped."""


def known_of(stats: dict[str, int | float | str]) -> float:
    """Return what :meth:`Plane.known` returns, from figures of an area."""
    behind = stats.get("staleness_ms")
    return 0.0 if isinstance(behind, str) or behind is None else time.time() - behind / 1000


def parse_stats(text: str) -> dict[str, int | float | str]:
    """Read lines ``name value``; values that look like numbers become numbers."""
    out: dict[str, int | float | str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        out[name] = number(value)
    return out


def number(value: str) -> int | float | str:
    """Return a number if `value` looks like one."""
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
