"""Opening and making areas."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import sys
import threading
import warnings
from typing import Any

from . import _layout, _npy
from ._area import Area, interval_value
from ._errors import ExistsError, FormatError, NotMountedError, OperationError, PlaneUnavailableError, translated
from ._linux import rename_new
from ._memory import MemoryPlane
from ._mounts import Location, locate
from ._pagecache import PageCachePlane
from ._plane import Mapping, Plane
from ._wire import Connection, Op

_MODES = {"r": False, "r+": True}
_PLANES = ("auto", "memory", "page-cache")


class PlaneWarning(UserWarning):
    """An area is on the page-cache plane although nobody asked for that."""


_warned = threading.Lock()  # taken by the first warning, and never released


def open(
    path: str | os.PathLike[str],
    mode: str = "r+",
    *,
    dtype: Any = None,
    shape: int | tuple[int, ...] | None = None,
    offset: int = 0,
    order: str = "C",
    plane: str | None = None,
) -> Area:
    """Open an area.

    Parameters
    ----------
    path
        Of a file in a mount. Where ``$DSMFS_ATTACH`` names the socket of a node, also from the root of its filesystem.
    mode
        ``r``: read only. ``r+``: read and write.
    dtype, shape, offset, order
        What is in a file with no ``.npy`` header, as for `numpy.memmap`; `offset` in bytes. Without a shape the
        array has one dimension and reaches to the end. With a header, a `dtype` or `shape` must agree with it.
        A file whose name ends in ``.safetensors`` says itself what is in it: see :attr:`Area.tensors`.
    plane
        ``memory``, ``page-cache``, or ``auto``: the memory plane if it is to be had, else the page-cache
        plane, with one :class:`PlaneWarning` in the life of the process that says why. None: what
        ``$DSMFS_PLANE`` says, else ``auto``.

    Returns
    -------
    Area
        Up to every publish, on any node, that completed before.

    Raises
    ------
    NotFoundError, AccessError, DirectoryError
        As the built-in `open`.
    NotMountedError
        The path is in no dsmfs mount.
    FormatError
        The file has no ``.npy`` header and no `dtype` was given, or it is another array.
    PlaneUnavailableError
        Only with ``plane='memory'``.

    Examples
    --------
    >>> with dsmfs.open("/mnt/dsm/w.npy") as w:  # doctest: +SKIP
    ...     w.array[:] += 1
    ...     w.sync()
    """
    if mode not in _MODES:
        raise ValueError(f"mode {mode!r}: want 'r' or 'r+'")
    plane = plane or os.environ.get("DSMFS_PLANE") or "auto"
    if plane not in _PLANES:
        raise ValueError(f"plane {plane!r}: want one of {', '.join(_PLANES)}")
    if order not in ("C", "F"):
        raise ValueError(f"order {order!r}: want 'C' or 'F'")
    wanted = None if dtype is None else _npy.element_type(dtype)
    where = locate(path)
    way, mapping = _way(where, _MODES[mode], plane)
    try:
        given = None if shape is None else _layout.lengths(shape)
        layout = _layout.read(str(where), mapping, wanted, given, offset, order)
        return Area(where, mode, way, mapping, layout)
    except BaseException:
        way.close()
        raise


def create(
    path: str | os.PathLike[str],
    shape: int | tuple[int, ...],
    dtype: Any,
    *,
    mode: str | None = None,
    merge: str | None = None,
    apply: str | None = None,
    interval: float | str | None = None,
    residency: str | None = None,
    order: str = "C",
    permissions: int = 0o666,
    exist_ok: bool = False,
    plane: str | None = None,
) -> Area:
    """Make an area of zeroes, and open it for reading and writing.

    It is a ``.npy`` file that ``numpy.load(path, mmap_mode='r+')`` maps just as well. It appears at `path` whole: nobody
    sees one without its header.

    Parameters
    ----------
    path
        As for :func:`open`; its directory must be there.
    shape
        Of the array.
    dtype
        Of its elements: what `numpy.dtype` takes, a ``torch.dtype``, or ``bfloat16``, which is stored as two
        opaque bytes (``<V2``, as `ml_dtypes` does) with ``user.dsm.dtype=bf16``.
    mode
        Of consistency: ``relaxed``.
    merge
        What becomes of an element that several nodes changed: ``last`` or ``sum``.
    apply
        When others' updates enter memory: ``arrival``, ``sync`` or ``auto``.
    interval
        After which time stores are published that no call has published: seconds, or text such as ``250ms``. 0: never.
    residency
        How much of it a node keeps whose programs use it: ``full``, or ``demand``: what they touch, and as much of it as its memory has
        room for. A page that does not come in time is a :class:`FaultError`.
    order
        ``C`` or ``F``.
    permissions
        Of the file, less the umask.
    exist_ok
        Open an area that is there already if it has this shape and type. Its rules stay as they are.
    plane
        As for :func:`open`.

    Returns
    -------
    Area
        Opened with mode ``r+``. Rules that are None are those of the directory.

    Raises
    ------
    ExistsError
        There is something at `path`, and not `exist_ok`.
    FormatError
        What is there is another array; or the elements have no such `merge`.
    OperationError
        EINVAL: there is no such mode, merge, apply, interval or residency. ENOSPC: there is not enough memory for it.
    """
    if order not in ("C", "F"):
        raise ValueError(f"order {order!r}: want 'C' or 'F'")
    wanted = _npy.element_type(dtype)
    lengths = _layout.lengths(shape)
    if any(n < 0 for n in lengths):
        raise ValueError(f"shape {shape!r}: want lengths, none negative")
    rules = {"mode": mode, "merge": merge, "apply": apply, "residency": residency}
    settings = {k: v for k, v in rules.items() if v is not None}
    if interval is not None:
        settings["interval"] = interval_value(interval)
    where = locate(path)
    head = _npy.header(wanted, lengths, order == "F" and len(lengths) > 1)
    kind, told = _npy.merge_type(wanted)
    settings["dtype"] = "auto" if told or kind is None else kind
    try:
        if where.path is None:
            _create_by_socket(where, settings, kind, head, _npy.nbytes(wanted, lengths), permissions)
        else:
            _create_file(where.path, settings, kind, head, _npy.nbytes(wanted, lengths), permissions)
    except ExistsError:
        if not exist_ok:
            raise
        return open(path, "r+", dtype=wanted, shape=lengths, plane=plane)
    return open(path, "r+", plane=plane)


def _create_file(
    path: str, settings: dict[str, str], kind: str | None, head: bytes, nbytes: int, permissions: int
) -> None:
    """Make the file under another name, and give it its own when it is whole."""
    directory, name = os.path.split(path)
    if os.path.lexists(path):
        raise ExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    draft = os.path.join(directory, f".{name[:200]}.{secrets.token_hex(6)}")
    with translated(path, "create"):
        fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, permissions)
    try:
        try:
            for key, value in settings.items():
                with translated(path, f"{key}={value}"):
                    os.setxattr(fd, f"user.dsm.{key}", value.encode())
            with translated(path, "create"):
                _check_merge(os.getxattr(fd, "user.dsm.merge").decode(), kind, path)
                os.ftruncate(fd, len(head) + nbytes)
                os.pwrite(fd, head, 0)
                os.fsync(fd)
                rename_new(draft, path)
        finally:
            os.close(fd)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)
        raise


def _create_by_socket(
    where: Location, settings: dict[str, str], kind: str | None, head: bytes, nbytes: int, permissions: int
) -> None:
    """Have the daemon make the file, and store its header."""
    _check_merge(settings.get("merge", "last"), kind, where.inside)
    umask = os.umask(0)
    os.umask(umask)
    lines = "".join(f"\n{k} {v}" for k, v in settings.items())
    socket = where.attach_socket()
    with translated(str(where), "create"):
        connection = Connection(socket)
        try:
            arguments = (len(head) + nbytes, permissions & ~umask, 1)
            connection.call(Op.CREATE, args=arguments, payload=f"{where.inside}{lines}\n".encode())
        finally:
            connection.close()
    plane, mapping = _way(where, True, "memory")
    try:
        mapping[: len(head)] = head
        plane.publish()
    finally:
        plane.close()


def _check_merge(merge: str, kind: str | None, path: str) -> None:
    if merge != "last" and kind is None:
        raise FormatError(f"{path}: elements of this type cannot be merged by {merge!r}, only by 'last'")


def _way(where: Location, writable: bool, plane: str) -> tuple[Plane, Mapping]:
    """Return the plane to use and the whole area mapped through it."""
    if plane != "page-cache":
        try:
            return _memory(where, writable)
        except PlaneUnavailableError as e:
            if plane == "memory" or where.path is None:
                raise
            why = e.strerror
        if _warned.acquire(blocking=False):
            warnings.warn(f"dsmfs is on the slower page-cache plane: {why}", PlaneWarning, stacklevel=_outside())
    if where.path is None:
        raise NotMountedError(errno.ENODEV, "the page-cache plane needs a mount", where.inside)
    way: Plane = PageCachePlane(where, writable)
    return _mapped(where, way)


def _outside() -> int:
    """Return the stacklevel for a warning of the caller about the code that called this package."""
    here, level = os.path.dirname(__file__), 1
    frame = sys._getframe(1)
    while frame.f_back is not None and os.path.dirname(frame.f_code.co_filename) == here:
        frame, level = frame.f_back, level + 1
    return level


def _memory(where: Location, writable: bool) -> tuple[Plane, Mapping]:
    return _mapped(where, MemoryPlane(where.attach_socket(), where.inside, str(where), writable))


def _mapped(where: Location, way: Plane) -> tuple[Plane, Mapping]:
    try:
        return way, way.map()
    except ValueError as e:  # mmap's, about a length of 0
        way.close()
        raise FormatError(f"{where}: the file is empty") from e
    except BaseException:
        with contextlib.suppress(OperationError):
            way.close()
        raise
