"""What a daemon does for areas of which it has only a part: it serves the faults of programs that attach.

A page that a program touches and that is not in the memfd is copied there from the home, which is a bytearray. If the home
is down for longer than the limit, the page is poisoned: SIGBUS.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import struct
import threading
from dataclasses import dataclass

PAGE = 4096
_API, _REGISTER, _WAKE, _COPY, _POISON = 0xC018AA3F, 0xC020AA00, 0x8010AA02, 0xC028AA03, 0xC020AA08
_FAULT, _REMAP, _UNMAP = 0x12, 0x14, 0x16
_MISSING = 1
_EVENTS = 1 << 2 | 1 << 6  # EVENT_REMAP, EVENT_UNMAP


@dataclass
class Home:
    """The home of an area: what the area holds, and whether it answers."""

    content: bytearray
    limit: float = 0.05  # seconds until a fault fails
    up: bool = True
    fetched: int = 0


class Served:
    """Mappings of a memfd in one program, by one userfaultfd, served by a thread until :meth:`end`."""

    def __init__(self, uffd: int, address: int, length: int, offset: int, memory: int, home: Home) -> None:
        self._uffd, self._memory, self._home = uffd, memory, home
        self._pieces = [(address, address + length, offset)]
        fcntl.ioctl(uffd, _API, struct.pack("<QQQ", 0xAA, _EVENTS, 0))
        fcntl.ioctl(uffd, _REGISTER, struct.pack("<QQQQ", address, length, _MISSING, 0))
        self.poisoned = 0
        self._changed = threading.Condition()
        self._stop, self._stopped = os.pipe()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def home_is(self, up: bool) -> None:
        """Have the home answer, or not."""
        with self._changed:
            self._home.up = up
            self._changed.notify_all()

    def end(self) -> None:
        """End as a daemon does: what is not there is poisoned before the last descriptor is closed."""
        os.close(self._stopped)
        self._thread.join(30)
        assert not self._thread.is_alive()
        for start, end, offset in self._pieces:
            for page in range(start, end, PAGE):
                if not self._there(page - start + offset):
                    self._ioctl(_POISON, "<QQQQ", page, PAGE, 0, 0)
        os.close(self._uffd)
        os.close(self._stop)

    def _serve(self) -> None:
        ready = select.poll()
        ready.register(self._uffd, select.POLLIN)
        ready.register(self._stop, select.POLLHUP)
        while True:
            if any(fd == self._stop for fd, _ in ready.poll()):
                return
            try:
                messages = os.read(self._uffd, 32 * 16)
            except BlockingIOError:
                continue
            for event, a, b, c in struct.iter_unpack("<B7xQQQ", messages):
                if event == _FAULT:
                    self._fault(b - b % PAGE)
                elif event == _UNMAP:
                    self._cut(a, b)
                elif event == _REMAP:
                    moved = self._cut(a, a + c)
                    self._pieces += [(s - a + b, e - a + b, o) for s, e, o in moved]

    def _cut(self, low: int, high: int) -> list[tuple[int, int, int]]:
        gone, left = [], []
        for s, e, o in self._pieces:
            inner = max(s, low), min(e, high)
            if inner[0] >= inner[1]:
                left.append((s, e, o))
                continue
            gone.append((*inner, o + inner[0] - s))
            if s < inner[0]:
                left.append((s, inner[0], o))
            if inner[1] < e:
                left.append((inner[1], e, o + inner[1] - s))
        self._pieces = left
        self._ioctl(_WAKE, "<QQ", low, high - low)  # who waits there tries again, and finds what is there now
        return gone

    def _fault(self, page: int) -> None:
        offset = next((o + page - s for s, e, o in self._pieces if s <= page < e), None)
        if offset is None:
            self._ioctl(_WAKE, "<QQ", page, PAGE)
            return
        with self._changed:
            up = self._changed.wait_for(lambda: self._home.up, self._home.limit)
        if up:
            self._home.fetched += 1
            content = bytes(self._home.content[offset : offset + PAGE]).ljust(PAGE, b"\0")
            source = ctypes.create_string_buffer(content, PAGE)
            failed = self._ioctl(_COPY, "<QQQQQ", page, ctypes.addressof(source), PAGE, 0, 0)
        else:
            self.poisoned += 1
            failed = self._ioctl(_POISON, "<QQQQ", page, PAGE, 0, 0)
        if failed:  # it is there by now, or the mapping changes at this moment (EAGAIN): the thread tries again
            self._ioctl(_WAKE, "<QQ", page, PAGE)

    def _there(self, offset: int) -> bool:
        fd = os.open(f"/proc/self/fd/{self._memory}", os.O_RDONLY)
        try:
            return offset < os.fstat(fd).st_size and os.lseek(fd, offset, os.SEEK_DATA) == offset
        except OSError:
            return False
        finally:
            os.close(fd)

    def _ioctl(self, request: int, layout: str, *values: int) -> int:
        """Return the errno of what programs may cause: ENOENT and ESRCH mean that the mapping or the program has gone."""
        try:
            fcntl.ioctl(self._uffd, request, struct.pack(layout, *values))
        except OSError as e:
            if e.errno not in (errno.EEXIST, errno.ENOENT, errno.ESRCH, errno.EAGAIN):
                raise
            return e.errno
        return 0
