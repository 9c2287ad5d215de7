"""Every merge rule with every type of elements, between two nodes."""

from __future__ import annotations

from typing import Any

import dsmfs
import numpy as np
import pytest
from conftest import Program

DTYPES = ("f8", "f4", "f2", "bfloat16", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")
#: What becomes of an element that was 10, when one node stores 13 and then another, which has not seen that, stores 6.
BOTH = {"last": 6, "sum": 9, "mean": 9, "min": 6, "max": 13}
#: What becomes of one that was 10, when only one node stores 11, or 9.
ONE = {"last": (11, 9), "sum": (11, 9), "mean": (11, 9), "min": (10, 9), "max": (11, 10)}


def bring_in(*areas: dsmfs.Area) -> None:
    """Publish on all nodes, and bring everything in."""
    for _ in range(2):
        for area in areas:
            area.sync()


def check(merge: str, *areas: np.ndarray[Any, Any]) -> None:
    """Check elements that were stored to by `store`."""
    for array in areas:
        assert array[0] == BOTH[merge], (merge, array.dtype, array[:3])
        assert (array[1], array[-1]) == ONE[merge], (merge, array.dtype)
        assert (array[2:-1] == 10).all()


def store(merge: str, here: dsmfs.Area, there: dsmfs.Area, name: str | None = None) -> None:
    """Store on two nodes to elements that are 10."""
    x, y = (area.array if name is None else area.tensors[name] for area in (here, there))
    one = x.dtype.type(1)
    x[0] += 3 * one
    x[1] += one
    y[0] -= 4 * one
    x[-1] -= one


@pytest.mark.parametrize("merge", BOTH)
def test_two_nodes_change_an_element(nodes: dsmfs.Cluster, merge: str) -> None:
    for dtype in DTYPES:
        if dtype == "bfloat16":
            pytest.importorskip("ml_dtypes")
        with nodes[0].create(f"{dtype}.npy", 5000, dtype, interval=0) as here, nodes[1].open(f"{dtype}.npy") as there:
            here.array[:] = 10
            bring_in(here, there)
            here.configure(merge=merge)
            store(merge, here, there)
            here.publish()
            there.publish()
            bring_in(here, there)
            check(merge, here.array, there.array)


@pytest.mark.parametrize("merge", ["min", "max"])
def test_nan_stays(nodes: dsmfs.Cluster, merge: str) -> None:
    with nodes[0].create("w.npy", 10, "f4", merge=merge) as here, nodes[1].open("w.npy") as there:
        here.array[3] = np.nan
        bring_in(here, there)
        assert np.isnan(there.array[3])
        there.array[3] = -7 if merge == "min" else 7
        there.array[4] = -np.inf if merge == "min" else np.inf
        bring_in(there, here)
        for array in (here.array, there.array):
            assert np.isnan(array[3])
            assert np.isinf(array[4])


@pytest.mark.parametrize("merge", BOTH)
def test_tensors_merge_by_their_own_types(nodes: dsmfs.Cluster, program: Program, merge: str) -> None:
    """A file that the safetensors library saves: what it says of the types is what nodes go by."""
    pytest.importorskip("safetensors")
    names = {"w": "f4", "half": "f2", "count": "i8", "byte": "u1", "wide": "f8"}
    save = """
import sys, numpy as np
from safetensors.numpy import save_file
tensors = {name: np.full(2001, 10, t) for name, t in (x.split("=") for x in sys.argv[2:])}
save_file({**tensors, "seen": np.zeros(9, "?")}, sys.argv[1])
"""
    program(save, nodes[0] / "m.safetensors", *(f"{n}={t}" for n, t in names.items()))
    with nodes[0].open("m.safetensors") as here, nodes[1].open("m.safetensors") as there:
        bring_in(here, there)
        # On both: or one of them might publish at the interval what it has stored, before the other one does.
        for area in (here, there):
            area.configure(merge=merge, interval=0)
        for name in names:
            store(merge, here, there, name)
        here.tensors["seen"][3] = True
        here.publish()
        there.publish()
        bring_in(here, there)
        for name in names:
            check(merge, here.tensors[name], there.tensors[name])
        assert there.tensors["seen"].tolist() == [i == 3 for i in range(9)]
    load = """
import sys
from safetensors.numpy import load_file
print(*(int(load_file(sys.argv[1])[name][0]) for name in sys.argv[2:]))
"""
    shown = program(load, nodes[2] / "m.safetensors", *names).stdout.split()
    assert shown == [str(BOTH[merge])] * len(names)


def test_tensors_that_are_made_with_a_rule(nodes: dsmfs.Cluster) -> None:
    described = {"w": (9, "f4"), "count": (9, "i8"), "seen": (9, "?")}
    with (
        nodes[0].create("m.safetensors", tensors=described, merge="sum") as here,
        nodes[1].open("m.safetensors") as there,
    ):
        for area, by in ((here, 1), (there, 2)):
            area.tensors["w"] += np.float32(by) / 2
            area.tensors["count"] += by
        there.tensors["seen"][:] = True
        bring_in(here, there)
        for area in (here, there):
            assert (area.tensors["w"] == 1.5).all()
            assert (area.tensors["count"] == 3).all()
            assert area.tensors["seen"].all()


def test_tensors_that_cannot_be_added(nodes: dsmfs.Cluster) -> None:
    with nodes[0].create("m.safetensors", tensors={"w": (9, "f8"), "c": (9, "c8")}) as w:
        w.tensors["c"][:] = 1j
        w.publish()
        with pytest.raises(dsmfs.OperationError, match="merge=sum"):
            w.configure(merge="sum")
        w.tensors["w"][:] = 1


@pytest.mark.parametrize("nodes", ["memory"], indirect=True)
def test_who_has_stored_and_reads_on_sees_what_others_add(nodes: dsmfs.Cluster) -> None:
    """Programs that add have memory of their own. When a process has closed what it stored with, updates come to what it still reads."""
    w = nodes[0].create("w.npy", 8, "i8", merge="sum", interval=0)
    with nodes[0].open("w.npy", "r") as reader, nodes[1].open("w.npy", "r+") as other:
        other.array[:] = 5
        reader.wait(other.sync())
        assert not reader.array.any(), "the process is not in a sync call, and might be about to store"
        w.array[0] = 1
        w.close()
        other.array[1] += 2
        reader.wait(other.sync())
        assert reader.array.tolist() == [6, 7, 5, 5, 5, 5, 5, 5]
        with nodes[0].open("w.npy", "r+") as again:  # the same memory
            other.array[:] -= 5
            reader.wait(other.sync())
            again.array[2] += 1
            again.sync()
            assert reader.array.tolist() == again.array.tolist() == [1, 2, 1, 0, 0, 0, 0, 0]
        other.array[7] = 7
        reader.wait(other.sync())
        assert reader.array.tolist() == [1, 2, 1, 0, 0, 0, 0, 7]
