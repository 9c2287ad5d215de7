"""What is where in the file of an area."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from . import _faults, _npy, _safetensors
from ._errors import FormatError
from ._plane import Mapping

SAFETENSORS = ".safetensors"  # the ending of such files
_MOST_DIMENSIONS = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32


class DemandArray(np.ndarray[Any, np.dtype[Any]]):
    """An array whose elements come when they are touched: an `numpy.ndarray`, but what fails fails where it stands.

    The exception for a page that does not come is raised between two steps of Python code, and CPython from 3.11 on has none between a store
    that ends a ``try`` block and the end of the block. So loads and stores of elements are Python functions here,
    which have steps of their own. Results of arithmetic are plain arrays, as of `numpy.memmap`.
    """

    __array_priority__ = -100.0

    def __getitem__(self, index: Any, /) -> Any:
        if _faults.unsure:
            _faults.take()
        found = np.ndarray.__getitem__(self, index)
        if isinstance(found, DemandArray) and not np.may_share_memory(found, self):
            return found.view(np.ndarray)
        return found

    def __setitem__(self, index: Any, value: Any, /) -> None:
        if _faults.unsure:
            _faults.take()
        np.ndarray.__setitem__(self, index, value)

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False, /) -> Any:
        if array is self:
            return array
        return array[()] if return_scalar or array.shape == () else array.view(np.ndarray)


def lengths(shape: int | tuple[int, ...]) -> tuple[int, ...]:
    """Return the lengths of the dimensions of a shape as callers give it: one number is one dimension.

    Raises
    ------
    ValueError
        NumPy has no such arrays.
    """
    try:
        found = tuple(operator.index(n) for n in shape) if isinstance(shape, Iterable) else (operator.index(shape),)
    except TypeError:
        raise ValueError(f"shape {shape!r}: want whole numbers") from None
    if any(n < 0 for n in found):
        raise ValueError(f"shape {shape!r}: want lengths, none negative")
    if len(found) > _MOST_DIMENSIONS:
        raise ValueError(f"a shape of {len(found)} dimensions: NumPy has {_MOST_DIMENSIONS} at most")
    if math.prod(filter(None, found)) >= 1 << 63:
        raise ValueError(f"shape {shape!r}: too large")
    return found


@dataclass(frozen=True)
class Layout:
    """An array in a file. `offset`, in bytes, is where it starts; `headed`: a ``.npy`` header is before it; `whole`: it ends where the file does.

    `tensors` are those of a ``.safetensors`` file, by name: type, shape and offset; the array is then all bytes behind the header.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    fortran: bool
    headed: bool = False
    whole: bool = False
    tensors: dict[str, tuple[np.dtype[Any], tuple[int, ...], int]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The bytes of a file that ends with the array."""
        return self.offset + _npy.nbytes(self.dtype, self.shape)

    def array(self, mapping: Mapping) -> npt.NDArray[Any]:
        """Return the array in a mapping of the file."""
        order: Literal["C", "F"] = "F" if self.fortran else "C"
        kind: type[npt.NDArray[Any]] = DemandArray if mapping.demand else np.ndarray
        return kind(self.shape, self.dtype, buffer=mapping, offset=self.offset, order=order)

    def views(self, mapping: Mapping) -> dict[str, npt.NDArray[Any]]:
        """Return the tensors in a mapping of the file."""
        return {
            name: Layout(dtype, shape, offset, False).array(mapping)
            for name, (dtype, shape, offset) in self.tensors.items()
        }

    def described(self) -> dict[str, Any]:
        """Return what :func:`dsmfs.open` must be told to find this array: what the file does not say itself."""
        if self.headed or self.tensors:
            return {}
        shape = None if self.whole and len(self.shape) == 1 else self.shape
        return {"dtype": self.dtype, "shape": shape, "offset": self.offset, "order": "F" if self.fortran else "C"}

    def grown(self, size: int) -> Layout:
        """Return the layout once the file has another size, which moves no element: itself if the array does not reach to the end."""
        if not self.whole or not self.shape:
            return self
        grows = len(self.shape) - 1 if self.fortran else 0
        row = _npy.nbytes(self.dtype, (*self.shape[:grows], *self.shape[grows + 1 :]))
        if row == 0 or size < self.offset or (self.headed and (size - self.offset) % row != 0):
            return self
        length = (size - self.offset) // row
        return replace(self, shape=(*self.shape[:grows], length, *self.shape[grows + 1 :]))

    def resized(self, shape: tuple[int, ...]) -> Layout:
        """Return the layout of another length in the dimension in which no element moves.

        Raises
        ------
        ValueError
            Another dimension would change.
        FormatError
            The file has more than an array.
        """
        if self.tensors:
            raise FormatError("a .safetensors file has the size that its header says")
        grows = len(self.shape) - 1 if self.fortran else 0
        same = [n for i, n in enumerate(self.shape) if i != grows]
        if not shape or len(shape) != len(self.shape) or [n for i, n in enumerate(shape) if i != grows] != same:
            raise ValueError(f"shape {shape}: of {self.shape} only dimension {grows} can change")
        return replace(self, shape=shape, whole=True)

    def header(self) -> bytes:
        """Return the header of the file; b"" if it has none.

        Raises
        ------
        FormatError
            There is no room for it before the array.
        """
        return _npy.header(self.dtype, self.shape, self.fortran, self.offset) if self.headed else b""


def read(
    name: str,
    mapping: Mapping | bytes,
    dtype: np.dtype[Any] | None,
    shape: tuple[int, ...] | None,
    offset: int,
    order: str,
    *,
    size: int | None = None,
    cut: bool = False,
) -> Layout:
    """Find out what is in a file.

    Parameters
    ----------
    name
        Of the file, for its ending and for error texts.
    mapping
        Of the whole file, or the start of it; no more of it is touched than its header.
    dtype, shape, offset, order
        What the caller says of it: see :func:`dsmfs.open`.
    size
        Of the file; None: that of the mapping.
    cut
        The header may be from before the file had this size: the array ends where the file does.

    Raises
    ------
    FormatError
        It is something else, or nothing that says what it is.
    """
    size = len(mapping) if size is None else size
    if name.endswith(SAFETENSORS) and dtype is None and shape is None and offset == 0:
        data, tensors = _safetensors.read_header(mapping, size)
        return Layout(np.dtype("u1"), (size - data,), data, False, tensors=tensors)
    described = _npy.read_header(_npy.start(mapping, size)) if offset == 0 else None
    if described is not None:
        has, there, fortran, offset = described
        if (dtype is not None and dtype != has) or (shape is not None and shape != there):
            wanted = f"{'this shape' if shape is None else shape} of {dtype or 'this'}"
            raise FormatError(f"{name} has shape {there} of {has}, not {wanted}")
        layout = Layout(has, there, offset, fortran, headed=True, whole=True)
        layout = layout.grown(size) if cut else layout
    elif dtype is None:
        raise FormatError(f"{name} has no .npy header: say with dtype= (and shape=) what is in it")
    else:
        fits = (max(0, size - offset) // dtype.itemsize,)
        layout = Layout(dtype, fits if shape is None else shape, offset, order == "F", whole=shape is None)
    if offset < 0 or layout.size > size:
        raise FormatError(f"{name} has {size} bytes: too few for {layout.shape} of {layout.dtype} from {offset} on")
    return layout
