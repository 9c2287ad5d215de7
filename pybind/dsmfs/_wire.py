"""The packets between a program and the daemon of its node (docs/attach.md)."""

from __future__ import annotations

import array
import collections
import contextlib
import errno
import math
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ._errors import DisconnectedError, from_errno

HEADER = struct.Struct("<IHHQQQQQQIi")
MAGIC = 0x414D5344
VERSION = 1
MAX_PAYLOAD = 4096
_MAX_FDS = 4
_CENTURY = 100 * 365 * 86400
_LOOK = 1.0  # seconds after which who waits looks by itself: who was to wake it may have been interrupted
_FULL = 0.02  # seconds until a connect is tried again while many others wait to be accepted
#: Seconds between a connection that a daemon has ended and the next one. A first request is made so often.
PAUSES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)

_Packet = tuple[bytes, list[tuple[int, int, bytes]], int, Any]


class Op(IntEnum):
    """What a packet asks for, or answers."""

    ATTACH = 1
    TRACK = 2
    UNTRACK = 3
    PUBLISH = 4
    ACQUIRE = 5
    SYNC = 6
    WAIT = 7
    STATS = 8
    DETACH = 9
    CREATE = 10
    RESIZE = 11
    PREPARE = 12
    NAME = 13
    JOIN = 14
    LEAVE = 15
    BARRIER = 16
    COUNT = 17
    TICK = 18
    ROUND = 19
    WATCH = 20
    EXPECT = 21
    ACCUMULATE = 22
    RESUME = 23


@dataclass
class Reply:
    """An answer of the daemon. The descriptors in `fds` belong to whoever holds it."""

    op: int
    tag: int
    attachment: int
    args: tuple[int, int, int, int]
    payload: bytes
    error: int
    fds: list[int]

    def close(self) -> None:
        """Close the descriptors that nobody has taken."""
        while self.fds:
            os.close(self.fds.pop())


def milliseconds(timeout: float | None) -> int:
    """Return how requests say that they wait so many seconds at most: 0 for no limit, and so for more than a century."""
    return 0 if timeout is None or timeout > _CENTURY else max(1, math.ceil(1000 * timeout))


def pack(
    op: int,
    tag: int,
    attachment: int = 0,
    args: Sequence[int] = (),
    payload: bytes = b"",
    error: int = 0,
) -> bytes:
    """Return a packet; missing `args` are 0."""
    a, b, c, d = (*args, 0, 0, 0, 0)[:4]
    return HEADER.pack(MAGIC, VERSION, op, tag, attachment, a, b, c, d, len(payload), error) + payload


def unpack(packet: bytes, fds: list[int]) -> Reply:
    """Read a packet.

    Raises
    ------
    ValueError
        It is no message of this version of the protocol.
    """
    if len(packet) < HEADER.size:
        raise ValueError(f"a packet of {len(packet)} bytes")
    magic, version, op, tag, attachment, a, b, c, d, length, error = HEADER.unpack_from(packet)
    if magic != MAGIC or version != VERSION:
        raise ValueError(f"magic {magic:#x}, version {version}: want {MAGIC:#x}, {VERSION}")
    if length != len(packet) - HEADER.size or length > MAX_PAYLOAD:
        raise ValueError(f"a payload of {len(packet) - HEADER.size} bytes that says it has {length}")
    return Reply(op, tag, attachment, (a, b, c, d), packet[HEADER.size :], error, fds)


class Connection:
    """A connection to the daemon that any number of threads may use at once.

    There is no thread for reading: of the callers that wait, one at a time reads for all, and
    hands each reply to whom its tag belongs. The lock is never held in a system call that may block.

    Parameters
    ----------
    path
        Of the daemon's socket.
    unwanted
        Tells that nobody wants the connection any more, while it waits to be accepted.
    """

    def __init__(self, path: str, unwanted: Callable[[], bool] = lambda: False) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            # Not in one system call that waits: Python takes a socket for connected if a signal interrupts that.
            self._sock.setblocking(False)
            while (code := self._sock.connect_ex(path)) == errno.EAGAIN and not unwanted():
                time.sleep(_FULL)
            if code:
                raise OSError(code, os.strerror(code))
            self._sock.setblocking(True)
        except BaseException:
            self._sock.close()
            raise
        # A lock in C: an interrupt cannot come between taking it and the block that gives it back, as in the methods of a Condition.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        # Guarded by the lock.
        self._tag = 0
        self._waiting: set[int] = set()
        self._replies: dict[int, Reply] = {}
        self._inbox: collections.deque[_Packet] = collections.deque()
        self._reading = False
        self._broken: str | None = None
        self._by_us = False

    @property
    def lost(self) -> bool:
        """Whether the daemon has ended it. If this process has, or what came was no packet, it is not."""
        return not self._by_us and self.ended()

    def call(
        self,
        op: Op,
        attachment: int = 0,
        args: Sequence[int] = (),
        payload: bytes = b"",
        fds: Sequence[int] = (),
    ) -> Reply:
        """Ask the daemon and wait for its answer.

        Parameters
        ----------
        op, attachment, args, payload
            The fields of the request; missing `args` are 0.
        fds
            Descriptors to hand over; they stay open here.

        Raises
        ------
        OperationError
            What the daemon answered, of the class that belongs to its errno.
        DisconnectedError
            The connection ended before the answer came.
        """
        if len(payload) > MAX_PAYLOAD:
            raise from_errno(errno.ENAMETOOLONG)
        with self._lock:
            self._tag += 1
            tag = self._tag
            self._waiting.add(tag)
        try:
            self._send(pack(op, tag, attachment, args, payload), fds)
            reply = self._receive(tag)
        finally:
            with self._lock:
                self._waiting.discard(tag)
                late = self._replies.pop(tag, None)
            if late is not None:
                late.close()
        if reply.error:
            reply.close()
            error = from_errno(reply.error, reply.payload.decode("utf-8", "replace"))
            error._meeting = reply.args[0]
            try:
                raise error
            finally:
                del error  # else it and this frame keep each other, and all that the callers have
        return reply

    def close(self) -> None:
        """End the connection, and with it what was attached through it."""
        self._by_us = True
        self._break("it was closed")
        self._sock.close()

    def ended(self) -> bool:
        """Tell whether the daemon's end is closed; does not wait."""
        ready = select.poll()
        try:
            ready.register(self._sock, 0)  # POLLHUP and POLLERR come unasked
        except ValueError:
            return True
        return bool(ready.poll(0))

    def forget(self) -> None:
        """Close this process's copy of a connection that belongs to its parent."""
        self._by_us = True
        self._broken = "it belongs to the process that forked this one"
        self._sock.close()

    def _send(self, packet: bytes, fds: Sequence[int]) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self._sock.sendmsg([packet], rights, socket.MSG_NOSIGNAL)
        except OSError as e:
            self._break(os.strerror(e.errno or errno.EIO))
            raise self._ended() from e

    def _receive(self, tag: int) -> Reply:
        while True:
            mine = False
            try:
                with self._lock:
                    while True:
                        if tag in self._replies:
                            return self._replies.pop(tag)
                        if self._broken is not None:
                            raise self._ended()
                        if not self._reading:
                            self._reading = mine = True
                            break
                        self._changed.wait(_LOOK)
                self._poll()
                self._take()
            finally:
                if mine:
                    with self._lock:
                        self._reading = False
                        self._changed.notify_all()

    def _poll(self) -> None:
        ready = select.poll()
        try:
            ready.register(self._sock, select.POLLIN)
        except ValueError:  # closed meanwhile
            return
        ready.poll()

    def _take(self) -> None:
        room = socket.CMSG_SPACE(_MAX_FDS * array.array("i").itemsize)
        how = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
        try:
            # In one call, so that an interrupt comes before or after, and what was received is not lost.
            self._inbox.extend(map(self._sock.recvmsg, (HEADER.size + MAX_PAYLOAD,), (room,), (how,)))
        except BlockingIOError:
            pass
        except (OSError, ValueError) as e:
            self._break(str(e))
        try:
            with self._lock:
                while self._inbox:
                    self._sort()
        except OSError as e:
            self._break(str(e))
        except ValueError as e:
            self._by_us = True
            self._break(str(e))

    def _sort(self) -> None:
        """Give the first packet to whom it belongs. No interrupt comes between two statements without a call."""
        packet, ancillary, flags, _ = self._inbox[0]
        fds = array.array("i")
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        try:
            if not packet:
                raise ConnectionResetError("the daemon ended it")
            if flags & socket.MSG_TRUNC:
                raise ValueError("a packet larger than the protocol has")
            reply = unpack(packet, list(fds))
        except (OSError, ValueError):
            del self._inbox[0]
            for fd in fds:
                os.close(fd)
            raise
        if flags & socket.MSG_CTRUNC:  # concerns who asked, not the connection
            error, text, had = errno.EMFILE, b"this process has no room for the descriptor that was sent", reply.fds
            reply.error, reply.payload, reply.fds = error, text, []
            if reply.tag in self._waiting:
                self._replies[reply.tag] = reply
            del self._inbox[0]
            for fd in had:
                os.close(fd)
            return
        if reply.tag in self._waiting:
            self._replies[reply.tag] = reply
            del self._inbox[0]
            return
        del self._inbox[0]
        reply.close()  # whoever asked was interrupted

    def _break(self, why: str) -> None:
        with self._lock:
            if self._broken is None:
                self._broken = why
            for reply in self._replies.values():
                reply.close()
            self._replies.clear()
            self._changed.notify_all()
        with contextlib.suppress(OSError):  # not connected any more
            self._sock.shutdown(socket.SHUT_RDWR)

    def _ended(self) -> DisconnectedError:
        return DisconnectedError(
            errno.ENOTCONN, f"no connection to the daemon: {self._broken}; what is mapped is this process's own now"
        )


def first(connection: Connection, path: str, ask: Callable[[Connection], Reply]) -> tuple[Connection, Reply]:
    """Make the first request of a connection.

    If the daemon ends before it answers, and another has its socket, that one is asked. Only for what may be done twice.

    Parameters
    ----------
    connection
        To the socket. After an error it is closed.
    path
        Of the socket.
    ask
        Makes the request.

    Returns
    -------
    Connection, Reply
        That by which the answer came, and the answer.
    """
    for pause in (*PAUSES, None):
        try:
            return connection, ask(connection)
        except DisconnectedError as e:
            lost = connection.lost
            connection.close()
            if pause is None or not lost:
                raise
            time.sleep(pause)
            try:
                connection = Connection(path)
            except OSError:
                raise e from None  # no daemon follows
        except BaseException:
            connection.close()
            raise
    raise AssertionError("the last one returns or raises")
