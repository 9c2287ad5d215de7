"""The memory plane: the daemon hands out the memory of an area itself (docs/attach.md)."""

from __future__ import annotations

import contextlib
import errno
import functools
import mmap
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable

import numpy as np

from . import _faults, _linux, _mounts
from ._attached import DEMAND, Attached, Resumption
from ._errors import (
    DisconnectedError,
    ExistsError,
    OperationError,
    PlaneUnavailableError,
    TimedOutError,
    from_errno,
    translated,
)
from ._head import Head
from ._plane import Mapping, known_of, parse_stats
from ._wire import Connection, Op, Reply, first, milliseconds

_READ, _WRITE = 1, 3
_WANTS_USERFAULTFD, _MERGES = 1, 8
#: How stores are found, by the number that TRACK answers.
TRACKING = {0: "none", 1: "wp-async", 2: "wp-faults", 3: "comparing"}

#: Seconds that a version may take before the daemon is asked to look for it, and seconds that it then goes on looking. Some exist
#: that no home sends by itself: those that only other nodes have heard of.
_PATIENCE, _EXPECTED = 0.05, 10.0

_registry = threading.RLock()  # guards _planes and the regions of _faults; held across fork
_planes: weakref.WeakSet[MemoryPlane] = weakref.WeakSet()


class MemoryPlane:
    """An area that this process has attached, with a connection of its own.

    Parameters
    ----------
    socket
        The path of the daemon's socket.
    path
        The path of the area, from the root of the filesystem.
    shown
        The path in error texts.
    writable
        Whether to attach for writing.
    number
        The number of the area if it must be a certain one, wherever the path leads by now; 0: the area at the path.
    connection
        To the socket, if there is one already: it is the area's from now on.
    made
        Make the file in place of opening it, with these arguments and rules of PREPARE. It has no name until :meth:`appear`.

    Raises
    ------
    PlaneUnavailableError
        This area, daemon or machine has no memory plane.
    OperationError
        The daemon refuses this program: see docs/attach.md.

    Notes
    -----
    A forked child is attached again, at the same address and with a connection of its own, before its Python code runs. If that
    fails its mapping is made inaccessible: SIGSEGV, never stores that nobody sees.

    Where the daemon says that the attachment outlives it, requests wait for the daemon that follows it, and go on: see :class:`Attached`. The
    mapping stays where it is. A program that makes no request does not notice; its stores are found by comparing meanwhile.

    With ``residency=demand`` pages come when they are touched. Nothing may touch the mapping before the daemon has
    said that it serves the mapping: a page that nobody serves becomes a page of zeroes, for all programs of the node.
    """

    name = "memory"

    def __init__(
        self,
        socket: str,
        path: str,
        shown: str,
        writable: bool,
        number: int = 0,
        connection: Connection | None = None,
        made: tuple[tuple[int, ...], str] | None = None,
    ) -> None:
        self._socket = socket
        self._inside = path
        self._path = shown
        self.writable = writable
        self._address = 0
        self.tracking = TRACKING[0]
        self._attached: Attached | None = None
        self._memory = -1
        self._number = number
        self._region: _faults.Region | None = None
        self._mapping: weakref.ref[Mapping] | None = None
        self._head: Head | None = None
        self._headless = False
        self._attach(connection, made)
        with _registry:
            _planes.add(self)

    def _attach(self, connection: Connection | None = None, made: tuple[tuple[int, ...], str] | None = None) -> None:
        try:
            connection = connection or Connection(self._socket)
        except OSError as e:
            raise PlaneUnavailableError(
                e.errno or errno.EIO, f"nobody answers at {self._socket}: {e.strerror}", self._path
            ) from e
        try:
            connection, reply = first(connection, self._socket, functools.partial(self._first, made))
        except OperationError as e:
            if e.errno == errno.ENODEV:
                raise PlaneUnavailableError(errno.ENODEV, e.strerror, self._path) from e
            raise
        try:
            if len(reply.fds) != 1:
                raise PlaneUnavailableError(errno.EPROTO, "the daemon sent no memory", self._path)
            if self._number not in (0, reply.args[1]):
                raise from_errno(errno.ESTALE, "the path leads to another area now", self._path)
            memory = os.fstat(reply.fds[0]).st_ino
        except BaseException:
            reply.close()
            connection.close()
            raise
        self.size, self._number, _, self._wants = reply.args
        access, path = _WRITE if self.writable else _READ, os.fsencode(self._inside)
        resumption = Resumption(access, self._number, memory, path, functools.partial(_resumed, weakref.ref(self)))
        self._attached = Attached(self._socket, connection, reply, resumption)
        self._memory = reply.fds.pop()

    def _first(self, made: tuple[tuple[int, ...], str] | None, connection: Connection) -> Reply:
        """Ask to attach, or to make the file. Doing it twice is harmless: one that was made has no name, and is gone with the daemon."""
        if made is None:
            access = _WRITE if self.writable else _READ
            with translated(self._path, "attach"):
                return connection.call(Op.ATTACH, args=(access, self._number), payload=os.fsencode(self._inside))
        arguments, rules = made
        with translated(self._path, "create"):
            return connection.call(Op.PREPARE, args=arguments, payload=os.fsencode(f"{self._inside}\n{rules}"))

    @property
    def demand(self) -> bool:
        """Whether pages come when they are touched."""
        return bool(self._wants & DEMAND)

    @property
    def merges(self) -> bool:
        """Whether elements that several nodes changed are merged by another rule than ``last``."""
        return bool(self._wants & _MERGES)

    @property
    def number(self) -> int:
        """The number of the area."""
        return self._number

    def settle(self) -> None:
        """Return when the daemon that serves now has the area attached."""
        with translated(self._path):
            self._live().settle()

    def appear(self) -> None:
        """Publish, then give the file that was made its name."""
        again = False
        while True:
            attached = self._live()
            connection, attachment = attached.now()
            with translated(self._path, "create"):
                try:
                    connection.call(Op.NAME, attachment, payload=os.fsencode(self._inside))
                    return
                except DisconnectedError as e:
                    attached.follow(connection, e)
                    again = True
                except ExistsError:
                    # The daemon that has ended may have named it. What has the number of this file is this file.
                    if not again or not self._has_name():
                        raise
                    return

    def _has_name(self) -> bool:
        """Whether the path leads to this area."""
        try:
            there = MemoryPlane(self._socket, self._inside, self._path, False)
        except OperationError:
            return False
        there.close()
        return there.number == self._number

    def map(self) -> Mapping:
        """Map the whole area and have stores tracked."""
        with translated(self._path, "attach"):
            mapping = self._mapped()
            mapping.madvise(_linux.MADV_DONTFORK)
        self._mapping = weakref.ref(mapping)
        connection = self._tracked()
        if self.demand:
            size = functools.partial(_size, weakref.ref(self), self._path, self._number)
            self._region = _faults.Region(self._address, self._length, self._path, size, connection)
            with _registry:
                _faults.watch(self._region)
            weakref.finalize(mapping, _forget, self._region).atexit = False
        mapping.plane = self
        return mapping

    def _mapped(self) -> Mapping:
        # Only read-only memory can have become shorter since the daemon told its size.
        self.size = min(self.size, os.fstat(self._memory).st_size)
        if self.size == 0:
            raise ValueError("cannot map an empty area")  # mmap would map all of the memory, which may be longer
        # mmap.mmap keeps a descriptor of its file, by which a forked child would keep the memory of its parent. So that is another
        # file, of nothing but a hole, and the memory is mapped over it.
        hole = os.memfd_create("hole", os.MFD_CLOEXEC)
        try:
            file = hole
            try:
                os.ftruncate(hole, self.size)
            except OSError as error:
                if error.errno != errno.EFBIG:  # that is ulimit -f
                    raise
                file = self._memory
            mapping = Mapping(
                file, self.size, mmap.MAP_SHARED, mmap.PROT_READ | (mmap.PROT_WRITE if self.writable else 0)
            )
        finally:
            os.close(hole)
        self._address = np.frombuffer(mapping, np.uint8).ctypes.data
        _linux.map_over(self._address, self._length, self.writable, self._memory)
        return mapping

    @property
    def _length(self) -> int:
        """The mapping's length: whole pages."""
        return -(-self.size // mmap.PAGESIZE) * mmap.PAGESIZE

    def _tracked(self) -> Connection:
        """Have the mapping tracked for the first time; return the connection."""
        attached = self._live()
        connection, attachment = attached.now()
        try:
            self._track(connection, attachment)
        except DisconnectedError as e:
            attached.follow(connection, e)  # see resumed
            connection, _ = attached.now()
        return connection

    def resumed(self, connection: Connection, reply: Reply) -> None:
        """Have the mapping tracked by the daemon that has followed another. The mapping stays as it was, also if the area has another size."""
        self._wants = reply.args[3]
        mapping = self._mapping and self._mapping()
        if mapping is not None:
            self._track(connection, reply.attachment)

    def _track(self, connection: Connection, attachment: int) -> None:
        if not self.writable and not self.demand:
            return
        fds = []
        if self._wants & (_WANTS_USERFAULTFD | DEMAND):
            try:
                fds.append(_linux.userfaultfd())
            except OSError as e:
                raise PlaneUnavailableError(e.errno or errno.EIO, f"no userfaultfd: {e.strerror}", self._path) from e
        try:
            with translated(self._path, "track"):
                reply = connection.call(Op.TRACK, attachment, (self._address, self._length, 0), fds=fds)
        finally:
            # The daemon's is the only one: when it ends no store may wait for an answer.
            for fd in fds:
                os.close(fd)
        self.tracking = TRACKING.get(reply.args[0], str(reply.args[0]))

    def _live(self) -> Attached:
        if self._attached is None:
            raise DisconnectedError(errno.ENOTCONN, "not attached", self._path)
        return self._attached

    def _ask(self, op: Op, doing: str, until: float | None = None) -> int:
        with translated(self._path, doing):
            return self._live().call(op, until=until)[1].args[0]

    def publish(self, wait: bool = True) -> int:
        """Publish."""
        if wait:
            return self._ask(Op.PUBLISH, "publish")
        connection, attachment = self._live().now()
        with translated(self._path, "publish"):
            return connection.call(Op.PUBLISH, attachment).args[0]

    def acquire(self) -> int:
        """Acquire."""
        return self._ask(Op.ACQUIRE, "acquire")

    def sync(self) -> int:
        """Sync."""
        return self._ask(Op.SYNC, "sync")

    def version(self) -> int:
        """Return the version that memory has. That asks nobody; with a daemon that has no header pages, it is WAIT for version 0."""
        return self._version(None)

    def _version(self, until: float | None) -> int:
        head = self._watched(until)
        if head is not None:
            here = head.here
            if self._tells(head):
                return here
        return self._wait(0, None, until)

    def known(self) -> float:
        """Look at the header page, or ask for figures."""
        head = self._watched(None)
        if head is not None:
            known = head.known
            if self._tells(head):
                return known
        return known_of(self.stats())

    def _watched(self, until: float | None) -> Head | None:
        """Return the header page of the area, None if the daemon has none, or it cannot be mapped."""
        if self._head is None and not self._headless:
            try:
                connection, reply = self._live().call(Op.WATCH, until=until)
            except OperationError as e:
                self._headless = e.errno == errno.EINVAL  # an older daemon
                if isinstance(e, (DisconnectedError, TimedOutError)):
                    raise
                return None
            try:
                self._head = Head(reply.fds.pop(), reply.args[0], reply.args[1], connection.ended)
            except OSError:
                return None  # no room for another mapping: the daemon answers
        return self._head

    def _tells(self, head: Head) -> bool:
        """Whether what was read of a header page is right. If nobody tells there any more the daemon answers, or the one that follows
        it; then that one is asked for its page. Threads that still look at the old page have it for as long."""
        if not head.live:
            if self._head is head:
                self._head = None
            return False
        if head.removed:
            raise from_errno(errno.ENOENT, "the file was removed", self._path)
        return True

    def wait(self, version: int, timeout: float | None) -> int:
        """Sleep until the header page says that the version is here. Where somebody must ask for it, the daemon does."""
        if timeout is not None and timeout <= 0:
            return self._look(version)
        start = time.monotonic()
        until = None if timeout is None else start + timeout
        try:
            head = self._watched(until)
        except TimedOutError as e:
            raise self._late(version, timeout) from e
        ask = _PATIENCE
        while head is not None:
            self._live()  # another thread may close the area
            seen = head.seen()
            whole, here, follows = head.whole, head.here, head.follows
            if not self._tells(head):
                break
            past = time.monotonic() - start
            if whole >= version:
                return here
            if timeout is not None and past >= timeout:
                raise self._late(version, timeout)
            if not follows:
                break
            if past >= ask:
                ask = past + _EXPECTED / 2
                with contextlib.suppress(OperationError):
                    connection, attachment = self._live().now()
                    connection.call(Op.EXPECT, attachment, (version, milliseconds(_EXPECTED)))
                continue
            head.sleep(seen, ask - past if timeout is None else min(ask, timeout) - past)
        return self._wait(version, timeout, until)

    def _late(self, version: int, timeout: float | None) -> TimedOutError:
        within = "" if timeout is None else f" within {timeout:g} s"
        return TimedOutError(errno.ETIMEDOUT, f"wait: version {version} did not come{within}", self._path)

    def _wait(self, version: int, timeout: float | None, until: float | None) -> int:
        """Let the daemon wait, or the one that follows it, for what is left of the time."""
        try:
            with translated(self._path, "wait"):
                while True:
                    attached = self._live()
                    connection, attachment = attached.now()
                    left = milliseconds(
                        None if timeout is None or until is None else max(0.0, until - time.monotonic())
                    )
                    try:
                        return connection.call(Op.WAIT, attachment, (version, left)).args[0]
                    except DisconnectedError as e:
                        attached.follow(connection, e, until)
        except TimedOutError as e:
            if timeout is None:
                raise TimedOutError(errno.ETIMEDOUT, e.strerror, self._path) from e
            raise self._late(version, timeout) from e

    def _look(self, version: int) -> int:
        now = time.monotonic()
        has = self._version(now)
        if has < version:
            raise TimedOutError(errno.ETIMEDOUT, f"wait: version {version} did not come; {has} is here", self._path)
        return self._ask(Op.ACQUIRE, "acquire", now) if version else has

    def stats(self) -> dict[str, int | float | str]:
        """Ask the daemon."""
        with translated(self._path, "stats"):
            return parse_stats(self._live().call(Op.STATS)[1].payload.decode("utf-8", "replace"))

    def size_now(self) -> int:
        """Ask the file for its size, or, if the path leads elsewhere by now, attach once more to ask."""
        with contextlib.suppress(OSError):
            status = os.stat(self._path)
            if status.st_ino == self._number and _mounts.is_area(status):
                return status.st_size
        now = MemoryPlane(self._socket, self._inside, self._path, False, self._number)
        now.close()
        return now.size

    def published(self, most: int) -> bytes | None:
        """Read it in the mount, if the program has memory of its own: the header page says so."""
        head = self._watched(None)
        if head is None or not head.own:
            return None
        with contextlib.suppress(OSError):
            status = os.stat(self._path)
            if status.st_ino == self._number and _mounts.is_area(status):
                fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    if os.fstat(fd).st_ino == self._number:
                        return os.pread(fd, most, 0)
                finally:
                    os.close(fd)
        return b""

    def again(self, writable: bool | None = None) -> tuple[MemoryPlane, Mapping]:
        """Attach again. Users of the old mapping keep it."""
        may = self.writable if writable is None else writable
        again = MemoryPlane(self._socket, self._inside, self._path, may, self._number)
        return again, again.map()

    def resize(self, nbytes: int) -> tuple[MemoryPlane, Mapping]:
        """Resize the area, and attach it again."""
        with translated(self._path, "resize"):
            self._live().call(Op.RESIZE, (nbytes,))
        return self.again()

    def close(self) -> None:
        """Detach, unless arrays are left: until the last one is gone, what is stored into them is published."""
        if self._mapping is not None and self._mapping() is not None:
            return
        attached, self._attached = self._attached, None
        if self._memory >= 0:  # first: as long as there is a descriptor for writing, the daemon reckons with stores
            fd, self._memory = self._memory, -1
            os.close(fd)
        self._head = None
        if attached is not None:
            attached.close(keep=self._region is not None)  # which needs to know whether somebody serves it

    def __del__(self) -> None:
        # The daemon takes the end of the connection for a DETACH.
        attached = getattr(self, "_attached", None)
        region = getattr(self, "_region", None)
        if attached is not None:
            attached.close(detach=False)
        if region is not None:
            region.connection.close()
        if getattr(self, "_memory", -1) >= 0:
            os.close(self._memory)

    def _shown(self) -> bool:
        """Whether the mapping is there: after a resize this object may outlive it, and something else have its addresses."""
        return self._mapping is not None and self._mapping() is not None

    def before_fork(self) -> None:
        """Let the child inherit the mapping, so that nothing else takes its addresses before it is attached."""
        if self._shown() and self._attached is not None:
            _linux.advise(self._address, self._length, _linux.MADV_DOFORK)

    def after_fork(self) -> None:
        """Undo :meth:`before_fork` in the parent."""
        if self._shown() and self._attached is not None:
            _linux.advise(self._address, self._length, _linux.MADV_DONTFORK)

    def again_in_child(self) -> None:
        """Attach the forked child at the same address."""
        if self._attached is None:
            if self._region is not None:  # it was closed, and has MADV_DONTFORK
                self._region.connection.forget()
                _faults.forget(self._region)
            return
        self._attached.forget()
        self._attached = None
        self._head = None
        os.close(self._memory)
        self._memory = -1
        if not self._shown():
            return
        size = self.size
        try:
            self._attach()
            if self.size < size:
                raise OperationError(errno.ENXIO, "the area has shrunk", self._path)
            self.size = size
            _linux.map_over(self._address, self._length, self.writable, self._memory)
            _linux.advise(self._address, self._length, _linux.MADV_DONTFORK)
            connection = self._tracked()
            if self._region is not None:
                self._region.again_in_child(connection)
        except OSError as e:
            _linux.seal_off(self._address, self._length)
            warnings.warn(
                f"{self._path} is not mapped in this forked process (an access is SIGSEGV): {e}",
                RuntimeWarning,
                stacklevel=2,
            )


def _size(plane: weakref.ref[MemoryPlane], path: str, number: int) -> int:
    """Return where the area ends; of one that has shrunk, whose memory stays as long as it was, only if the path is in a mount."""
    found = plane()
    size = 0 if found is None else os.fstat(found._memory).st_size
    with contextlib.suppress(OSError):
        status = os.stat(path)
        if status.st_ino == number and _mounts.is_area(status):
            size = min(size, status.st_size)
    return size


def _resumed(plane: weakref.ref[MemoryPlane], connection: Connection, reply: Reply) -> None:
    found = plane()
    if found is not None:
        found.resumed(connection, reply)


def _forget(region: _faults.Region) -> None:
    with _registry:
        _faults.forget(region)


def _before_fork() -> None:
    _registry.acquire()
    _each(MemoryPlane.before_fork)


def _after_fork() -> None:
    try:
        _each(MemoryPlane.after_fork)
    finally:
        _registry.release()


def _in_child() -> None:
    try:
        _each(MemoryPlane.again_in_child)
    finally:
        _registry.release()


def _each(do: Callable[[MemoryPlane], None]) -> None:
    """Do something with all planes, those for writing first: then those for reading show the same memory.

    One failure, perhaps a warning that is an error, keeps it from no other.
    """
    failed: Exception | None = None
    for plane in sorted(_planes, key=lambda p: not p.writable):
        try:
            do(plane)
        except Exception as e:
            failed = e
    if failed is not None:
        raise failed


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
