"""Numbers that are infinite or none at all: counted, or not published."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import dsmfs
import numpy as np
import pytest


@pytest.mark.parametrize("merge", ["last", "sum"])
def test_only_finite_numbers_are_published(nodes: dsmfs.Cluster, merge: str) -> None:
    with (
        nodes[0].create("w.npy", 3000, "f4", merge=merge, interval=0, on_nonfinite="refuse") as w,
        nodes[1].open("w.npy", "r+") as other,
    ):
        w[10], w[11], w[2500] = 1, np.nan, 2
        for call in (w.publish, w.sync):
            with pytest.raises(dsmfs.NotFiniteError) as e:
                call()
            assert e.value.errno == errno.ERANGE
        other.sync()
        assert [other[i] for i in (10, 11, 2500)] == [1, 0, 2]
        assert np.isnan(w[11])
        w[11] = 5
        w.sync()
        other.sync()
        assert other[11] == 5
        assert int(w.stats["nonfinite_refused"]) == 1


def test_numbers_that_are_none_are_counted(nodes: dsmfs.Cluster) -> None:
    with nodes[1].create("w.npy", 3000, "f8", interval=0) as w:
        w[:3] = np.inf, -np.inf, np.nan
        w.publish()
        assert int(w.stats["nonfinite_published"]) == 3
        w[:3] = 0
        w.configure(on_nonfinite="refuse")
        assert w.settings["on_nonfinite"] == "refuse"
        w.publish()
        w[5] = np.inf
        with pytest.raises(dsmfs.NotFiniteError, match="infinite or not a number"):
            w.publish()
        w[5] = 1
    with pytest.raises(dsmfs.OperationError, match="on_nonfinite"):
        nodes[1].create("v.npy", 10, "f8", consistency="versioned", on_nonfinite="refuse")


@pytest.mark.parametrize("given", [False, True])
def test_a_round_without_them(nodes: dsmfs.Cluster, given: bool) -> None:
    with nodes[0].create("w.npy", 1000, "f4", merge="sum", interval=0, on_nonfinite="refuse") as w:
        if given and w.plane == "page-cache":
            pytest.skip("accumulate needs the memory plane")

    looked = threading.Barrier(3)

    def worker(i: int) -> tuple[float, float, bool]:
        refused = False
        with nodes[i].open("w.npy", "r+") as w, dsmfs.group(os.path.join(nodes[i].path, "g"), size=3) as g:
            step = np.ones(1000, "f4")
            if i == 1:
                step[7] = np.nan
            if given:
                w.accumulate(step, g)
            else:
                w.array += step
            try:
                g.round(w)
            except dsmfs.NotFiniteError:
                refused = True
            got = float(w[6]), float(w[7]), refused
            looked.wait(60)  # what one stores now comes to the others at once
            w[7] = 0
            # The round is over for all: the next ones wait for all, and count.
            assert g.number == 1
            assert g.barrier(timeout=60).number == 2
            if i == 1:
                step[7] = 1
            if given:
                w.accumulate(step, g)
            else:
                w.array += step
            assert g.round(w, timeout=60).number == 3
            assert float(w[6]) == 6
            return got

    with ThreadPoolExecutor(3) as pool:
        got = list(pool.map(worker, range(3)))
    assert [g[2] for g in got] == [False, True, False]
    assert all(g[0] == 3 for g in got)
    assert got[0][1] == got[2][1] == 2
