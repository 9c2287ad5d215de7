"""One area, open in this process."""

from __future__ import annotations

import contextlib
import errno
import math
import operator
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from . import _rules
from ._array import SharedArray, protect
from ._errors import AccessError, ClosedError, DisconnectedError, FormatError, OperationError, PlaneUnavailableError
from ._html import html_table
from ._layout import Layout, lengths
from ._mounts import Location
from ._plane import Mapping, Plane
from ._tensors import address, elements
from ._versioned import Versioned

if TYPE_CHECKING:
    from ._group import Group, Meeting


class Area(SharedArray, Versioned):
    """An area: an array in memory that all nodes share.

    :func:`dsmfs.open` and :func:`dsmfs.create` return one. Used as a context manager, it is closed at the end. Methods
    may be called from any thread.

    ``len``, ``[]`` and iteration are those of :attr:`array`. ``numpy.asarray``, ``torch.as_tensor`` and everything else that
    takes DLPack share its memory. A pickled Area, for instance one sent to a worker process, is opened by its path where it
    arrives. Publish first, if the worker must see what was stored.

    Attributes
    ----------
    array : numpy.ndarray
        The shared memory itself, with the shape and type in the ``.npy`` header. Read-only for mode ``r``. It (or
        any view of it) keeps the memory mapped, tracked and published, even without the Area.
    tensors : Mapping of str to numpy.ndarray
        The tensors of a ``.safetensors`` file by name, in the same way; :attr:`array` then has the bytes after its header. For
        other files it is empty.
    mode : str
        ``r`` or ``r+``.
    """

    def __init__(self, where: Location, mode: str, plane: Plane, mapping: Mapping, layout: Layout) -> None:
        self._where = where
        self._plane: Plane | None = plane
        self._show(mapping, layout)
        self._name = plane.name
        self._consistency: str | None = None
        self._adds = False  # it takes part in rounds, though it may be open for reading
        self.mode = mode

    @property
    def path(self) -> str:
        """The path in the mount, or from the root of the filesystem if there is no mount."""
        return str(self._where)

    @property
    def plane(self) -> str:
        """``memory`` or ``page-cache``."""
        return self._name

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._plane is None

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the area's dimensions now.

        After a :meth:`resize` by another program it differs from the shape of :attr:`array`, until :meth:`remap`.
        """
        if self._plane is not None:
            with contextlib.suppress(OperationError):
                return self._layout.grown(self._plane.size_now()).shape
        return self._array.shape

    def __reduce__(self) -> tuple[Callable[..., Area], tuple[Any, ...]]:
        from ._open import again

        self._open()
        return again, (self.path, self.mode, self._layout.described(), "auto" if self._name == "memory" else self._name)

    def resize(self, shape: int | tuple[int, ...]) -> None:
        """Change the length of the array, on all nodes: like `numpy.ndarray.resize`, but no element moves.

        :attr:`array` is a new array afterwards; new elements are zero. Arrays and tensors made before, here and on other nodes,
        show the old length until they are made again (:meth:`remap`). If the array became shorter, old ones beyond the new end
        read zero, and what is stored there is lost; on the page-cache plane touching them is SIGBUS, and with
        ``residency=demand`` it is `OperationError`. Only one program should resize at a time.

        Parameters
        ----------
        shape
            The new shape. Only the first dimension may change, or the last one of an array in order ``F``.

        Raises
        ------
        ValueError
            Another dimension would change.
        AccessError
            Mode is ``r``.
        FormatError
            The file is a ``.safetensors`` file, or its header has no room for the shape.
        OperationError
            ENOSPC: there is not enough memory.
        """
        plane = self._to_store("resize")
        layout = self._layout.resized(lengths(shape))
        if layout.size == 0:
            raise ValueError(f"shape {layout.shape}: nothing would be left of the file")
        head = layout.header()
        # The header must never describe more bytes than the file has.
        shrinks = layout.size < plane.size_now()  # another program may have made it longer
        if shrinks:
            self._store(plane, head)
        self._plane, mapping = plane.resize(layout.size)
        self._show(mapping, layout)
        if not shrinks:
            self._store(self._plane, head)

    def remap(self) -> npt.NDArray[Any]:
        """Make :attr:`array` as long as :attr:`shape` says, after another program's :meth:`resize`.

        Returns
        -------
        numpy.ndarray
            :attr:`array`, a new one if the length has changed.
        """
        plane = self._open()
        if self.shape != self._array.shape:
            self._plane, mapping = plane.again()
            self._show(mapping, self._layout.grown(len(mapping)))
        return self._array

    def _store(self, plane: Plane, head: bytes) -> None:
        if head and self._mapping is not None:
            self._mapping[: len(head)] = head
            plane.publish()

    def publish(self) -> int:
        """Make this node's stores to the area visible to all nodes.

        Returns once the homes have merged them. If updates enter the area's memory in :meth:`sync` only
        (``apply=sync``, the default of ``sum``), it does not bring in what others published.

        Returns
        -------
        int
            A version that contains the stores made before.

        Raises
        ------
        AccessError
            Mode is ``r``.
        TimedOutError
            A home does not answer. The stores stay and are published later.
        DisconnectedError
            The daemon of this node has ended.
        NotFiniteError
            With ``on_nonfinite="refuse"``: elements that this node's programs have stored are infinite or not a number. All others are published.
        """
        plane = self._to_store("publish")
        self._lent.look()
        return plane.publish()

    def acquire(self) -> int:
        """Bring memory up to every publish, on any node, that completed before the call.

        If updates enter the area's memory in sync calls only, the page-cache plane differs: opened for writing, it publishes as
        well; opened for reading, it brings nothing in while another program of the node has the area open for writing.

        Returns
        -------
        int
            A version that memory has now.

        Raises
        ------
        TimedOutError, DisconnectedError
            As for :meth:`publish`.
        """
        plane = self._open()
        self._lent.look()
        return plane.acquire()

    def sync(self) -> int:
        """Publish, and bring in others' updates, as msync and ``numpy.memmap.flush`` do.

        In a loop that loads, computes and stores on an area with ``merge=sum``, call it where the loop can
        accept changed values. With mode ``r`` it is :meth:`acquire`.

        Returns
        -------
        int
            A version that contains the stores made before.

        Raises
        ------
        TimedOutError, DisconnectedError, NotFiniteError
            As for :meth:`publish`.
        """
        plane = self._open()
        self._lent.look()
        return plane.sync() if plane.writable else plane.acquire()

    def round(self, group: Group, timeout: float | None = None) -> Meeting:
        """Put together what all members of a group have stored: :meth:`Group.round` with this area alone."""
        return group.round(self, timeout=timeout)

    def accumulate(self, values: npt.ArrayLike, group: Group, name: str | None = None) -> None:
        """Hand over values that the next round of a group adds to the area, without storing them into its memory.

        For gradients and the like, which are in memory of their own anyway: nothing has to be found by comparing. Several calls add up.
        The memory of the area changes when the round ends. If the member leaves or dies before, the values are dropped, unless
        its node has another member in the round. The area may be open for reading, if the program may write the file: a program that stores nothing
        gets what others have added sooner.

        Parameters
        ----------
        values
            An array, or a tensor on the CPU, with the shape and the element type of :attr:`array`, or of the tensor. It is copied,
            unless it is all of a :meth:`Group.buffer`.
        group
            The next :meth:`Group.round` of this member puts them together, whether it names this area or not.
        name
            Of one of :attr:`tensors`. None: the array.

        Raises
        ------
        ValueError
            The shape is another one.
        TypeError
            The elements are of another type.
        KeyError
            There is no tensor of that name.
        PlaneUnavailableError
            The area is on the page-cache plane, through which values can only be stored.
        OperationError
            EINVAL: the area's merge rule is neither ``sum`` nor ``mean``. EBUSY: it takes part in a round of another group.
        AccessError
            The area is open for reading, and the program may not write the file.
        """
        plane = self._open()
        if plane.name != "memory":
            raise PlaneUnavailableError(
                errno.ENODEV, "accumulate needs the memory plane: store the values, and call round", self.path
            )
        to = self.array if name is None else self.tensors[name]
        given = elements(values, to, self.path)
        if to.size:
            plane.settle()
            group._accumulate(self.path, plane.number, address(to) - self._address, to, given)
            self._adds = True

    def wait(self, version: int, timeout: float | None = None) -> int:
        """Wait until a version exists, then acquire: afterwards what was published with it is in memory.

        Parameters
        ----------
        version
            Of this area, from :meth:`publish`, :meth:`sync` or :attr:`version` on any node.
        timeout
            Seconds; None: no limit.

        Returns
        -------
        int
            The version that memory has, at least `version`.

        Raises
        ------
        TimedOutError
            It did not come in time.
        ValueError
            `version` is out of range, or `timeout` is not a number.
        """
        version = operator.index(version)
        if not 0 <= version < 1 << 64:
            raise ValueError(f"version {version}: versions are from 0 to 2**64 - 1")
        if timeout is not None and math.isnan(timeout):
            raise ValueError(f"timeout {timeout}: want seconds, or None")
        return self._open().wait(version, None if timeout == math.inf else timeout)

    @property
    def version(self) -> int:
        """The newest version of the area that this node knows of; 0 before every publish.

        In the memory plane it is the version that is in memory. In the page-cache plane it is the version that the
        homes have; it is in memory after :meth:`acquire`. Versions of an area grow.
        """
        return self._open().version()

    @property
    def staleness(self) -> float:
        """How far, in seconds, memory may be behind what was published: all that was published earlier is in it.

        It is 0 when a sync, an acquire or an open begins, and grows until the next one has ended; memory may be newer, since updates come
        without being asked for. With the rule `staleness` the node acquires by itself, so that it stays within the bound. In the memory plane nobody is
        asked. ``inf`` if nothing is known.
        """
        known = self._open().known()
        return max(0.0, time.time() - known) if known else math.inf

    def _writes_now(self, plane: Plane, mapping: Mapping) -> None:
        self._plane, self.mode = plane, "r+"
        self._show(mapping, self._layout.grown(len(mapping)))

    @property
    def stats(self) -> dict[str, int | float | str]:
        """Figures about the area on this node, by name. Names of times and sizes contain the unit."""
        return {"plane": self._name, **self._open().stats()}

    @property
    def settings(self) -> _rules.Settings:
        """The rules of the area: `consistency`, `merge`, `dtype`, `apply`, `interval`, `residency`, `access`, `locks`, `placement`, `staleness`, `retain`, `replicas` and `on_nonfinite`, named as in ``user.dsm.*``."""
        return _rules.read(self._file())

    @property
    def consistency(self) -> str:
        """How the nodes agree about the memory: ``relaxed`` or ``versioned``."""
        if self._consistency is None:  # it never changes
            self._consistency = self.settings["consistency"]
        return self._consistency

    def configure(
        self,
        *,
        merge: str | None = None,
        apply: str | None = None,
        interval: float | str | None = None,
        staleness: float | str | None = None,
        retain: int | None = None,
        on_nonfinite: str | None = None,
    ) -> None:
        """Change rules of the area, on all nodes.

        Parameters
        ----------
        merge, apply, interval, staleness, retain, on_nonfinite
            As in :func:`dsmfs.create`. None leaves a rule as it is.

        Raises
        ------
        OperationError
            EINVAL: a value is not allowed.
        """
        path = self._file()
        rules = {
            "merge": merge,
            "apply": apply,
            "interval": None if interval is None else _rules.duration(interval),
            "staleness": None if staleness is None else _rules.duration(staleness),
            "retain": None if retain is None else str(operator.index(retain)),
            "on_nonfinite": on_nonfinite,
        }
        _rules.write(path, path, {rule: value for rule, value in rules.items() if value is not None})

    def close(self) -> None:
        """Publish what has not been published, and close the area. Further calls do nothing.

        Remaining arrays and tensors stay valid. What is stored into them is published at the area's interval, and when the last of
        them is gone. :attr:`array` itself becomes read-only.

        Raises
        ------
        TimedOutError
            As for :meth:`publish`; the area is closed all the same.
        """
        self._lent.look()  # before anything is undone: a warning may be an exception
        plane, self._plane = self._plane, None
        if plane is None:
            return
        arrays = self._hide()
        try:
            if plane.writable:
                protect(arrays)
                # Said by every call before: the memory is this process's own. Or the next daemon finds the stores.
                with contextlib.suppress(DisconnectedError):
                    plane.publish(wait=False)
        finally:
            arrays.clear()  # or they would be left
            plane.close()

    def __enter__(self) -> Area:
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else self._name
        with contextlib.suppress(OperationError, ClosedError):
            state = f"{self.consistency} {state}"
        return f"<dsmfs.Area {self.path!r} {self._array.shape} {self.dtype} {self.mode!r} {state}>"

    def _repr_html_(self) -> str:
        rows: dict[str, object] = {
            "shape": self.shape,
            "dtype": self.dtype,
            "bytes": f"{self.nbytes:,}",
            "mode": self.mode,
            "plane": "closed" if self.closed else self._name,
        }
        if not self.closed:
            try:
                rows["version"] = self.version
                rows["staleness"] = f"{self.staleness:.3f} s"
                rows.update(self.settings)
            except OperationError as e:
                rows["error"] = e
        return html_table(self.path, rows)

    def _must_be(self, described: tuple[Any, ...]) -> None:
        """Fail if this is not the array, or the tensors, that :func:`dsmfs.create` was told to make."""
        layout = self._layout
        there: tuple[Any, ...] = (layout.dtype, layout.shape, layout.fortran)
        if layout.tensors or len(described) == 1:
            there = ({name: about[:2] for name, about in layout.tensors.items()},)
        if described != there:
            raise FormatError(f"{self.path} is there, with {_in_words(there)}, not {_in_words(described)}")

    def _open(self) -> Plane:
        if self._plane is None:
            raise ClosedError(f"{self.path} is closed")
        return self._plane

    def _to_store(self, doing: str) -> Plane:
        plane = self._open()
        if not plane.writable:
            raise AccessError(errno.EACCES, f"{doing}: the area is open for reading only", self.path)
        return plane

    def _to_round(self) -> int:
        """Return the number of the area for ROUND."""
        plane = self._open() if self._adds else self._to_store("round")
        plane.settle()
        self._lent.look()
        return plane.number

    def _file(self) -> str:
        self._open()
        if self._where.path is None:
            raise OperationError(
                errno.EOPNOTSUPP, "the rules of an area are reached through a mount, and there is none here", self.path
            )
        return self._where.path


def _in_words(described: tuple[Any, ...]) -> str:
    """Say what :func:`dsmfs.create` makes."""
    if len(described) == 1:
        return "the tensors " + ", ".join(f"{name}: {dtype} {shape}" for name, (dtype, shape) in described[0].items())
    dtype, shape, fortran = described
    return f"{dtype} {shape}" + (" in order F" if fortran else "")
