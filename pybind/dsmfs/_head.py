"""Header pages: memory in which the daemon tells which version of an area is in memory (docs/attach.md)."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable

from . import _linux

_LINE = 64
_DIED = 0x40000000
_ENDED, _REMOVED, _FOLLOWS, _OWN = 1, 2, 4, 8
#: Seconds after which a thread that waits looks whether a signal has come just before it slept, and whether the daemon lives where
#: the kernel does not tell.
_LOOK = 0.1


class Head:
    """The line of an attached area in the header pages of its user.

    Parameters
    ----------
    fd
        The header pages; closed here. They are mapped from the life line to the area's line.
    offset, number
        Of the line, as WATCH told them.
    ended
        Tells whether the connection to the daemon has ended.

    Raises
    ------
    OSError
        They cannot be mapped.
    """

    def __init__(self, fd: int, offset: int, number: int, ended: Callable[[], bool]) -> None:
        try:
            start = _linux.map_shared(fd, offset + _LINE)
        finally:
            os.close(fd)
        weakref.finalize(self, _linux.unmap, start, offset + _LINE).atexit = False  # threads may still look then
        self._addresses = (start + offset, start)
        self._words = (ctypes.c_uint32 * (_LINE // 4)).from_address(start + offset)
        self._values = (ctypes.c_uint64 * (_LINE // 8)).from_address(start + offset)
        self._life = (ctypes.c_uint32 * 1).from_address(start)
        self._number = number
        self._ended = ended

    @property
    def follows(self) -> bool:
        """Whether later versions come without being asked for."""
        return bool(self._words[1] & _FOLLOWS)

    @property
    def own(self) -> bool:
        """Whether the program has memory of its own."""
        return bool(self._words[1] & _OWN)

    @property
    def removed(self) -> bool:
        """Whether the area is gone."""
        return bool(self._words[1] & _REMOVED)

    @property
    def here(self) -> int:
        """The newest version that has come."""
        return self._values[2]

    @property
    def whole(self) -> int:
        """The version up to which everything is in memory."""
        return self._values[3]

    @property
    def known(self) -> float:
        """The time, as of `time.time`, before which everything that was published is in memory; 0: nothing is known."""
        return self._values[5] / 1e9

    @property
    def live(self) -> bool:
        """Whether the daemon still tells. What was read before this is right then."""
        if self._life[0] & _DIED or self._words[1] & _ENDED or self._values[7] != self._number:
            return False
        return self._life[0] != 0 or not self._ended()

    def seen(self) -> tuple[int, int]:
        """Return what to give to :meth:`sleep`; to be called before the values are read."""
        return self._words[0], self._life[0]

    def sleep(self, seen: tuple[int, int], seconds: float) -> None:
        """Return when something has changed, after a signal, or after some time, at most `seconds`. Other threads run meanwhile."""
        if _linux.futex_wait(self._addresses, seen, min(seconds, _LOOK)) and self._life[0] & _DIED:
            _linux.futex_wake(self._addresses[1])  # the kernel has woken one thread only
