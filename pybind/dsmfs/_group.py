"""Programs that act together: barriers, counters, clocks and rounds."""

from __future__ import annotations

import errno
import functools
import operator
import os
import struct
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ._errors import (
    AccessError,
    ClosedError,
    DisconnectedError,
    NotFoundError,
    OperationError,
    TimedOutError,
    translated,
)
from ._mounts import Location, locate
from ._open import _connect, _umask
from ._staging import Staging, Stagings
from ._tensors import address
from ._wire import MAX_PAYLOAD, Connection, Op, Reply, first, milliseconds

if TYPE_CHECKING:
    import numpy.typing as npt

    from ._area import Area


_LEFT = (
    "the daemon of this node has ended in a round, and this member has left the group with it. If a daemon follows (--hold), join again: what was stored "
    "counts once, in this round or apart from it; what was accumulated counts if this member is not `missing` in the round of the others, else it is dropped"
)


@dataclass(frozen=True)
class Meeting:
    """The end of a barrier or a round.

    Attributes
    ----------
    number : int
        It counts the barriers and rounds of the group, from 1.
    members : tuple of int
        The ranks that took part.
    missing : tuple of int
        The ranks that did not: nobody has them, because a program has ended or left, or its node is gone.
    """

    number: int
    members: tuple[int, ...]
    missing: tuple[int, ...]


def group(path: str | os.PathLike[str], size: int, *, timeout: float | None = 300.0, permissions: int = 0o666) -> Group:
    """Join a group of programs, on any nodes, and wait until it is complete.

    Parameters
    ----------
    path
        Of the file that names the group. An empty one is made if there is none. Whoever may write it may join.
    size
        How many members the group has; all must say the same.
    timeout
        Seconds to wait for the others; None: no limit.
    permissions
        Of the file, if it is made, less the umask.

    Returns
    -------
    Group
        A context manager, which leaves the group at its end.

    Raises
    ------
    TimedOutError
        The others did not come in time; the text says who came. Or all ranks are taken.
    OperationError
        EINVAL: the group has another size.
    AccessError
        The file may not be written by this program.

    Examples
    --------
    >>> with dsmfs.group("/mnt/dsm/job", size=4) as g:  # doctest: +SKIP
    ...     print(g.rank)
    ...     g.barrier()
    """
    _check(timeout)
    size = max(0, min(operator.index(size), 1 << 63))
    where = locate(path)
    until = None if timeout is None else time.monotonic() + timeout
    join = functools.partial(_join, where, size, until, permissions)
    connection = _connect(where)
    with translated(str(where), "group"):
        connection, reply = first(connection, where.attach_socket(), join)
    return Group(str(where), connection, reply)


def _join(where: Location, size: int, until: float | None, permissions: int, connection: Connection) -> Reply:
    """Join, and make the file if there is none. If the daemon ends meanwhile, so does the membership: it may be done again."""
    payload = os.fsencode(where.inside)
    arguments = (size, milliseconds(None if until is None else max(0.0, until - time.monotonic())))
    try:
        return connection.call(Op.JOIN, args=arguments, payload=payload)
    except NotFoundError:
        connection.call(Op.CREATE, args=(0, permissions & ~_umask(), 0), payload=payload + b"\n")
    return connection.call(Op.JOIN, args=arguments, payload=payload)


def _check(timeout: float | None) -> None:
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"timeout {timeout}: want seconds, or None")


class Group:
    """A membership in a group. :func:`dsmfs.group` returns one.

    All members call :meth:`barrier` and :meth:`round` in the same order, as with MPI or ``torch.distributed``. A call that was
    interrupted, or ended by its timeout, may be made again: it goes on with the same barrier. Nobody waits for a member
    whose program ends, however it does. A process that is forked is no member.

    Attributes
    ----------
    rank : int
        The place of this member, from 0.
    size : int
        How many members the group has when it is complete.
    path : str
        Of the file that names the group.
    """

    def __init__(self, path: str, connection: Connection, joined: Reply) -> None:
        self.path = path
        self.rank, self.size, first, self._clock = joined.args
        self._number = first - 1
        self._member = joined.attachment
        self._connection: Connection | None = connection
        self._owner = os.getpid()
        self._turn = threading.Lock()
        self._stagings = Stagings()
        self._buffers: dict[int, Staging] = {}

    @property
    def number(self) -> int:
        """How many barriers and rounds of the group are over, as far as this member took part or came later."""
        return self._number

    @property
    def clock(self) -> int:
        """How often this member has called :meth:`tick`. Who joins later begins with the clock of the slowest."""
        return self._clock

    @property
    def closed(self) -> bool:
        """Whether this member has left."""
        return self._connection is None

    def barrier(self, timeout: float | None = None) -> Meeting:
        """Wait until all members have arrived here.

        Parameters
        ----------
        timeout
            Seconds; None: no limit.

        Returns
        -------
        Meeting
            Its `missing` are the ranks without a member.

        Raises
        ------
        TimedOutError
            Others did not arrive in time. This member has, and may call it again.
        OperationError
            ESTALE: the group has gone on without this member, for instance because its node was cut off. It may join again.
            EINVAL: others call :meth:`round` here. This member has not arrived, and may do the same.
        DisconnectedError
            The daemon of this node has ended.
        """
        return self._meet(Op.BARRIER, timeout)

    def round(self, *areas: Area, timeout: float | None = None) -> Meeting:
        """Put together what all members have stored in areas.

        It returns when all members have called it, and what they had stored before is in the memory of the areas, merged by their rules:
        with ``merge=sum`` the sum, with ``mean`` that divided by the number of members. Until all have called it, no other node sees
        anything of it, nor does another member where each has memory of its own (``sum`` and ``mean``, memory plane). What the area's interval, or a sync of another program, publishes before is not in the round.

        Parameters
        ----------
        areas
            Opened for writing, or accumulated into, through the mount or the node of the group's path, each named once.
        timeout
            As for :meth:`barrier`.

        Returns
        -------
        Meeting
            As for :meth:`barrier`.

        Raises
        ------
        TimedOutError
            As for :meth:`barrier` and :meth:`Area.sync`.
        DisconnectedError
            The daemon of this node has ended. If another follows (a mount with ``--hold``), :func:`dsmfs.group` joins again. What this member had
            stored counts once: in this round, if the others have ended it with this member, else in its next one, or apart.
            What it had accumulated counts in the first case only: :attr:`Meeting.missing` of the others tells.
        AccessError
            An area is open for reading only, and nothing has been accumulated into it.
        NotFiniteError
            The round has ended, without elements of this node that are infinite or not a number: see `on_nonfinite` of :func:`dsmfs.create`.
        OperationError
            EIO: the round has ended, without what this member had accumulated. ESTALE: as for :meth:`barrier`. EINVAL: an area is named
            twice, or others call :meth:`barrier` here. The member has not arrived then. In the second case what it has stored is
            published, and what it has accumulated is dropped.
        """
        numbers = [a._to_round() for a in areas]
        return self._meet(Op.ROUND, timeout, struct.pack(f"<{len(numbers)}Q", *numbers))

    def buffer(self, like: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return an array of zeros, from whose memory :meth:`Area.accumulate` takes elements without copying them first.

        Compute gradients straight into it, or make it the ``grad`` of a parameter (``torch.from_numpy``). From ``accumulate`` until
        :meth:`round` has returned the daemon may read it at any time: leave it alone, or others get what it has then. It stays in memory until the
        group is left.

        Parameters
        ----------
        like
            What it has the shape, the type and the order of: :attr:`Area.array`, or one of :attr:`Area.tensors`.

        Examples
        --------
        >>> gradient = g.buffer(w.array)  # doctest: +SKIP
        >>> for batch in batches:
        ...     compute(batch, out=gradient)
        ...     w.accumulate(gradient, g)
        ...     g.round(w)
        """
        with self._mine(), translated(self.path, "buffer"):
            self._live()
            staging = Staging(max(1, like.nbytes))
            order: Literal["C", "F"] = "C" if like.flags.c_contiguous else "F"
            array: npt.NDArray[Any] = np.ndarray(like.shape, like.dtype, staging.memory, order=order)
            self._buffers[address(array)] = staging
            return array

    def counter(self, name: str = "default") -> Counter:
        """Return a counter that all members share. It is 0 at first, and ends with the group.

        Parameters
        ----------
        name
            Of 1 to 255 bytes.
        """
        return Counter(self, name)

    def tick(self, slack: int = 0, timeout: float | None = None) -> int:
        """Count one step of this member, and wait until no member is more than `slack` steps behind.

        This is the rule of stale synchronous parallel training: a fast worker may be ahead, but not by more than that.

        Parameters
        ----------
        slack
            How many steps the slowest may be behind.
        timeout
            Seconds; None: no limit.

        Returns
        -------
        int
            How many steps this member was ahead of the slowest that its node knew of when it came.

        Raises
        ------
        TimedOutError
            A member is still too far behind. The step is counted: :meth:`await_slowest` waits on.
        """
        return self._tick(1, slack, timeout)

    def await_slowest(self, slack: int = 0, timeout: float | None = None) -> int:
        """Do what :meth:`tick` does, without counting a step."""
        return self._tick(0, slack, timeout)

    def leave(self) -> None:
        """Leave the group. Further calls do nothing."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self._stagings.drop()
        self._buffers.clear()
        if os.getpid() != self._owner:
            connection.forget()
            return
        try:
            connection.call(Op.LEAVE, self._member)
        except DisconnectedError:
            pass  # the daemon has ended, and the membership with it
        finally:
            connection.close()

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def __del__(self) -> None:
        connection = getattr(self, "_connection", None)
        if connection is not None and os.getpid() == self._owner:
            connection.close()

    def __repr__(self) -> str:
        state = "left" if self.closed else f"rank {self.rank} of {self.size}"
        return f"<dsmfs.Group {self.path!r}: {state}, {self._number} meetings>"

    def _live(self) -> Connection:
        if self._connection is None:
            raise ClosedError(f"{self.path}: this member has left the group")
        if os.getpid() != self._owner:
            raise AccessError(errno.EPERM, "a forked process is no member: it may join by itself", self.path)
        return self._connection

    def _mine(self) -> threading.Lock:
        """Return the lock of this member's calls. In a forked process, where nobody may ever release it, it is an error."""
        self._live()
        return self._turn

    def _meet(self, op: Op, timeout: float | None, payload: bytes = b"") -> Meeting:
        _check(timeout)
        with self._mine():
            arguments = (self._number + 1, milliseconds(timeout))
            try:
                with translated(self.path, "round" if op == Op.ROUND else "barrier"):
                    reply = self._live().call(op, self._member, arguments, payload)
            except OperationError as e:
                self._number = max(self._number, e._meeting)
                if isinstance(e, TimedOutError) and not e._meeting:  # it goes on
                    raise
                self._stagings.drop()
                if isinstance(e, DisconnectedError) and op == Op.ROUND:
                    raise DisconnectedError(e.errno, _LEFT, self.path) from e
                if isinstance(e, TimedOutError):  # the same call would be the next round
                    raise OperationError(errno.EIO, f"the round has ended: {e.strerror}", self.path) from e
                raise
            self._number = reply.args[0]
            if op == Op.ROUND:
                self._stagings.over()
        bits = int.from_bytes(reply.payload, "little")
        missing = tuple(r for r in range(self.size) if bits >> r & 1)
        return Meeting(self._number, tuple(r for r in range(self.size) if not bits >> r & 1), missing)

    def _accumulate(self, path: str, number: int, offset: int, to: npt.NDArray[Any], given: npt.NDArray[Any]) -> None:
        """Hand over elements, laid out as in `to`."""
        with self._mine(), translated(path, "accumulate"):
            live = self._live()
            order: Literal["C", "F"] = "C" if to.flags.c_contiguous else "F"
            arguments = (self._number + 1, number, offset, to.nbytes)
            if to.nbytes <= MAX_PAYLOAD:
                live.call(Op.ACCUMULATE, self._member, arguments, given.tobytes(order))
                return
            whole = given.flags.c_contiguous if order == "C" else given.flags.f_contiguous
            buffer = self._buffers.get(address(given)) if self._buffers and whole else None
            if buffer is not None:
                live.call(Op.ACCUMULATE, self._member, arguments, fds=[buffer.fd])
                return
            staging = self._stagings.take(to.nbytes)
            np.ndarray(to.shape, to.dtype, staging.memory, order=order)[...] = given
            live.call(Op.ACCUMULATE, self._member, arguments, fds=[staging.fd])
            self._stagings.give(staging)

    def _tick(self, steps: int, slack: int, timeout: float | None) -> int:
        _check(timeout)
        slack = operator.index(slack)
        if not 0 <= slack < 1 << 63:
            raise ValueError(f"slack {slack}: want steps, not negative")
        with self._mine(), translated(self.path, "tick"):
            live = self._live()
            self._clock += steps
            return live.call(Op.TICK, self._member, (self._clock, milliseconds(timeout), slack)).args[1]

    def _add(self, name: str, value: int) -> int:
        with translated(self.path, "counter"):
            arguments = (value & (1 << 64) - 1, 0)
            total = self._live().call(Op.COUNT, self._member, arguments, name.encode()).args[0]
        return total - (total >> 63 << 64)


class Counter:
    """A counter of a group. :meth:`Group.counter` returns one."""

    def __init__(self, of: Group, name: str) -> None:
        self._group = of
        self.name = name

    def add(self, value: int = 1) -> int:
        """Add to the counter, and return its value after that, as one step: no two members see the same.

        Parameters
        ----------
        value
            From -2**63 to 2**63 - 1. 0 only reads.

        Raises
        ------
        OperationError
            EAGAIN: many additions of this member, or of its node, have no answer yet; this one does not count. ENOSPC: the
            group has 1024 counters. EINVAL: the name of the counter is empty or too long.
        DisconnectedError
            The daemon of this node has ended.
        """
        value = operator.index(value)
        if not -(1 << 63) <= value < 1 << 63:
            raise ValueError(f"{value}: want 64 bits")
        return self._group._add(self.name, value)

    @property
    def value(self) -> int:
        """The value now."""
        return self.add(0)

    def __repr__(self) -> str:
        return f"<dsmfs.Counter {self.name!r} of {self._group.path!r}>"
