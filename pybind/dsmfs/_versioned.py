"""What an area with ``consistency='versioned'`` can do besides."""

from __future__ import annotations

import errno
import operator
from abc import ABC, abstractmethod

from . import _versions
from ._errors import OperationError
from ._layout import Layout
from ._mounts import Location
from ._plane import Mapping, Plane
from ._versions import Snapshot, Version


class Versioned(ABC):
    """The part of :class:`Area` that is about versions and their owner."""

    _where: Location
    _layout: Layout

    @property
    @abstractmethod
    def path(self) -> str:
        """As of :class:`Area`, like the others here."""

    @property
    @abstractmethod
    def consistency(self) -> str:
        """How the nodes agree about the memory."""

    @abstractmethod
    def _open(self) -> Plane: ...

    @abstractmethod
    def _writes_now(self, plane: Plane, mapping: Mapping) -> None:
        """Go on with another plane, which the program may store by."""

    @property
    def owner(self) -> str | None:
        """The name of the node whose programs may store to the area; None if no node owns it yet.

        Only areas with ``consistency='versioned'`` have an owner: the node that first opened it for writing, until another takes it.

        Raises
        ------
        OperationError
            ESTALE: the path leads to another file by now, or to none. EOPNOTSUPP: the area is reached without a mount.
        """
        return _versions.owner(self._where, self._open().number)

    def take(self) -> None:
        """Make this node the owner of the area, and open it for writing: :attr:`mode` is ``r+`` then, :attr:`array` a new array.

        No program may have it open for writing at its owner so far. Returns when this node has all of it.

        Raises
        ------
        OperationError
            EBUSY: programs of its owner have it open for writing. EINVAL: it has no owner, because the consistency is another one.
            ESTALE: the path leads to another file by now, or to none; nothing is moved. EOPNOTSUPP: the area is reached without a mount.
        AccessError
            The mode of the file does not allow it.
        TimedOutError
            The node that owns it does not answer within the ``--fault-timeout`` of the mount. The file may still be moved later:
            :attr:`owner` says when.
        """
        plane = self._open()
        _versions.take(self._where, plane.number)
        if not plane.writable:
            self._writes_now(*plane.again(writable=True))

    def versions(self) -> list[Version]:
        """Return the versions of the area that this node can read, the oldest first.

        The newest ``retain`` versions stay readable (a rule of the area, 2 by default), and those that somebody has open.
        Each node keeps what has come to it. Empty before the first publish, and if the consistency is not ``versioned``.

        Raises
        ------
        OperationError
            ESTALE: the path leads to another file by now, or to none. EOPNOTSUPP: the area is reached without a mount.
        """
        return _versions.versions(self._where, self._open().number)

    def snapshot(self, version: int | None = None) -> Snapshot:
        """Return a version of the area as an array that does not change.

        With ``consistency='versioned'``, all of it is of one publish. Used as a context manager it is that array:
        ``with w.snapshot() as a: a.sum()``. It is read-only, of the shape and type that it had in that version.

        Parameters
        ----------
        version
            The :attr:`Version.number` of one of :meth:`versions`. None: the newest that is here. To have at least a certain one, :meth:`wait` for it.

        Raises
        ------
        VersionDroppedError
            It is not kept any more; the text says which is the oldest that is. For None: each of ten was dropped before it was read.
        OperationError
            ESTALE: the path leads to another file by now, or to none. ENODATA: nothing has been published yet. ENOSPC: there is no memory for what would have to be kept. EINVAL: the
            consistency is not ``versioned``. EOPNOTSUPP: the area is reached without a mount.
        FormatError
            It has something else in that version, or less than the shape that :func:`dsmfs.open` was told.
        """
        area = self._open().number
        if self.consistency != "versioned":
            raise OperationError(
                errno.EINVAL, "snapshot: only an area with consistency='versioned' has versions", self.path
            )
        number = None if version is None else operator.index(version)
        return _versions.snapshot(self._where, area, number, self._layout)
