"""Areas and PyTorch."""

from __future__ import annotations

import io
import multiprocessing
import os
import warnings
from multiprocessing.reduction import ForkingPickler
from typing import Any

import dsmfs
import numpy as np
import pytest

torch = pytest.importorskip("torch")


def test_tensors_share_the_memory(nodes: dsmfs.Cluster) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.float16):
        with nodes[0].create("t.npy", (4, 3), dtype, merge="sum") as a, nodes[1].open("t.npy") as b:
            x, y = a.tensor(), b.tensor()
            assert x.dtype == dtype and x.shape == (4, 3)
            x += 1
            y += 2
            a.publish()
            b.sync()
            assert (y == 3).all()
            assert x.data_ptr() == a.array.ctypes.data
            with nodes[2].open("t.npy", "r") as c:
                assert (c.tensor() == 3).all()
            del x, y
        os.unlink(nodes[0] / "t.npy")


def test_torch_takes_an_area_without_a_copy(nodes: dsmfs.Cluster) -> None:
    with nodes[0].create("w.npy", (3, 4), "f4") as w, nodes[0].create("b.npy", 5, "bfloat16") as b:
        for take in (torch.as_tensor, torch.asarray, torch.from_dlpack):
            assert take(w).data_ptr() == w.array.ctypes.data and take(w).shape == (3, 4)
            assert take(b).data_ptr() == b.array.ctypes.data and take(b).dtype == torch.bfloat16
        assert torch.tensor(w).data_ptr() != w.array.ctypes.data
        assert w.owns(torch.as_tensor(w)) and not w.owns(torch.zeros(3)) and not b.owns(torch.as_tensor(w))


def move_by_share_memory(tensor: Any) -> None:
    tensor.share_memory_()


def move_a_model(tensor: Any) -> None:
    model = torch.nn.Linear(4, 3)
    model.weight = torch.nn.Parameter(tensor)
    model.share_memory()


def move_by_sending(tensor: Any) -> None:
    ForkingPickler(io.BytesIO()).dump(tensor)


@pytest.mark.parametrize("move", [move_by_share_memory, move_a_model, move_by_sending])
def test_a_tensor_that_moves_away_is_seen(nodes: dsmfs.Cluster, move: Any) -> None:
    with nodes[0].create("w.npy", (3, 4), "f4") as w:
        given, parameter = w.tensor(), torch.nn.Parameter(w.tensor())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            w.publish()
        assert w.owns(given) and w.owns(parameter)
        move(given)
        assert not w.owns(given) and not w.owns(parameter), "which is why it must be seen"
        with pytest.warns(dsmfs.MovedWarning, match="not in the area") as said:
            w.sync()
        assert [s.filename for s in said] == [__file__]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            w.sync()  # once
            again = w.tensor()
        assert w.owns(again)
        again += 1
        assert w[2, 3] == 1
        again.share_memory_()
        with pytest.warns(dsmfs.MovedWarning):
            w.close()


def train(area: dsmfs.Area, index: int) -> bool:
    """Work of a process: a parameter in the shared memory."""
    parameter = torch.nn.Parameter(area.tensor())
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    parameter[index].sum().backward()
    optimizer.step()
    area.publish()
    return area.owns(parameter)


def test_the_way_that_works(nodes: dsmfs.Cluster) -> None:
    """Send the Area to a spawned process, and make the tensor there."""
    with nodes[0].create("w.npy", (3, 4), "f4", merge="sum") as w:
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            assert pool.starmap(train, [(w, i) for i in range(3)]) == [True] * 3
        w.sync()
        assert (w.array == -1).all()


def test_tensors_of_safetensors_files(nodes: dsmfs.Cluster) -> None:
    described = {"w": ((4, 3), torch.float32), "b": (3, torch.bfloat16)}
    with nodes[0].create("m.safetensors", tensors=described) as m, nodes[1].open("m.safetensors") as there:
        m.tensor("w").fill_(2)
        m.tensor("b").fill_(3)
        m.publish()
        there.acquire()
        assert there.tensor("w").sum() == 24 and there.tensor("b").float().sum() == 9
        model = torch.nn.Linear(3, 4)
        model.weight = torch.nn.Parameter(there.tensor("w"))
        assert there.owns(model.weight)
        loaded = pytest.importorskip("safetensors.torch").load_file(nodes[2] / "m.safetensors")
        assert loaded["b"].dtype == torch.bfloat16 and loaded["b"].float().sum() == 9
        with pytest.raises(KeyError):
            m.tensor("nothing")
        assert np.shares_memory(m.tensor("w").numpy(), m.tensors["w"])
