"""The header of ``.safetensors`` files: 8 bytes of length, JSON, then the tensors (github.com/huggingface/safetensors)."""

from __future__ import annotations

import importlib
import json
from typing import Any

import numpy as np

from ._errors import FormatError
from ._npy import bfloat16, is_bfloat16, nbytes

_PREFIX = 8  # bytes: the length of the JSON text, little-endian
_ALIGNED = 64  # bytes: where the data of what is made here start
_MOST_HEADER = 100_000_000  # the limit of the format

_TYPES = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "U16": "<u2",
    "I16": "<i2",
    "F16": "<f2",
    "U32": "<u4",
    "I32": "<i4",
    "F32": "<f4",
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
    "C64": "<c8",
}
_SMALL = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"}  # in ml_dtypes


def _element_type(name: Any) -> np.dtype[Any]:
    if name == "BF16":
        return bfloat16()
    if name in _SMALL:
        try:
            small: np.dtype[Any] = np.dtype(getattr(importlib.import_module("ml_dtypes"), _SMALL[name]))
            return small
        except (ImportError, AttributeError):
            return np.dtype("V1")
    if name not in _TYPES:
        raise FormatError(f"elements of type {name!r}")
    return np.dtype(_TYPES[name])


def read_header(memory: Any, size: int) -> tuple[int, dict[str, tuple[np.dtype[Any], tuple[int, ...], int]]]:
    """Read the header of a ``.safetensors`` file.

    Parameters
    ----------
    memory
        The file, mapped; only the header is touched.
    size
        Of the file, in bytes.

    Returns
    -------
    offset : int
        Of the data, in bytes.
    tensors : dict
        Of each tensor by name its type, shape and offset in the file. Types that NumPy does not know are those of `ml_dtypes` if it is
        installed, else opaque bytes.

    Raises
    ------
    FormatError
        It is damaged.
    """
    length = int.from_bytes(bytes(memory[:_PREFIX]), "little")
    if size < _PREFIX or length > min(size - _PREFIX, _MOST_HEADER):
        raise FormatError(f"a .safetensors header of {length} bytes in a file of {size}")
    data = _PREFIX + length
    found = {}
    try:
        described = json.loads(bytes(memory[_PREFIX:data]))
        for name, about in described.items():
            if name == "__metadata__":
                continue
            dtype, shape = _element_type(about["dtype"]), tuple(int(n) for n in about["shape"])
            begin, end = (int(n) for n in about["data_offsets"])
            if any(n < 0 for n in shape) or not 0 <= begin <= end <= size - data or end - begin != nbytes(dtype, shape):
                raise FormatError(f"{name!r}, {shape} of {dtype}, is said to be at {begin} to {end} of {size - data}")
            found[name] = dtype, shape, data + begin
    except FormatError as e:
        raise FormatError(f"a damaged .safetensors header: {e}") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
        raise FormatError(f"a damaged .safetensors header: {e}") from e
    return data, found


def header(tensors: dict[str, tuple[np.dtype[Any], tuple[int, ...]]]) -> tuple[bytes, int]:
    """Return the header of a ``.safetensors`` file, which has the tensors in an order in which all are aligned.

    Returns
    -------
    head : bytes
        The header.
    size : int
        The bytes of the file.

    Raises
    ------
    FormatError
        There are no such elements in the format.
    """
    names: dict[np.dtype[Any], str] = {np.dtype(code): name for name, code in _TYPES.items()}
    described: dict[str, Any] = {}
    end = 0
    for tensor, (dtype, shape) in sorted(tensors.items(), key=lambda t: (-t[1][0].itemsize, t[0])):
        name = "BF16" if is_bfloat16(dtype) else names.get(dtype) or _small_name(dtype)
        if name is None or tensor == "__metadata__":
            raise FormatError(f"tensor {tensor!r} of {dtype}: .safetensors files have no such")
        begin, end = end, end + nbytes(dtype, shape)
        described[tensor] = {"dtype": name, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(described, separators=(",", ":")).encode()
    text = text.ljust(len(text) + -(len(text) + _PREFIX) % _ALIGNED)
    return len(text).to_bytes(_PREFIX, "little") + text, _PREFIX + len(text) + end


def _small_name(dtype: np.dtype[Any]) -> str | None:
    return next((name for name, small in _SMALL.items() if small == dtype.name), None)
