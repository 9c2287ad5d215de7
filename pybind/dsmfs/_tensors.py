"""What PyTorch does with the memory of an area."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ._errors import outside
from ._npy import is_bfloat16

if TYPE_CHECKING:
    import torch


class MovedWarning(UserWarning):
    """A tensor of an area has been moved out of it: what is stored into it is seen by nobody else."""


class Tensors(Mapping[str, npt.NDArray[Any]]):
    """The tensors of a ``.safetensors`` file by name, each an array in the shared memory.

    Assigning to one stores into the memory: ``w.tensors['a'] = 5``. None can be added or taken away.
    """

    def __init__(self, views: dict[str, npt.NDArray[Any]]) -> None:
        self._views = views

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._views[name]

    def __setitem__(self, name: str, values: npt.ArrayLike) -> None:
        array = self._views[name]
        if values is not array:  # it is after +=
            array[...] = values

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)

    def __repr__(self) -> str:
        return f"<dsmfs tensors {{{', '.join(f'{n!r}: {a.shape} {a.dtype}' for n, a in self._views.items())}}}>"


class Lent:
    """The tensors that were given out of an area, to see when one moves away.

    ``share_memory_()`` and sending a tensor to another process put its storage, and so every tensor and parameter that shares it,
    into other memory without a word. So one tensor of each name is kept here, in the same storage as those that were
    given out, and looked at.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._kept: dict[str | None, tuple[torch.Tensor, int]] = {}

    def tensor(self, name: str | None, array: npt.NDArray[Any]) -> torch.Tensor:
        """Return a tensor in the memory of an array."""
        self.look()
        if name not in self._kept:
            self._kept[name] = (made := _make(array)), made.data_ptr()
        return self._kept[name][0].detach()

    def look(self) -> None:
        """Warn of the tensors that have moved, once of each."""
        for name, (kept, address) in list(self._kept.items()):
            if kept.data_ptr() != address:
                self._kept.pop(name, None)
                warnings.warn(
                    f"a tensor of {self._path} is not in the area any more: share_memory_(), or sending it to another process, has "
                    "moved it to other memory, and what is stored there is seen by nobody. Send the Area instead, and call "
                    ".tensor() where it arrives",
                    MovedWarning,
                    stacklevel=outside(),
                )


def _make(array: npt.NDArray[Any]) -> torch.Tensor:
    import torch

    brain = is_bfloat16(array.dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable", category=UserWarning)
        tensor = torch.from_numpy(np.asarray(array.view(np.int16) if brain else array))
    return tensor.view(torch.bfloat16) if brain else tensor


def elements(values: npt.ArrayLike, like: npt.NDArray[Any], path: str) -> npt.NDArray[Any]:
    """Return an array, or a tensor of torch, as an array, without a copy if that can be, and check that it has the type and the shape of `like`.

    Raises
    ------
    TypeError, ValueError
        The elements are of another type, or the shape is another one; the text has the path.
    """
    given: Any = values
    if hasattr(given, "detach"):
        import torch

        given = given.detach()
        if given.dtype == torch.bfloat16 and is_bfloat16(like.dtype):
            given = given.contiguous().view(torch.int16).numpy().view(like.dtype)
    array = np.asarray(given)
    if array.dtype != like.dtype:
        raise TypeError(f"{path}: elements of {array.dtype}, want {like.dtype}")
    if array.shape != like.shape:
        raise ValueError(f"{path}: shape {array.shape}, want {like.shape}")
    return array


def address(memory: Any) -> int:
    """Return where the elements of a tensor, or of what NumPy takes for an array, are."""
    if hasattr(memory, "data_ptr"):
        return int(memory.data_ptr())
    return int(np.asarray(memory).ctypes.data)
