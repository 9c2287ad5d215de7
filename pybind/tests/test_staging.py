"""How elements are handed over to the daemon: in the packet, by a copy that it reads or maps, or from a buffer of the group."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import dsmfs
import numpy as np
import numpy.typing as npt
import pytest
from dsmfs import _staging

attached = pytest.mark.parametrize("nodes", ["memory"], indirect=True)
"""The page-cache plane has no accumulate."""


def part(rank: int, number: int, call: int, shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """What a member hands over by one call of a round; sparse in the second call."""
    values = np.arange(1, np.prod(shape) + 1, dtype="i8").reshape(shape) * (7 * rank + 3 * number + call + 1)
    if call == 1:
        values[values % 5 != 0] = 0
    return values


def everywhere(nodes: dsmfs.Cluster, do: Callable[[int], None]) -> None:
    """Have a thread for each node do something. If one fails, that may be why others do."""
    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(do, i) for i in range(3)]
    failed = [e for e in (r.exception() for r in running) if e is not None]
    if failed:
        raise AssertionError(failed) from failed[0]


@attached
@pytest.mark.parametrize("placement", ["one", "spread"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(1,), (512,), (513,), (100, 130), (130, 300), (3, 2, 100_000)])
def test_sums_are_exact(nodes: dsmfs.Cluster, shape: tuple[int, ...], order: str, placement: str) -> None:
    nodes[0].create("w.npy", shape, "i8", order=order, merge="sum", interval=0, placement=placement).close()
    rounds, calls = 4, 3

    def member(i: int) -> None:
        total = np.zeros(shape, "i8")
        with dsmfs.group(nodes[i] / "job", 3) as g, nodes[i].open("w.npy", "r+" if i else "r") as w:
            for number in range(rounds):
                for call in range(calls):
                    values = part(g.rank, number, call, shape)
                    w.accumulate(values, g)
                    values[...] = -1  # what was handed over is a copy
                assert g.round(w).missing == ()
                total += sum(part(rank, number, call, shape) for rank in range(3) for call in range(calls))
                assert np.array_equal(w.array, total), (i, number)

    everywhere(nodes, member)


@attached
def test_a_reader_waits_for_who_keeps_sums_out(nodes: dsmfs.Cluster) -> None:
    """A program that has the file open for writing in the mount, and is no member, keeps updates out until it syncs, or closes."""
    nodes[0].create("w.npy", 1, "i8", merge="sum", interval=0).close()
    keeper = os.open(nodes[0] / "w.npy", os.O_RDWR)
    others = threading.Barrier(3, timeout=60)

    def bring_after(bring: Callable[[int], None]) -> None:
        others.wait()
        bring(keeper)

    def member(i: int) -> None:
        with dsmfs.group(nodes[i] / "job", 3) as g, nodes[i].open("w.npy", "r+" if i else "r") as w:
            for number, bring in enumerate((os.fsync, os.close), 1):
                w.accumulate(np.array([1]), g)
                if i > 0:
                    w.round(g)
                    others.wait()
                else:
                    with pytest.raises(dsmfs.TimedOutError):
                        g.round(w, timeout=0.01)
                    with ThreadPoolExecutor(1) as pool:
                        keep = pool.submit(bring_after, bring)
                        g.round(w)
                    keep.result()
                assert w.array.tolist() == [3 * number]

    everywhere(nodes, member)


@attached
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(3,), (100, 130), (300, 1000)])
def test_buffers_are_not_copied(
    nodes: dsmfs.Cluster, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], order: str
) -> None:
    def take(self: _staging.Stagings, size: int) -> _staging.Staging:
        raise AssertionError("it is copied")

    monkeypatch.setattr(_staging.Stagings, "take", take)
    nodes[0].create("w.npy", shape, "i8", order=order, merge="sum", interval=0).close()

    def member(i: int) -> None:
        total = np.zeros(shape, "i8")
        with dsmfs.group(nodes[i] / "job", 3) as g, nodes[i].open("w.npy", "r") as w:
            buffer = g.buffer(w.array)
            assert buffer.shape == shape and buffer.dtype == "i8" and not buffer.any()
            assert buffer.flags.c_contiguous == w.array.flags.c_contiguous
            for number in range(4):
                buffer[...] = part(g.rank, number, 0, shape)
                w.accumulate(buffer, g)
                assert g.round(w).missing == ()
                total += sum(part(rank, number, 0, shape) for rank in range(3))
                assert np.array_equal(w.array, total), (i, number)
        assert buffer.any(), "it outlives the membership"

    everywhere(nodes, member)


@attached
def test_a_part_of_a_buffer_is_copied(nodes: dsmfs.Cluster) -> None:
    with (
        dsmfs.group(nodes[0] / "job", 1) as g,
        nodes[0].create("w.npy", (400, 100), "f4", merge="sum", interval=0) as w,
    ):
        buffer = g.buffer(np.empty((800, 100), "f4"))
        buffer[...] = np.arange(800, dtype="f4")[:, None]
        w.accumulate(buffer[::2], g)  # every second row, from the same address on
        g.round(w)
        assert np.array_equal(w.array[:, 7], np.arange(0, 800, 2))
        w.accumulate(buffer[:400], g)
        g.round(w)
        assert np.array_equal(w.array[:, 7], np.arange(0, 800, 2) + np.arange(400))
        with pytest.raises(TypeError):
            w.accumulate(g.buffer(np.empty((400, 100), "f8")), g)
    with pytest.raises(dsmfs.ClosedError):
        g.buffer(w.array)


@attached
def test_gradients_of_torch_go_into_a_buffer(nodes: dsmfs.Cluster) -> None:
    torch = pytest.importorskip("torch")
    with (
        dsmfs.group(nodes[0] / "job", 1) as g,
        nodes[0].create("w.npy", (300, 300), "f4", merge="mean", interval=0) as w,
    ):
        layer = torch.nn.Linear(300, 300, bias=False)
        buffer = g.buffer(w.array)
        layer.weight.grad = torch.from_numpy(buffer)
        layer(torch.ones(2, 300)).sum().backward()
        assert (buffer == 2).all()
        w.accumulate(layer.weight.grad, g)
        g.round(w)
        assert (w.array == 2).all()


@attached
def test_memory_is_used_again_when_the_round_is_over(nodes: dsmfs.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    class Counted(_staging.Staging):
        def __init__(self, size: int) -> None:
            made.append(size)
            super().__init__(size)

    monkeypatch.setattr(_staging, "Staging", Counted)
    with (
        dsmfs.group(nodes[0] / "job", 1) as g,
        nodes[0].create("w.npy", 100_000, "f4", merge="sum", interval=0) as w,
        nodes[0].create("small.npy", 2000, "f4", merge="sum", interval=0) as small,
    ):
        for _ in range(3):
            w.accumulate(np.ones(100_000, "f4"), g)
            w.accumulate(np.ones(100_000, "f4"), g)
            small.accumulate(np.ones(2000, "f4"), g)
            small.accumulate(np.ones(2000, "f4"), g)
            g.round(w, small)
        assert made == [400_000, 400_000, 8000]
        w.accumulate(np.ones(100_000, "f4"), g)
        with pytest.raises(dsmfs.OperationError, match="twice"):
            g.round(w, w)
        w.accumulate(np.ones(100_000, "f4"), g)
        g.round(w)
        assert (w.array == 8).all(), "what was handed over before the error counts, and is as it was"


def test_stagings() -> None:
    large = _staging.MAPPED_FROM
    s = _staging.Stagings()
    first = s.take(large)
    s.give(first)
    second = s.take(large)
    assert second is not first, "the daemon may have mapped it"
    s.give(second)
    s.over()
    assert {id(s.take(large)), id(s.take(large))} == {id(first), id(second)}
    assert s.take(large) not in (first, second)
    s.give(first)
    s.drop()
    s.over()
    assert s.take(large) is not first, "nobody knows whether it is still used"
    small = s.take(10)
    s.give(small)
    assert s.take(5) is small
