"""Header pages as a daemon has them: the life line, and a line for each area (docs/attach.md)."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import time

import numpy as np
from dsmfs import _linux

LINE = 64
_LIVES, _DIED, _FOLLOWS = 1, 0x40000000, 4


class Heads:
    """A memfd with lines, which are added and never removed."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("fake:head", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, mmap.PAGESIZE)
        self._page = mmap.mmap(self.fd, mmap.PAGESIZE)
        self._address = np.frombuffer(self._page, np.uint8).ctypes.data
        self._numbers: dict[int, int] = {}  # of lines, by the number of the area
        self._page[0:4] = struct.pack("<I", _LIVES)

    def line(self, area: int, version: int) -> tuple[int, int]:
        """Return the offset and the number of an area's line."""
        number = self._numbers.setdefault(area, len(self._numbers) + 1)
        self.tell(area, version)
        return LINE * number, number

    def tell(self, area: int, version: int) -> None:
        """Say that a version has come, and wake who waits for it."""
        number = self._numbers.get(area)
        if number is None:
            return
        at = LINE * number
        known = time.time_ns()
        self._page[at + 4 : at + LINE] = struct.pack(
            "<IQQQqqQQ", _FOLLOWS, version, version, version, known, known, 0, number
        )
        word = ctypes.c_uint32.from_address(self._address + at)
        word.value += 1
        _linux.futex_wake(self._address + at)

    def die(self) -> None:
        """Do what the kernel does when the daemon is killed."""
        ctypes.c_uint32.from_address(self._address).value |= _DIED
        _linux.futex_wake(self._address)

    def close(self) -> None:
        """Close the descriptor. Programs keep what they have mapped."""
        os.close(self.fd)
