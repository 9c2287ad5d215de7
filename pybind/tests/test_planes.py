"""The memory plane of the real daemon, alone and beside the page-cache plane."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import dsmfs
import numpy as np
import pytest
from conftest import Program

pytestmark = pytest.mark.parametrize("nodes", ["memory"], indirect=True)


def test_both_planes_on_one_area_and_node(nodes: dsmfs.Cluster) -> None:
    nodes[0].create("w.npy", 3000, "i8", merge="sum", interval=0).close()
    with (
        nodes[0].open("w.npy") as attached,
        nodes[0].open("w.npy", plane="page-cache") as cached,
        nodes[1].open("w.npy", plane="page-cache") as away,
    ):
        assert (attached.plane, cached.plane) == ("memory", "page-cache")
        attached.array[:1000] += 1
        cached.array[1000:2000] += 2
        away.array[:] += 4
        away.publish()
        attached.sync()
        cached.sync()
        attached.sync()
        want = np.repeat([5, 6, 4], 1000)
        assert np.array_equal(attached.array, want)
        assert np.array_equal(cached.array, want)
        away.sync()
        assert np.array_equal(away.array, want)


def test_forked_workers_are_tracked_like_their_parent(nodes: dsmfs.Cluster, program: Program) -> None:
    nodes[0].create("w.npy", (5, 4096), "i8", merge="sum", interval=0).close()
    code = """
import multiprocessing, sys, dsmfs
w = dsmfs.open(sys.argv[1])
assert w.plane == "memory"
def work(i):
    for _ in range(10):
        w.array[i] += i + 1
        w.publish()
workers = [multiprocessing.get_context("fork").Process(target=work, args=(i,)) for i in range(4)]
for p in workers: p.start()
work(4)
for p in workers:
    p.join()
    assert p.exitcode == 0
w.close()
"""
    program(code, nodes[0] / "w.npy")
    with nodes[1].open("w.npy", "r") as r:
        assert r.array.sum(axis=1).tolist() == [10 * 4096 * (i + 1) for i in range(5)]


def test_a_program_that_is_killed_loses_no_store(nodes: dsmfs.Cluster) -> None:
    with nodes[0].create("w.npy", 100_000, "i8", merge="sum", interval=0) as w, nodes[2].open("w.npy", "r") as r:
        code = "import os, sys, dsmfs; w = dsmfs.open(sys.argv[1]); w.array += 7; os.kill(os.getpid(), 9)"
        done = subprocess.run([sys.executable, "-c", code, w.path], timeout=60, check=False)
        assert done.returncode == -signal.SIGKILL
        end = time.monotonic() + 60
        while not (r.array == 7).all():
            assert time.monotonic() < end, r.array
            w.publish()
            r.acquire()


def test_statistics_are_numbers_with_names(nodes: dsmfs.Cluster) -> None:
    with nodes[0].create("w.npy", 1000, "f4") as w:
        w.array += 1
        w.publish()
        assert w.stats["plane"] == "memory" and len(w.stats) > 3
        assert w._plane.tracking in ("wp-async", "wp-faults", "comparing")  # type: ignore[union-attr]


def test_an_array_that_outlives_its_area_is_published(nodes: dsmfs.Cluster) -> None:
    array = nodes[0].create("w.npy", 1000, "f4", interval=0.01).array
    array[5] = 9
    with nodes[1].open("w.npy", "r") as r, nodes[0].open("w.npy") as w:
        w.publish()
        r.acquire()
        assert r.array[5] == 9
    array[6] = 10
    del array
    with nodes[0].open("w.npy") as w, nodes[1].open("w.npy", "r") as r:
        w.publish()
        r.acquire()
        assert r.array[6] == 10


def test_an_old_array_beyond_the_end(nodes: dsmfs.Cluster) -> None:
    with nodes[0].create("w.npy", 30000, "i8") as w, nodes[0].open("w.npy", "r") as reader:
        w.array[:] = 1
        w.publish()
        old = w.array
        w.resize(50)
        assert old[:50].sum() == 50 and not old[1000:].any() and not reader.array[1000:].any(), (
            "nothing is past the end"
        )
        old[2000:] = 7
        w.resize(30000)
        assert w.array.sum() == old.sum() == 50, "what was stored past the end is nowhere"
        old[-1] = 3
        w.publish()
    with nodes[1].open("w.npy", "r") as there:
        assert there.array.sum() == 53
    with nodes[1].open("w.npy") as there:
        there.resize(0)
    with nodes[0].open("w.npy") as w:
        assert w.array.shape == (0,)


def test_a_forked_worker_keeps_nothing_of_the_memory_of_its_parent(nodes: dsmfs.Cluster, program: Program) -> None:
    nodes[0].create("w.npy", 5000, "f4", merge="sum", interval=0).close()
    code = """
import os, sys, dsmfs
def kept():
    with open("/proc/self/maps") as maps:
        found = {int(line.split()[4]) for line in maps}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.add(os.stat(f"/proc/self/fd/{fd}").st_ino)
        except FileNotFoundError:
            pass  # of listdir
    return found
w = dsmfs.open(sys.argv[1])
r = dsmfs.open(sys.argv[1], "r")
mine = {os.fstat(a._plane._memory).st_ino for a in (w, r)}
assert mine <= kept()
pid = os.fork()
if pid == 0:
    w.array[0] = 1
    w.publish()
    os._exit(bool(mine & kept()))
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
w.array[1] = 2
w.sync()
assert mine <= kept() and w.array[:2].tolist() == r.array[:2].tolist() == [1, 2]
"""
    program(code, nodes[0] / "w.npy")
