"""Element types, and the header of ``.npy`` files (NEP 1)."""

from __future__ import annotations

import importlib
import io
import math
import os
import threading
from typing import Any

import numpy as np

from ._errors import FormatError

MAGIC = b"\x93NUMPY"
MOST_HEADER = 1 << 16
_NARROW = 10  # bytes before the text of a header of version 1
_PREFIX = 12  # bytes: magic, version, and in all versions the length of the rest

#: What `user.dsm.dtype` calls the types whose elements can be merged other than by the last store.
_MERGED = {
    "f8": "f64",
    "f4": "f32",
    "f2": "f16",
    "i1": "i8",
    "i2": "i16",
    "i4": "i32",
    "i8": "i64",
    "u1": "u8",
    "u2": "u16",
    "u4": "u32",
    "u8": "u64",
}
_COMPLEX = {"c8": "f32", "c16": "f64"}


# NumPy reads a header by the parser of Python, which in some versions (3.11.7 is one) counts for all threads together how deep it is: two at
# once may end with SystemError.
_parser = threading.RLock()


def _forked() -> None:
    global _parser
    _parser = threading.RLock()  # another thread may have had it


os.register_at_fork(after_in_child=_forked)


def bfloat16() -> np.dtype[Any]:
    """Return the type of bfloat16 arrays: that of `ml_dtypes` if it is installed, else two opaque bytes.

    NumPy refuses arithmetic on opaque bytes, so nothing is added up wrongly;
    :meth:`Area.tensor` and ``.array.view(np.uint16)`` work in any case.
    """
    try:
        found: np.dtype[Any] = np.dtype(importlib.import_module("ml_dtypes").bfloat16)
        return found
    except ImportError:
        return np.dtype("V2")


def is_bfloat16(dtype: np.dtype[Any]) -> bool:
    """Tell whether elements are bfloat16: in ``.npy`` files they are two opaque bytes, as `ml_dtypes` saves them."""
    return dtype.name == "bfloat16" or (dtype.kind == "V" and dtype.itemsize == 2 and dtype.names is None)


def element_type(dtype: Any) -> np.dtype[Any]:
    """Return the type of an array's elements.

    Parameters
    ----------
    dtype
        Whatever ``numpy.dtype`` takes, a ``torch.dtype``, or ``bfloat16`` or ``bf16``.

    Raises
    ------
    TypeError
        It means nothing, or Python objects, which cannot be shared.
    """
    name = str(dtype).removeprefix("torch.")
    if name in ("bfloat16", "bf16"):
        return bfloat16()
    found = np.dtype(name) if str(dtype).startswith("torch.") else np.dtype(dtype)
    if found.hasobject:
        raise TypeError(f"{found}: objects cannot be shared between processes")
    if found.itemsize == 0:
        raise TypeError(f"{dtype}: elements without bytes")
    return bfloat16() if is_bfloat16(found) else found


def merge_type(dtype: np.dtype[Any]) -> tuple[str | None, bool]:
    """Return how dsmfs can merge elements.

    Returns
    -------
    kind : str or None
        The value of ``user.dsm.dtype``; None if only the last store can win.
    told : bool
        Whether the ``.npy`` header says it; if not the attribute must.
    """
    if is_bfloat16(dtype):
        return "bf16", False
    code = f"{dtype.kind}{dtype.itemsize}"
    if dtype.byteorder == ">" or dtype.subdtype is not None:
        return None, True
    if code in _COMPLEX:
        return _COMPLEX[code], True
    return _MERGED.get(code), True


def header(dtype: np.dtype[Any], shape: tuple[int, ...], fortran: bool, length: int | None = None) -> bytes:
    """Return the header of a ``.npy`` file: of `length` bytes, or as many as NumPy likes, a multiple of 64.

    Raises
    ------
    FormatError
        It is too large, as that of a type with hundreds of fields.
    """
    described = "<V2" if is_bfloat16(dtype) else np.lib.format.dtype_to_descr(dtype)
    f = io.BytesIO()
    try:
        np.lib.format.write_array_header_1_0(f, {"descr": described, "fortran_order": fortran, "shape": shape})
    except ValueError as e:
        raise FormatError(f"{dtype}: {e}") from e
    if length is None or length == f.tell():
        return f.getvalue()
    text = f.getvalue()[_NARROW:].rstrip()
    room = length - _NARROW - 1
    if not len(text) <= room < (1 << 16) - 1:
        raise FormatError(f"there is no room for shape {shape} in a header of {length} bytes")
    return MAGIC + bytes((1, 0)) + (room + 1).to_bytes(2, "little") + text.ljust(room) + b"\n"


def read_header(head: bytes) -> tuple[np.dtype[Any], tuple[int, ...], bool, int] | None:
    """Read the header of a ``.npy`` file.

    Parameters
    ----------
    head
        The start of the file, with the whole header: see :func:`start`.

    Returns
    -------
    (dtype, shape, fortran, offset) or None
        `offset`, in bytes, is where the data start. None if it is no ``.npy`` file.

    Raises
    ------
    FormatError
        The header is damaged, or of a type that cannot be mapped.
    """
    if not head.startswith(MAGIC):
        return None
    f = io.BytesIO(head)
    try:
        version = np.lib.format.read_magic(f)
        with _parser:
            if version == (1, 0):
                shape, fortran, dtype = np.lib.format.read_array_header_1_0(f)
            else:
                shape, fortran, dtype = np.lib.format.read_array_header_2_0(f)
    except (ValueError, TypeError) as e:
        raise FormatError(f"a damaged .npy header: {e}") from e
    if dtype.hasobject:
        raise FormatError(f"{dtype}: Python objects cannot be mapped")
    return (bfloat16() if is_bfloat16(dtype) else dtype), shape, fortran, f.tell()


def start(memory: Any, size: int) -> bytes:
    """Return as much of a mapping as its header takes, and no more: pages may have to come from elsewhere."""
    head = bytes(memory[: min(size, _PREFIX)])
    if not head.startswith(MAGIC) or len(head) < _PREFIX:
        return head
    wide = head[len(MAGIC)] > 1
    length = int.from_bytes(head[8 : 12 if wide else 10], "little")
    return bytes(memory[: min(size, _PREFIX + length, MOST_HEADER)])


def nbytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """Return the bytes of an array."""
    return dtype.itemsize * math.prod(shape)
