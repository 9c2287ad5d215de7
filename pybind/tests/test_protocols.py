"""An Area where something else is expected: a sequence, an array, what can be pickled."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from typing import Any

import dsmfs
import numpy as np
import pytest


def test_it_is_indexed_like_its_array(nodes: dsmfs.Cluster) -> None:
    with nodes[0].create("w.npy", (3, 4), "i8") as w:
        assert len(w) == 3 and w
        w[1] = 5
        w[0, 2:] = [6, 7]
        w[2][1] = 8
        assert w[0].tolist() == [0, 0, 6, 7] and w[1, 3] == 5 and w[-1, 1] == 8
        w[0] += 1
        assert [int(row.sum()) for row in w] == [17, 20, 8] and 8 in w and 9 not in w
        assert np.shares_memory(w[1], w.array)
        with pytest.raises(IndexError):
            w[3]
        w.publish()
        with nodes[1].open("w.npy", "r") as there:
            assert there[1, 0] == 5
            with pytest.raises(ValueError, match="read-only"):
                there[0] = 1
    with pytest.raises(dsmfs.ClosedError):
        w[0]
    with nodes[0].create("none.npy", 0, "f4") as none:
        assert len(none) == 0 and bool(none)


def test_numpy_takes_it_without_a_copy(nodes: dsmfs.Cluster) -> None:
    with nodes[0].create("w.npy", (3, 4), "f4") as w:
        assert np.asarray(w) is w.array
        assert np.shares_memory(np.from_dlpack(w), w.array)
        assert w.__dlpack_device__() == w.array.__dlpack_device__()
        np.from_dlpack(w)[1] = 3
        assert w[1, 1] == 3
        assert np.asarray(w, "f8").dtype == np.float64
        for copied in (np.array(w), np.asarray(w, "f8"), w.__array__(copy=True), w.__array__(np.float64)):
            assert not np.shares_memory(copied, w.array) and copied[1, 1] == 3
        assert w.__array__(copy=False) is w.array
        with pytest.raises(ValueError, match="copy"):
            w.__array__(np.float64, copy=False)
        assert np.add(w, 1)[1, 1] == 4
        assert w.owns(w.array) and w.owns(w[2]) and w.owns(np.asarray(w)) and not w.owns(np.zeros(3))


def add(area: dsmfs.Area, index: int) -> str:
    """Work of a process that an area was sent to."""
    area[index] += index
    area.publish()
    return f"{area.mode} {area.plane} {area.dtype} {area.shape}"


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_worker_processes_open_it_again(nodes: dsmfs.Cluster, method: str) -> None:
    with nodes[0].create("w.npy", 8, "f8", merge="sum") as w:
        w[:] = 1
        w.publish()
        with multiprocessing.get_context(method).Pool(2) as pool:
            said = pool.starmap(add, [(w, i) for i in range(1, 8)])
        assert set(said) == {f"r+ {w.plane} float64 (8,)"}
        w.sync()
        assert w.array.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_pickles_say_what_the_file_does_not(nodes: dsmfs.Cluster) -> None:
    with open(nodes[0] / "raw", "wb") as f:
        f.write(bytes(1000))
    how: list[dict[str, Any]] = [
        {"dtype": "f8"},
        {"dtype": "f4", "shape": (3, 5), "offset": 8, "order": "F"},
        {"dtype": "bfloat16", "shape": 7, "mode": "r"},
    ]
    for options in how:
        with nodes[0].open("raw", **options) as w, pickle.loads(pickle.dumps(w)) as same:
            for what in ("mode", "shape", "dtype", "plane", "path"):
                assert getattr(same, what) == getattr(w, what)
            assert same.array.strides == w.array.strides and same._layout == w._layout
    described = {"a": (3, "f4"), "b": ((2, 2), "i8")}
    with nodes[0].create("m.safetensors", tensors=described) as m, pickle.loads(pickle.dumps(m)) as same:
        assert list(same.tensors) == list(m.tensors)
    with pytest.raises(dsmfs.ClosedError):
        pickle.dumps(m)
    with nodes[0].create("w.npy", 3, "f4") as w:
        text = pickle.dumps(w)
        os.unlink(nodes[0] / "w.npy")
        with pytest.raises(FileNotFoundError):
            pickle.loads(text)
