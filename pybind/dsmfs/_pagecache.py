"""The page-cache plane: plain open and mmap of a file of a mount."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
import time

from ._errors import DirectoryError, TimedOutError, from_errno, translated
from ._mounts import Location
from ._plane import Mapping, known_of, parse_stats

_FIRST_PAUSE, _LAST_PAUSE = 0.001, 0.05  # seconds between two looks of wait


class PageCachePlane:
    """An area through the kernel's page cache, with the control files of the mount.

    Parameters
    ----------
    where
        The area, in a mount.
    writable
        Whether to open it for writing.
    """

    name = "page-cache"
    demand = False

    def __init__(self, where: Location, writable: bool) -> None:
        if where.path is None:
            raise ValueError("a path in no mount has no page-cache plane")
        self._where = where
        self._path = where.path
        self.writable = writable
        with translated(self._path):
            self._fd = os.open(self._path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            mode = os.fstat(self._fd).st_mode
            if stat.S_ISDIR(mode):
                raise DirectoryError(errno.EISDIR, "a directory: only files are areas", self._path)
        except BaseException:
            os.close(self._fd)
            raise

    @property
    def number(self) -> int:
        """The number of the area."""
        with translated(self._path):
            return os.fstat(self._fd).st_ino

    def settle(self) -> None:
        """Return at once: the kernel says what is open."""

    def map(self) -> Mapping:
        """Map the whole area."""
        with translated(self._path):
            size = os.fstat(self._fd).st_size
            protection = mmap.PROT_READ | (mmap.PROT_WRITE if self.writable else 0)
            mapping = Mapping(self._fd, size, mmap.MAP_SHARED, protection)
        mapping.plane = self
        return mapping

    def renamed(self, where: Location) -> None:
        """Take note that the file has another name now."""
        assert where.path is not None
        self._where, self._path = where, where.path

    def size_now(self) -> int:
        """fstat(2)."""
        with translated(self._path):
            return os.fstat(self._fd).st_size

    def published(self, most: int) -> bytes | None:
        """Nothing, where updates enter the page cache in sync calls only: others may have it mapped."""
        with translated(self._path):
            return b"" if self._waits_for_sync() else None

    def again(self, writable: bool | None = None) -> tuple[PageCachePlane, Mapping]:
        """Map it once more."""
        if writable in (None, self.writable):
            return self, self.map()
        plane = PageCachePlane(self._where, bool(writable))
        if plane.number != self.number:
            plane.close()
            raise from_errno(errno.ESTALE, "the path leads to another area now", self._path)
        return plane, plane.map()

    def resize(self, nbytes: int) -> tuple[PageCachePlane, Mapping]:
        """ftruncate(2), and map it once more."""
        with translated(self._path, "resize"):
            os.ftruncate(self._fd, nbytes)
        return self.again()

    def publish(self, wait: bool = True) -> int:
        """Publish. This does not bring in updates where they enter memory in sync calls only."""
        with translated(self._path, "publish"):
            if not self._order("publish"):
                os.fsync(self._fd)
            return self.version()

    def acquire(self) -> int:
        """Acquire: through the control file or, for a program that may only read, by opening the file again.

        Where updates enter memory in sync calls only, a program that stores brings them in by a sync, which also publishes.
        """
        with translated(self._path, "acquire"):
            if self.writable and self._waits_for_sync():
                return self.sync()
            version = self.version()
            if not self._order("acquire"):
                os.close(os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | os.O_CLOEXEC))
            return version

    def sync(self) -> int:
        """Call fsync(2), which on this plane does what msync does. Unlike mmap.flush it lets other threads run."""
        with translated(self._path, "sync"):
            os.fsync(self._fd)
            return self.version()

    def version(self) -> int:
        """Ask the homes."""
        with translated(self._path, "version"):
            return int(os.getxattr(self._fd, "user.dsm.version"))

    def known(self) -> float:
        """Look at the figures of the area."""
        return known_of(self.stats())

    def wait(self, version: int, timeout: float | None) -> int:
        """Look at growing intervals, then acquire."""
        end = None if timeout is None else time.monotonic() + timeout
        pause = _FIRST_PAUSE
        while (newest := self.version()) < version:
            left = pause if end is None else end - time.monotonic()
            if left <= 0:
                raise TimedOutError(
                    errno.ETIMEDOUT,
                    f"version {version} did not come within {timeout} s; the newest is {newest}",
                    self._path,
                )
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LAST_PAUSE)
        return self.acquire()

    def stats(self) -> dict[str, int | float | str]:
        """Return what the control file says; with a daemon that has none, what else is known."""
        control = self._where.control("stats")
        if control is not None:
            try:
                with translated(self._path, "stats"), open(control, encoding="utf-8") as f:
                    return parse_stats(f.read())
            except FileNotFoundError:
                pass
        with translated(self._path, "stats"):
            status = os.fstat(self._fd)
            names = ("version", "home", "subscribers")
            found = {n: os.getxattr(self._fd, f"user.dsm.{n}").decode() for n in names}
        return {
            "size": status.st_size,
            "data_bytes": 512 * status.st_blocks,
            "version": int(found["version"]),
            "homes": len(found["home"].splitlines()),
            "subscribers": len(found["subscribers"].split()),
        }

    def close(self) -> None:
        """Close the descriptor; the mapping has one of its own."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with translated(self._path, "close"):
                os.close(fd)

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            with contextlib.suppress(OSError):  # the daemon may have ended
                os.close(self._fd)

    def _waits_for_sync(self) -> bool:
        apply = os.getxattr(self._fd, "user.dsm.apply")
        return apply == b"sync" or (apply == b"auto" and os.getxattr(self._fd, "user.dsm.merge") in (b"sum", b"mean"))

    def _order(self, name: str) -> bool:
        """Write 1 to a control file, unless it is out of reach or the path now leads to another area."""
        control = self._where.control(name)
        if control is None:
            return False
        try:
            if not os.path.samestat(os.stat(self._path), os.fstat(self._fd)):
                return False
            fd = os.open(control, os.O_WRONLY | os.O_CLOEXEC)
        except (FileNotFoundError, PermissionError, NotADirectoryError):
            return False
        try:
            os.write(fd, b"1\n")
        finally:
            os.close(fd)
        return True
