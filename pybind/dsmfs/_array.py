"""The memory of an area, as an array and as tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import _faults
from ._layout import Layout
from ._npy import is_bfloat16
from ._plane import Mapping
from ._tensors import Lent, Tensors, address

if TYPE_CHECKING:
    from typing import Self

    import torch


class SharedArray(ABC):
    """What of an :class:`Area` is an array: its memory, all that NumPy and torch want of it, and how it goes away."""

    @property
    @abstractmethod
    def path(self) -> str:
        """The path, for error texts."""

    @abstractmethod
    def _open(self) -> object:
        """Fail if the area is closed."""

    def _show(self, mapping: Mapping, layout: Layout) -> None:
        self._mapping: Mapping | None = mapping
        self._layout = layout
        self._array = layout.array(mapping)
        self._tensors = Tensors(layout.views(mapping))
        self._address = address(np.frombuffer(mapping, np.uint8))
        self._lent = Lent(self.path)

    def _hide(self) -> list[npt.NDArray[Any]]:
        """Give up the memory, but not the shape and the type. Return what there was; the memory goes with its last user."""
        self._mapping = None
        arrays = [self._array, *self._tensors.values()]
        self._array = np.broadcast_to(np.empty((), self._array.dtype), self._array.shape)
        self._tensors = Tensors({})
        self._lent = Lent(self.path)
        return arrays

    @property
    def array(self) -> npt.NDArray[Any]:
        """The shared memory, of any shape and element type.

        Assigning to it stores into the memory: ``w.array += 1``, ``w.array = 0``.
        """
        self._open()
        if _faults.unsure:
            _faults.take()
        return self._array

    @array.setter
    def array(self, values: npt.ArrayLike) -> None:
        self._open()
        if values is not self._array:  # it is after +=
            self._array[...] = values

    @property
    def tensors(self) -> Tensors:
        """The tensors of a ``.safetensors`` file by name, each an array in the shared memory. Empty for other files.

        Assigning to one stores into the memory: ``w.tensors['a'] = 5``.
        """
        self._open()
        if _faults.unsure:
            _faults.take()
        return self._tensors

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the array's elements; for bfloat16 see :meth:`tensor`."""
        return self._array.dtype

    @property
    def nbytes(self) -> int:
        """The bytes of the array."""
        return self._array.nbytes

    def tensor(self, name: str | None = None) -> torch.Tensor:
        """Return a torch tensor in the same memory, of the shape of the array.

        bfloat16 areas are ``torch.bfloat16``. There are no read-only tensors: with mode ``r`` a store to it is a
        SIGSEGV.

        Parameters
        ----------
        name
            Of one of :attr:`tensors`. None: the array.

        Raises
        ------
        ImportError
            PyTorch is not installed.
        TypeError
            It has no such element type.
        KeyError
            There is no tensor of that name.
        """
        array = self.array if name is None else self.tensors[name]
        return self._lent.tensor(name, array)

    def owns(self, memory: Any) -> bool:
        """Tell whether a tensor or an array is in the memory of this area.

        ``tensor.share_memory_()``, ``model.share_memory()`` and sending a tensor to another process move its storage, and that of all that share
        it, elsewhere without a word: then it is not. :meth:`publish`, :meth:`sync` and :meth:`acquire` warn of what :meth:`tensor` gave out
        (:class:`MovedWarning`).

        Parameters
        ----------
        memory
            A torch tensor or parameter, or what NumPy takes for an array.
        """
        self._open()
        return self._mapping is not None and 0 <= address(memory) - self._address < len(self._mapping)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return the shared memory itself, or a copy if one is wanted or another type is."""
        if dtype is not None and np.dtype(dtype) != self.dtype:
            if copy is False:
                raise ValueError(f"{self.dtype} as {np.dtype(dtype)} needs a copy")
            return self.array.astype(dtype)
        return self.array.copy() if copy else self.array

    def __dlpack__(self, **options: Any) -> Any:
        """Return the shared memory for another library, as of `numpy.ndarray.__dlpack__`."""
        source = self.tensor() if is_bfloat16(self.dtype) else self.array
        return source.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the device of DLPack that the memory is on: the CPU."""
        return 1, 0

    def __len__(self) -> int:
        return len(self.array)

    def __bool__(self) -> bool:
        return True  # also of an area of length 0

    def __iter__(self) -> Iterator[Any]:
        return iter(self.array)

    def __contains__(self, value: object) -> bool:
        return value in self.array

    def __getitem__(self, index: Any) -> Any:
        found = self.array[index]
        return found  # a step of its own, in which a FaultError can come: see DemandArray

    def __setitem__(self, index: Any, values: npt.ArrayLike) -> None:
        self.array[index] = values

    # Without these, `w += 1` would make w an array of its own: NumPy can add to what has __array__.

    def __iadd__(self, values: npt.ArrayLike) -> Self:
        array = self.array
        array += values
        return self

    def __isub__(self, values: npt.ArrayLike) -> Self:
        array = self.array
        array -= values
        return self

    def __imul__(self, values: npt.ArrayLike) -> Self:
        array = self.array
        array *= values
        return self

    def __itruediv__(self, values: npt.ArrayLike) -> Self:
        array = self.array
        array /= values
        return self

    def __ifloordiv__(self, values: npt.ArrayLike) -> Self:
        array = self.array
        array //= values
        return self

    def __imod__(self, values: npt.ArrayLike) -> Self:
        array = self.array
        array %= values
        return self

    def __ipow__(self, values: npt.ArrayLike) -> Self:
        array = self.array
        array **= values
        return self

    def __imatmul__(self, values: npt.ArrayLike) -> Self:
        array = self.array
        array @= values
        return self

    def __iand__(self, values: npt.ArrayLike) -> Self:
        array = self.array
        array &= values
        return self

    def __ior__(self, values: npt.ArrayLike) -> Self:
        array = self.array
        array |= values
        return self

    def __ixor__(self, values: npt.ArrayLike) -> Self:
        array = self.array
        array ^= values
        return self

    def __ilshift__(self, values: npt.ArrayLike) -> Self:
        array = self.array
        array <<= values
        return self

    def __irshift__(self, values: npt.ArrayLike) -> Self:
        array = self.array
        array >>= values
        return self


def protect(arrays: list[npt.NDArray[Any]]) -> None:
    """Let nobody store through the arrays any more; views of them may go on."""
    for array in arrays:
        array.flags.writeable = False
