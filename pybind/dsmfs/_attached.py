"""An attachment and its connection. Where the daemon says so, the attachment outlives the daemon: the next one takes it over (docs/attach.md)."""

from __future__ import annotations

import _thread
import contextlib
import errno
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ._errors import DisconnectedError, TimedOutError, from_errno
from ._wire import PAUSES, Connection, Op, Reply

ENDED = "the daemon has ended; what is mapped is this process's own now"
DEMAND, _LASTS = 4, 32  # of ATTACH's d
_LOOK = 1.0  # seconds after which who waits looks by itself: who had the gate may have been interrupted
#: What this process is short of for the moment.
_SHORTAGES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN}


@dataclass(frozen=True)
class Resumption:
    """What RESUME says of an attachment.

    Attributes
    ----------
    access, number, payload
        As for ATTACH.
    memory : int
        The inode number of the memfd that came with it.
    done : Callable[[Connection, Reply], None]
        Called with RESUME's reply, before anybody makes a request. It has the mapping tracked.
    """

    access: int
    number: int
    memory: int
    payload: bytes
    done: Callable[[Connection, Reply], None]


class Attached:
    """An attachment that any number of threads may use.

    Parameters
    ----------
    socket
        The path of the daemon's socket.
    connection
        By which it was attached. It has no other attachment.
    reply
        Of ATTACH.
    resumption
        What to tell the next daemon.

    Notes
    -----
    A thread whose request finds that the daemon has ended calls :meth:`follow`. The first one starts a thread, all wait until that
    has ended, and then look at what it has done. So there is one new connection however many threads use the attachment, and no
    caller's timeout or interrupt ends a RESUME that is under way. (The daemon would take the end of that connection for a DETACH, and the
    attachment would be lost.) The lock guards what the attachment is now, and is held for moments only.
    """

    def __init__(self, socket: str, connection: Connection, reply: Reply, resumption: Resumption) -> None:
        self._socket = socket
        self._resumption = resumption
        self._lock = threading.RLock()  # in C, as that of a Connection
        self._now: tuple[Connection, int] | None = (connection, reply.attachment)
        self._lasts = _lasts(reply)
        self._follower: _Follower | None = None
        self._why = ""  # none has taken it over

    def now(self) -> tuple[Connection, int]:
        """Return the connection, and the attachment's number there."""
        now = self._now
        if now is None:
            raise DisconnectedError(errno.ENOTCONN, "not attached")
        return now

    def settle(self) -> None:
        """Return when the daemon that serves now has the attachment: what goes by another connection counts on that."""
        connection, _ = self.now()
        if connection.lost:
            self.follow(connection, DisconnectedError(errno.ENOTCONN, ENDED))

    def call(self, op: Op, args: Sequence[int] = (), until: float | None = None) -> tuple[Connection, Reply]:
        """Make a request that may be made twice: if the daemon ends before it answers, the next one is asked.

        Parameters
        ----------
        op, args
            As for :meth:`Connection.call`.
        until
            When to give up waiting for another daemon, as of `time.monotonic`. None: never.

        Returns
        -------
        Connection, Reply
            By which the answer came, and the answer.
        """
        while True:
            connection, attachment = self.now()
            try:
                return connection, connection.call(op, attachment, args)
            except DisconnectedError as e:
                self.follow(connection, e, until)

    def follow(self, lost: Connection, error: DisconnectedError, until: float | None = None) -> None:
        """Return when another daemon has the attachment, after a request has failed.

        Parameters
        ----------
        lost
            The connection of the request.
        error
            How it failed, which is raised if there is no other daemon.
        until
            As for :meth:`call`.

        Raises
        ------
        TimedOutError
            None has come in time.
        """
        try:
            while True:
                with self._lock:
                    if self.now()[0] is not lost:
                        return
                    if not lost.lost:
                        raise error
                    follower = self._following()
                follower.wait(until)
                if until is not None and time.monotonic() >= until and not follower.over:
                    raise TimedOutError(errno.ETIMEDOUT, "the daemon has ended, and none has followed it in time")
        finally:
            del error  # else it and this frame keep each other, and all that the callers have

    def _following(self) -> _Follower:
        """Return the thread that looks for the next daemon. The lock is held."""
        if not self._lasts:
            raise DisconnectedError(errno.ENOTCONN, self._why or ENDED)
        if self._follower is None or self._follower.over:
            self._follower = _Follower()
        try:
            self._follower.start(self._go_on)
        except RuntimeError as e:  # there can be no more threads, or the interpreter ends
            raise DisconnectedError(errno.ENOTCONN, f"{ENDED} ({e})") from e
        return self._follower

    def _go_on(self, me: _Follower) -> None:
        """Find the next daemon, and have it take over. Ends when that is done, cannot be, or the attachment was closed."""
        pauses = iter(PAUSES)
        while self._wanted(me):
            try:
                me.connection = Connection(self._socket, lambda: not self._wanted(me))
            except OSError as e:
                if e.errno not in _SHORTAGES:
                    self._end(me, None)  # as ever when a daemon has ended
                    return
            else:
                try:
                    if not self._wanted(me) or self._take_over(me, me.connection):
                        return
                except DisconnectedError as e:
                    if not me.connection.lost:
                        self._end(me, e)
                        return
                    # That daemon has ended, too.
                except Exception as e:
                    self._end(me, e)
                    return
                finally:
                    now = self._now
                    if now is None or now[0] is not me.connection:
                        me.connection.close()
            time.sleep(next(pauses, PAUSES[-1]))

    def _take_over(self, me: _Follower, connection: Connection) -> bool:
        r = self._resumption
        while True:
            try:
                reply = connection.call(Op.RESUME, args=(r.access, r.number, r.memory), payload=r.payload)
                break
            except TimedOutError:  # the homes do not answer yet
                time.sleep(PAUSES[0])
        reply.close()
        if reply.args[1] != r.number:
            raise from_errno(errno.ESTALE, f"it has taken area {reply.args[1]} for {r.number}")
        r.done(connection, reply)
        with self._lock:
            if not self._wanted(me):
                return True
            before, self._now = self.now()[0], (connection, reply.attachment)
            self._lasts = _lasts(reply)
        before.close()
        return True

    def _wanted(self, me: _Follower) -> bool:
        return self._now is not None and self._follower is me

    def _end(self, me: _Follower, why: Exception | None) -> None:
        with self._lock:
            if self._follower is me:
                self._lasts = False
                if why is not None:
                    text = getattr(why, "strerror", None) or str(why)
                    self._why = f"the daemon that followed has not taken it over: {text}; what is mapped is this process's own now"

    def close(self, detach: bool = True, keep: bool = False) -> None:
        """End it, at once if there is no daemon.

        Parameters
        ----------
        detach
            Tell the daemon, and wait until it has found the last stores.
        keep
            Leave the connection open.
        """
        with self._lock:
            now, self._now = self._now, None
            follower = self._follower
        if follower is not None and follower.connection is not None:
            follower.connection.close()  # which ends its request
        if now is None:
            return
        connection, attachment = now
        try:
            if detach:
                with contextlib.suppress(DisconnectedError):  # it has ended by itself
                    connection.call(Op.DETACH, attachment)
        finally:
            if not keep:
                connection.close()

    def forget(self) -> None:
        """Close a forked child's copies of connections. Another thread may have had the lock when it was forked, so it is not taken."""
        now, self._now = self._now, None
        if now is not None:
            now[0].forget()
        if self._follower is not None and self._follower.connection is not None:
            self._follower.connection.forget()


class _Follower:
    """A thread that has the next daemon take over an attachment. It is not a `threading.Thread`: in Python 3.11 that counts as ended once
    a join was interrupted.

    Attributes
    ----------
    connection : Connection or None
        To the next daemon.
    over : bool
        Whether it has ended.
    """

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.over = False
        self._started: list[int] = []
        self._gate = threading.Lock()  # held until it has ended
        self._gate.acquire()

    def start(self, do: Callable[[_Follower], None]) -> None:
        """Start it, unless it is. In one call, so that an interrupt comes before or after."""
        if not self._started:
            self._started.extend(map(_thread.start_new_thread, (self._run,), ((do,),)))

    def _run(self, do: Callable[[_Follower], None]) -> None:
        try:
            do(self)
        finally:
            self.over = True
            self._gate.release()

    def wait(self, until: float | None) -> None:
        """Wait until it has ended."""
        while not self.over:
            left = _LOOK if until is None else min(_LOOK, until - time.monotonic())
            if left <= 0:
                return
            if self._gate.acquire(timeout=left):
                self._gate.release()


def _lasts(reply: Reply) -> bool:
    """Whether an attachment outlives the daemon. One on demand cannot: what was not there is poisoned when the daemon ends."""
    return reply.args[3] & (_LASTS | DEMAND) == _LASTS
