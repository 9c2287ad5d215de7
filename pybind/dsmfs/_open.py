"""Opening and making areas."""

from __future__ import annotations

import builtins
import contextlib
import errno
import operator
import os
import secrets
import threading
import warnings
from collections.abc import Mapping as Dictionary
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _layout, _npy, _rules, _safetensors
from ._area import Area
from ._errors import (
    ExistsError,
    FormatError,
    NotMountedError,
    OperationError,
    PlaneUnavailableError,
    outside,
    translated,
)
from ._linux import rename_new
from ._memory import MemoryPlane
from ._mounts import Location, locate
from ._pagecache import PageCachePlane
from ._plane import Mapping, Plane
from ._wire import Connection, Op, Reply, first

_MODES = {"r": False, "r+": True}
_PLANES = ("auto", "memory", "page-cache")


class PlaneWarning(UserWarning):
    """An area is on the page-cache plane although that was not requested."""


_warned = threading.Lock()  # taken by the first warning, and never released
_umasking = threading.Lock()  # held while the umask is another


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
        The path of a file in a mount. If ``$DSMFS_ATTACH`` names the socket of a node, it may also be a path from the root of
        that node's filesystem.
    mode
        ``r``: read only. ``r+``: read and write.
    dtype, shape, offset, order
        The array in a file without ``.npy`` header, as for `numpy.memmap`; `offset` is in bytes. Without a shape the
        array has one dimension and reaches to the end. If there is a header, a `dtype` or `shape` must agree with it.
        A file whose name ends in ``.safetensors`` describes its content itself: see :attr:`Area.tensors`.
    plane
        ``memory``, ``page-cache``, or ``auto``: the memory plane if it is available, otherwise the page-cache
        plane. Then one :class:`PlaneWarning` in the life of the process says why. None stands for
        ``$DSMFS_PLANE``, or ``auto`` if that is not set.

    Returns
    -------
    Area
        It has everything that any node had published before the call. If the program has it open already, to store, and updates enter
        memory in sync calls only (`apply`), it has the length that was published, and the elements that those calls have brought in.

    Raises
    ------
    NotFoundError, AccessError, DirectoryError
        As the built-in `open`.
    NotMountedError
        The path is not in a dsmfs mount.
    FormatError
        The file has no ``.npy`` header and no `dtype` was given, or it contains another array.
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
    plane = _plane(plane)
    if order not in ("C", "F"):
        raise ValueError(f"order {order!r}: want 'C' or 'F'")
    wanted = None if dtype is None else _npy.element_type(dtype)
    given = None if shape is None else _layout.lengths(shape)
    if offset < 0:
        raise ValueError(f"offset {offset}: want bytes, not negative")
    where = locate(path)
    way, mapping = _way(where, _MODES[mode], plane)
    return _area(where, mode, way, mapping, wanted, given, offset, order)


def _plane(asked: str | None) -> str:
    plane = asked or os.environ.get("DSMFS_PLANE") or "auto"
    if plane not in _PLANES:
        raise ValueError(f"plane {plane!r}: want one of {', '.join(_PLANES)}")
    return plane


def _area(
    where: Location,
    mode: str,
    way: Plane,
    mapping: Mapping,
    dtype: np.dtype[Any] | None = None,
    shape: tuple[int, ...] | None = None,
    offset: int = 0,
    order: str = "C",
) -> Area:
    try:
        return Area(where, mode, way, mapping, _described(where, way, mapping, dtype, shape, offset, order))
    except BaseException:
        way.close()
        raise


def _described(where: Location, way: Plane, mapping: Mapping, *said: Any) -> _layout.Layout:
    """Find out what is in a file whose size is that of the mapping.

    Where updates enter memory in sync calls only, memory may have the header of before somebody resized the file. Then the one that is published
    counts, or, where that cannot be read, the size.
    """
    size = len(mapping)
    try:
        layout = _layout.read(str(where), mapping, *said)
        if not layout.headed or layout.size == size:
            return layout
        head = way.published(_npy.MOST_HEADER)
        if head is None:
            return layout
    except FormatError:
        head = way.published(_npy.MOST_HEADER)
        if head is None:
            raise
    return _layout.read(str(where), head or mapping, *said, size=size, cut=not head)


def again(path: str, mode: str, described: dict[str, Any], plane: str) -> Area:
    """Open an area that was pickled."""
    return open(path, mode, plane=plane, **described)


def create(
    path: str | os.PathLike[str],
    shape: int | tuple[int, ...] | None = None,
    dtype: Any = None,
    *,
    tensors: Dictionary[str, tuple[int | tuple[int, ...], Any]] | None = None,
    consistency: str | None = None,
    merge: str | None = None,
    apply: str | None = None,
    interval: float | str | None = None,
    residency: str | None = None,
    placement: str | None = None,
    staleness: float | str | None = None,
    retain: int | None = None,
    replicas: int | None = None,
    on_nonfinite: str | None = None,
    order: str = "C",
    permissions: int = 0o666,
    exist_ok: bool = False,
    plane: str | None = None,
    mode: str | None = None,
) -> Area:
    """Make an area of zeroes, and open it for reading and writing.

    It is a ``.npy`` file, which ``numpy.load(path, mmap_mode='r+')`` can map as well, or, with `tensors`, a ``.safetensors`` file. It
    appears at `path` whole: nobody sees it without its header.

    Parameters
    ----------
    path
        As for :func:`open`; its directory must exist.
    shape
        The shape of the array.
    dtype
        The type of its elements: anything that `numpy.dtype` takes, a ``torch.dtype``, or ``bfloat16``, which is stored as two
        bytes (``<V2``, as `ml_dtypes` does) with ``user.dsm.dtype=bf16``.
    tensors
        In place of `shape` and `dtype`: the shape and type of each tensor of a ``.safetensors`` file, by name, for instance
        ``{'w': ((10, 50), 'f4')}``.
    consistency
        How the nodes agree about the memory. ``relaxed``: all store to it. ``versioned``: the programs of one node do, and what they
        publish is a version, which others see whole: see :meth:`Area.snapshot`.
    merge
        The rule for elements that several nodes changed: ``last``, ``sum``, ``mean``, ``min`` or ``max``.
    apply
        When others' updates enter memory: ``arrival``, ``sync`` or ``auto``.
    interval
        The time after which stores are published that no call has published: seconds, or text such as ``250ms``. 0: never.
    residency
        How much of the area a node keeps while its programs use it. ``full``: all of it. ``demand``: what they touch, as far as its
        memory has room. A page that does not come in time raises :class:`FaultError`.
    placement
        Where the homes of the area are: ``auto``, ``spread``, ``one``, or the name or id of a node.
    staleness
        How old what a program reads may be (:attr:`Area.staleness`): seconds, text such as ``250ms``, or ``none``. It holds for read(2); the memory
        of :attr:`Area.array` is kept within it as long as the homes answer.
    retain
        Of a versioned area: how many versions each node keeps for readers, from 1 to 64, the newest included.
    replicas
        On how many nodes the bytes of the area are kept, its homes included: 1, 2 or 3. 2 unless its directory says otherwise: any node may die.
    on_nonfinite
        What becomes of floats that programs store and that are infinite or not a number. ``count``: they are published like others, and
        :attr:`Area.stats` counts them. ``refuse``: none is published, and sync calls raise :class:`NotFiniteError` until a finite one
        is stored there.
    order
        ``C`` or ``F``.
    permissions
        The mode of the file, less the umask.
    exist_ok
        Open an area that exists already, if it has this shape, type and order, and the rules that are given here.
    plane
        As for :func:`open`.
    mode
        The old name of `consistency`; it will be removed in the next release.

    Returns
    -------
    Area
        Opened with mode ``r+``. Rules that are None are inherited from the directory.

    Raises
    ------
    ExistsError
        `path` exists, and `exist_ok` is not set.
    FormatError
        The existing file is another array, or has other rules; or elements of this type cannot be merged by `merge`.
    ValueError
        Such an array is not possible; or the ending of `path` belongs to another format.
    OperationError
        EINVAL: a value of consistency, merge, apply, interval, residency, placement, staleness, retain, replicas or on_nonfinite is not allowed, or not together with the others. ENOSPC: there is not enough memory.
    """
    if order not in ("C", "F"):
        raise ValueError(f"order {order!r}: want 'C' or 'F'")
    if mode is not None:
        warnings.warn("create(mode=) is called consistency= now", DeprecationWarning, stacklevel=outside())
        consistency = consistency or mode
    plan = _plan(os.fsdecode(path), shape, dtype, tensors, order)
    rules = {
        "consistency": consistency,
        "merge": merge,
        "apply": apply,
        "residency": residency,
        "placement": placement,
        "on_nonfinite": on_nonfinite,
    }
    wanted = {k: v for k, v in rules.items() if v is not None}
    if interval is not None:
        wanted["interval"] = _rules.duration(interval)
    if staleness is not None:
        wanted["staleness"] = _rules.duration(staleness)
    if retain is not None:
        wanted["retain"] = str(operator.index(retain))
    if replicas is not None:
        wanted["replicas"] = str(operator.index(replicas))
    plane = _plane(plane)
    where = locate(path)
    try:
        way, mapping = _make(where, {**wanted, "dtype": plan.rule}, plan, permissions, plane)
    except ExistsError:
        if not exist_ok:
            raise
        return _there(path, plan, wanted, plane)
    return _area(where, "r+", way, mapping)


#: The kind of a file whose tensors are of several types: the daemon reads them from the header.
_SEVERAL = "several"


@dataclass(frozen=True)
class _Plan:
    """A file to make: its header, its size, and how its elements merge according to :mod:`_npy`."""

    head: bytes
    size: int
    kind: str | None
    rule: str
    described: tuple[Any, ...]
    told: bool = False  # the header says the kind
    ordered: bool = True  # of two elements one is the smaller one


def _plan(
    path: str,
    shape: int | tuple[int, ...] | None,
    dtype: Any,
    tensors: Dictionary[str, tuple[int | tuple[int, ...], Any]] | None,
    order: str,
) -> _Plan:
    if path.endswith(_layout.SAFETENSORS) != (tensors is not None):
        raise ValueError(f"{path}: a file with tensors= is a .safetensors file, and another is not")
    if tensors is not None:
        if shape is not None or dtype is not None:
            raise ValueError("tensors= has the shape and the dtype of each: leave shape and dtype out")
        described = {k: (_npy.element_type(d), _layout.lengths(n)) for k, (n, d) in tensors.items()}
        head, size = _safetensors.header(described)
        kind, ordered = _tensor_kinds([d for d, _ in described.values()])
        one = kind if kind != _SEVERAL else None
        return _Plan(head, size, kind, "auto", (described,), one is not None, ordered)
    if shape is None or dtype is None:
        raise TypeError("create() takes a shape and a dtype, or tensors=")
    wanted, lengths = _npy.element_type(dtype), _layout.lengths(shape)
    fortran = order == "F" and len(lengths) > 1
    head = _npy.header(wanted, lengths, fortran)
    size = len(head) + _npy.nbytes(wanted, lengths)
    if size >= 1 << 63:
        raise ValueError(f"shape {lengths} of {wanted}: too large")
    kind, told = _npy.merge_type(wanted)
    rule = "auto" if told or kind is None else kind
    return _Plan(head, size, kind, rule, (wanted, lengths, fortran), told and kind is not None, wanted.kind != "c")


def _tensor_kinds(dtypes: list[np.dtype[Any]]) -> tuple[str | None, bool]:
    """Return how dsmfs can merge the tensors of a file: `_SEVERAL` if each has its own type, and whether their elements have an order."""
    kinds = {_npy.merge_type(d)[0] for d in dtypes}
    ordered = all(d.kind != "c" for d in dtypes)
    if len(kinds) == 1:
        return kinds.pop(), ordered
    flags = {_npy.merge_type(d)[0] for d in dtypes if d.kind == "b"}  # of truth values the last one stays by any rule
    return (_SEVERAL if ordered and None not in kinds - flags else None), ordered


def _there(path: str | os.PathLike[str], plan: _Plan, rules: dict[str, str], plane: str | None) -> Area:
    """Open a file that exists already, if it is the one that was to be made."""
    area = open(path, "r+", plane=plane)
    try:
        area._must_be(plan.described)
        if rules:
            _rules.compare(area.path, area.settings, rules)
    except BaseException:
        area.close()
        raise
    return area


def _make(
    where: Location, settings: dict[str, str], plan: _Plan, permissions: int, plane: str
) -> tuple[Plane, Mapping]:
    """Make a file and open it. It has its name when it is whole.

    Each change of names takes a round of the catalog. There are two: one for the file with all its rules, one for its name.
    """
    _check_merge(settings.get("merge", "last"), plan, str(where))
    _rules.check(settings, str(where))
    if plane != "page-cache":
        try:
            return _make_attached(where, settings, plan, permissions)
        except PlaneUnavailableError as e:
            _instead(e, where, plane)
    return _make_by_mount(where, settings, plan, permissions)


def _make_attached(
    where: Location, settings: dict[str, str], plan: _Plan, permissions: int
) -> tuple[MemoryPlane, Mapping]:
    """Make a file without a name, attach it, and have the daemon name it when it is whole."""
    connection = _connect(where)
    begins = 0
    if plan.told and plan.kind is not None and plan.ordered:  # only the header can say that elements are complex
        settings, begins = {**settings, "dtype": plan.kind}, len(plan.head)
    made = (plan.size, permissions & ~_umask(), begins), _lines(settings)
    way = MemoryPlane(where.attach_socket(), where.inside, str(where), True, connection=connection, made=made)
    mapping: Mapping | None = None
    try:
        _check_merge("sum" if way.merges else "last", plan, str(where))
        mapping = way.map()
        mapping[: len(plan.head)] = plan.head
        way.appear()
        return way, mapping
    except BaseException:
        mapping = None  # close detaches only what nobody has
        with contextlib.suppress(OperationError):
            way.close()
        raise


def _make_by_mount(where: Location, settings: dict[str, str], plan: _Plan, permissions: int) -> tuple[Plane, Mapping]:
    """Make a file through the mount, under another name until it is whole."""
    path = _mounted(where)
    if os.path.lexists(path):
        raise ExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    draft = where.beside(f".{os.path.basename(path)[:200]}.{secrets.token_hex(6)}")
    assert draft.path is not None
    try:
        try:
            _create_by_socket(draft, str(where), settings, plan, permissions)
        except PlaneUnavailableError:
            _create_file(path, settings, plan, permissions, draft.path)
        if (plan.kind is None or not plan.ordered) and "merge" not in settings:
            with translated(path, "create"):
                _check_merge(os.getxattr(draft.path, "user.dsm.merge").decode(), plan, path)
        way = PageCachePlane(draft, True)
        try:
            mapping = way.map()
            mapping[: len(plan.head)] = plan.head
            way.publish()
            with translated(path, "create"):
                rename_new(draft.path, path)
        except BaseException:
            way.close()
            raise
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft.path)
        raise
    way.renamed(where)
    return way, mapping


def _create_file(path: str, settings: dict[str, str], plan: _Plan, permissions: int, draft: str) -> None:
    """Make a file with system calls."""
    with translated(path, "create"):
        fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, permissions)
    try:
        _rules.write(fd, path, settings)
        with translated(path, "create"):
            os.ftruncate(fd, plan.size)
    finally:
        os.close(fd)


def _create_by_socket(draft: Location, path: str, settings: dict[str, str], plan: _Plan, permissions: int) -> None:
    """Let the daemon make a file, in one round of the catalog."""
    arguments = (plan.size, permissions & ~_umask(), 1)
    payload = os.fsencode(f"{draft.inside}\n{_lines(settings)}")
    asked: list[Connection] = []

    def ask(connection: Connection) -> Reply:
        asked.append(connection)
        return connection.call(Op.CREATE, args=arguments, payload=payload)

    with translated(path, "create"):
        try:
            connection, _ = first(_connect(draft), draft.attach_socket(), ask)
            connection.close()
        except ExistsError:
            if len(asked) == 1:
                raise
            # Made by the daemon that has ended: nobody else has the name, which is drawn at random.


def _umask() -> int:
    """Return the umask. It is not changed for that, since other threads may make files meanwhile."""
    with contextlib.suppress(OSError), builtins.open("/proc/thread-self/status", "rb") as status:
        for line in status:
            if line.startswith(b"Umask:"):
                return int(line.split()[1], 8)
    with _umasking:  # /proc is not mounted
        umask = os.umask(0o077)
        os.umask(umask)
    return umask


def _lines(settings: dict[str, str]) -> str:
    """Return rules as the requests of the socket have them."""
    return "".join(f"{_rules.attribute(k).removeprefix('user.dsm.')} {v}\n" for k, v in settings.items())


def _connect(where: Location) -> Connection:
    """Connect to the daemon. The mount is asked for the socket only if it is not known, or nobody answers there any more."""
    name = where.attach_socket()
    try:
        try:
            return Connection(name)
        except OSError:
            if (now := where.attach_socket(fresh=True)) == name:
                raise
            name = now
            return Connection(name)
    except OSError as e:
        raise PlaneUnavailableError(e.errno or errno.EIO, f"nobody answers at {name}: {e.strerror}", str(where)) from e


def _check_merge(merge: str, plan: _Plan, path: str) -> None:
    if merge != "last" and plan.kind is None:
        raise FormatError(f"{path}: elements of this type cannot be merged by {merge!r}, only by 'last'")
    if merge in ("min", "max") and not plan.ordered:
        raise FormatError(f"{path}: complex numbers have no order, so they cannot be merged by {merge!r}")


def _way(where: Location, writable: bool, plane: str) -> tuple[Plane, Mapping]:
    """Return the plane to use, and the whole area mapped through it. It decides on the fallback to the page cache."""
    if plane != "page-cache":
        try:
            connection = _connect(where)
            name = where.attach_socket()
            return _mapped(where, MemoryPlane(name, where.inside, str(where), writable, connection=connection))
        except PlaneUnavailableError as e:
            _instead(e, where, plane)
    _mounted(where)
    return _mapped(where, PageCachePlane(where, writable))


def _instead(why: PlaneUnavailableError, where: Location, plane: str) -> None:
    """Warn, once, that the page-cache plane is used because of the error, or raise it if that may not be."""
    if plane == "memory" or where.path is None:
        raise why
    if _warned.acquire(blocking=False):
        warnings.warn(f"dsmfs is on the slower page-cache plane: {why.strerror}", PlaneWarning, stacklevel=outside())


def _mounted(where: Location) -> str:
    """Return the path in the mount, which the page-cache plane needs."""
    if where.path is None:
        raise NotMountedError(errno.ENODEV, "the page-cache plane needs a mount", where.inside)
    return where.path


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
