"""Random programs against models."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dsmfs
import numpy as np
import pytest
from conftest import Program
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

few = settings(
    max_examples=25,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

types = st.one_of(
    arrays.boolean_dtypes(),
    arrays.integer_dtypes(),
    arrays.unsigned_integer_dtypes(),
    arrays.floating_dtypes(),
    arrays.complex_number_dtypes(),
    arrays.byte_string_dtypes(),
    arrays.datetime64_dtypes(),
)


@few
@given(st.data(), types, st.sampled_from("CF"))
def test_any_array_is_the_same_on_another_node(
    nodes: dsmfs.Cluster, data: st.DataObject, dtype: np.dtype[Any], order: str
) -> None:
    values = data.draw(arrays.arrays(dtype, arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6)))
    with nodes[0].create("a.npy", values.shape, dtype, order=order) as w:
        assert w.array.ctypes.data % 64 == 0 or values.size == 0
        w.array = values
        w.publish()
        there = np.load(nodes[1] / "a.npy", mmap_mode="r" if values.size else None)
        assert there.dtype == dtype and there.shape == values.shape and there.tobytes() == values.tobytes()
        if values.ndim > 1:
            assert w.array.flags.f_contiguous if order == "F" else w.array.flags.c_contiguous
        with nodes[2].open("a.npy", "r") as r:
            assert r.array.tobytes() == values.tobytes()
        del there
    os.unlink(nodes[0] / "a.npy")


# A step is (node, what, where, by how much).
steps = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["add", "publish", "sync", "acquire"]),
        st.integers(0, 2999),
        st.integers(-9, 9),
    ),
    max_size=40,
)


ways = st.lists(st.sampled_from(["memory", "page-cache"]), min_size=3, max_size=3)


@few
@given(ways, steps)
@example(
    ["memory", "page-cache", "memory"],
    [(0, "add", 0, 1), (1, "add", 0, 1), (0, "publish", 0, 0), (1, "sync", 0, 0), (2, "acquire", 0, 0)],
)
def test_sums_follow_the_model(
    nodes: dsmfs.Cluster, planes: list[str], program: list[tuple[int, str, int, int]]
) -> None:
    """A node's array is always what it acquired of others plus what it added itself; nothing is lost in the end."""
    if os.environ["DSMFS_PLANE"] != "memory":
        planes = ["page-cache"] * 3
    nodes[0].create("s.npy", 3000, "i8", merge="sum", interval=0).close()
    areas = [n.open("s.npy", plane=p) for n, p in zip(nodes, planes, strict=True)]
    home = np.zeros(3000, "i8")
    unpublished = [np.zeros(3000, "i8") for _ in nodes]
    for node, what, where, much in program:
        w = areas[node]
        if what == "add":
            w.array[where] += much
            unpublished[node][where] += much
            continue
        if what != "acquire" or planes[node] == "page-cache":  # there it publishes as well
            home += unpublished[node]
            unpublished[node][:] = 0
        getattr(w, what)()
        if what != "publish":
            assert np.array_equal(w.array, home + unpublished[node]), f"after {what} on node {node}"
    for w in areas:
        w.publish()
    for w in areas:
        w.sync()
        assert np.array_equal(w.array, home + sum(unpublished))
        w.close()
    os.unlink(nodes[0] / "s.npy")


# A step is (node, what, which of the areas that are open there, where, by how much).
opens = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.sampled_from(["read", "store", "close", "add", "sync", "sync"]),
        st.integers(0, 2),
        st.integers(0, 999),
        st.integers(1, 9),
    ),
    max_size=40,
)


@pytest.mark.parametrize("nodes", ["memory"], indirect=True)
@few
@given(opens)
@example(
    [
        (0, "store", 0, 0, 1),
        (0, "read", 0, 0, 1),
        (0, "close", 0, 0, 1),
        (1, "store", 0, 0, 1),
        (1, "add", 0, 0, 5),
        (1, "sync", 0, 0, 1),
        (0, "sync", 0, 0, 1),
    ]
)
def test_a_process_opens_and_closes_in_any_order(
    nodes: dsmfs.Cluster, program: list[tuple[int, str, int, int, int]]
) -> None:
    """What a process has attached for storing, and for reading, comes and goes: after a sync all that it has open on the node has everything."""
    nodes[0].create("s.npy", 1000, "i8", merge="sum", interval=0).close()
    areas: list[list[dsmfs.Area]] = [[], []]
    home = np.zeros(1000, "i8")
    unpublished = [np.zeros(1000, "i8") for _ in areas]
    for node, what, which, where, much in program:
        here = areas[node]
        if what in ("read", "store"):
            if len(here) < 3:
                here.append(nodes[node].open("s.npy", "r" if what == "read" else "r+"))
            continue
        if not here:
            continue
        w = here[which % len(here)]
        stores = w.array.flags.writeable
        if what == "add" and stores:
            w.array[where] += much
            unpublished[node][where] += much
        elif what != "add":
            if stores:
                home += unpublished[node]
                unpublished[node][:] = 0
            w.sync()
            if stores or not any(area.array.flags.writeable for area in here):
                for i, area in enumerate(here):
                    assert np.array_equal(area.array, home), (i, area)
        if what == "close":
            here.remove(w)
            w.close()
    for here in areas:
        for area in here:
            area.close()
    os.unlink(nodes[0] / "s.npy")


WRITER = """
import sys, numpy as np, dsmfs
path, seed, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rng = np.random.default_rng(seed)
total = np.zeros(20000, "i8")
with dsmfs.open(path) as w:
    for _ in range(rounds):
        where = rng.integers(0, len(total), 50)
        what = rng.integers(-1000, 1000, 50)
        np.add.at(w.array, where, what)
        np.add.at(total, where, what)
        (w.publish, w.sync, w.acquire)[rng.integers(3)]()
sys.stdout.write(total.tobytes().hex())
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_programs_that_add_at_random_lose_nothing(nodes: dsmfs.Cluster, program: Program, seed: int) -> None:
    with nodes[0].create("r.npy", 20000, "i8", merge="sum", interval=0.01) as w:
        with ThreadPoolExecutor(3) as pool:
            runs = pool.map(lambda i: program(WRITER, nodes[i] / "r.npy", 10 * seed + i, 30), range(3))
            added = [np.frombuffer(bytes.fromhex(r.stdout), "i8") for r in runs]
        w.sync()
        assert np.array_equal(w.array, sum(added))
