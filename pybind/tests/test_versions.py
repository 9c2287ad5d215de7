"""Versioned areas on real mounts, with programs on other nodes."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dsmfs
import numpy as np
import pytest
from conftest import LIMIT, Talk
from dsmfs import _versions

WRITER = """
import sys, dsmfs
with dsmfs.open(sys.argv[1]) as w:
    for n in range(2, int(sys.argv[2])):
        w.array[:] = n
        w.publish()
"""


def name(node: dsmfs.Filesystem) -> str:
    """Return what the node is called in the cluster."""
    return os.path.basename(node.path)


def made(node: dsmfs.Filesystem) -> dsmfs.Area:
    """Make a versioned area with a first version, all ones."""
    w = node.create("w.npy", 100_000, "i8", consistency="versioned")
    w.array[:] = 1
    w.publish()
    return w


def test_snapshots_are_whole_and_do_not_move(nodes: dsmfs.Cluster, talk: Callable[..., Talk]) -> None:
    made(nodes[0]).close()
    with dsmfs.open(nodes[1] / "w.npy", "r") as w:
        first = w.snapshot()
        old, seen, last = first.array, 0, 300
        writer = talk(sys.executable, "-c", WRITER, str(nodes[0] / "w.npy"), str(last))
        while seen < last - 1:
            with w.snapshot() as a:
                n = int(a[0])
                assert n >= seen and (a == n).all() and not a.flags.writeable
                seen = n
            assert seen > 1 or writer.process.poll() is None
        writer.ends_well()
        w.acquire()
        with w.snapshot() as a:
            assert (a == last - 1).all()
        assert (old == 1).all()
        first.close()
        with pytest.raises(dsmfs.ClosedError):
            _ = first.array
        assert (old == 1).all()


def test_versions_tell_who_made_them_and_when(nodes: dsmfs.Cluster) -> None:
    began = time.time()
    with made(nodes[0]) as w:
        assert w.consistency == "versioned" and w.owner == name(nodes[0]) and w.settings["retain"] == "2"
        one = w.version
        w.array[:] = 2
        two = w.publish()
        with dsmfs.open(nodes[1] / "w.npy", "r") as r:
            assert r.wait(two, LIMIT) >= two
            newest = r.versions()[-1]
            assert newest == w.versions()[-1]
            assert newest.number == two and newest.writer == name(nodes[0]) and newest.size == w.nbytes + 128
            assert began - 1 < newest.stamp <= time.time() + 1 and 0 <= newest.age < time.time() - began + 1
        assert [v.number for v in w.versions()] == [one, two]
        w.configure(retain=3)
        for n in range(3, 6):
            w.array[:] = n
            w.publish()
        assert len(w.versions()) == 3
        for v, n in zip(w.versions(), range(3, 6), strict=True):
            with w.snapshot(v.number) as a:
                assert (a == n).all()
        with pytest.raises(
            dsmfs.VersionDroppedError, match=f"the oldest that is kept is {w.versions()[0].number}"
        ) as e:
            w.snapshot(one)
        assert e.value.errno == errno.ESTALE
        with pytest.raises(dsmfs.VersionDroppedError):
            w.snapshot(w.version + 1000)


def test_one_node_writes_and_another_takes_over(nodes: dsmfs.Cluster) -> None:
    w = made(nodes[0])
    with pytest.raises(dsmfs.AccessError):
        dsmfs.open(nodes[1] / "w.npy")
    with pytest.raises(PermissionError), open(nodes[1] / "w.npy", "r+b"):
        pass
    with dsmfs.open(nodes[1] / "w.npy", "r") as r:
        with pytest.raises(dsmfs.AccessError):
            r.publish()
        with pytest.raises(dsmfs.OperationError, match=f"programs of node {name(nodes[0])} have it open") as e:
            r.take()
        assert e.value.errno == errno.EBUSY and r.owner == name(nodes[0])
        w.close()
        r.take()
        assert r.owner == name(nodes[1]) and r.mode == "r+"
        r.array[:] = 7
        v = r.publish()
        r.take()  # it has it
        with dsmfs.open(nodes[0] / "w.npy", "r") as old:
            old.wait(v, LIMIT)
            with old.snapshot() as a:
                assert (a == 7).all()
            assert old.versions()[-1].writer == name(nodes[1])
            with pytest.raises(dsmfs.AccessError):
                dsmfs.open(nodes[0] / "w.npy")


def test_what_versions_are_asked_of(nodes: dsmfs.Cluster) -> None:
    with nodes[0].create("r.npy", 3, "f4") as r:
        assert r.owner is None and r.versions() == []
        with pytest.raises(dsmfs.OperationError, match="only an area with consistency='versioned' has versions"):
            r.snapshot()
        with pytest.raises(dsmfs.OperationError, match="only an area with consistency='versioned' has an owner"):
            r.take()
    with pytest.raises(dsmfs.OperationError, match="merge sum is for areas of mode relaxed") as e:
        nodes[0].create("s.npy", 3, "f4", consistency="versioned", merge="sum")
    assert e.value.errno == errno.EINVAL


def test_snapshots_of_tensors_and_of_other_files(nodes: dsmfs.Cluster) -> None:
    tensors = {"a": (3, "f4"), "b": ((2, 2), "i8")}
    with nodes[0].create("m.safetensors", tensors=tensors, consistency="versioned") as m:
        m.tensors["b"] = 4
        m.publish()
        s = m.snapshot()
        m.tensors["b"] = 5
        m.publish()
        assert s.tensors["b"].tolist() == [[4, 4], [4, 4]] and s.tensors["a"].shape == (3,)
        assert str(s.version.number) in repr(s)
        s.close()
    with nodes[0].create("w.npy", 4, "i4", consistency="versioned") as w:
        w.array[:] = 1
        w.publish()
        s = w.snapshot()
        w.resize(6)
        w.array[:] = 2
        w.publish()
        with s as a:
            assert a.tolist() == [1] * 4
        with w.snapshot() as a:
            assert a.tolist() == [2] * 6
        assert np.load(nodes[0] / "w.npy").tolist() == [2] * 6


def test_a_version_too_small_for_the_shape_is_refused(nodes: dsmfs.Cluster) -> None:
    path = nodes[0] / "raw"
    Path(path).touch()
    os.setxattr(path, "user.dsm.mode", b"versioned")
    os.truncate(path, 16)
    with dsmfs.open(path, dtype="i4", shape=4) as w:
        w.array[:] = 1
        small = w.publish()
    os.truncate(path, 32)
    with dsmfs.open(path, dtype="i4", shape=(2, 4)) as w:
        with pytest.raises(dsmfs.FormatError, match=r"has 16 bytes: too few for \(2, 4\).*or without one"):
            w.snapshot(small)
        w.array[:] = 2
        w.publish()
        with w.snapshot() as a:
            assert a.tolist() == [[2] * 4] * 2
    with dsmfs.open(path, dtype="i4") as w, w.snapshot(small) as a:
        assert a.tolist() == [1] * 4


def test_another_file_of_the_name_is_left_alone(nodes: dsmfs.Cluster) -> None:
    for n, value in (("a", 3), ("b", 5)):
        with nodes[0].create(n, 10, "i8", consistency="versioned") as w:
            w.array[:] = value
            w.publish()
    with dsmfs.open(nodes[1] / "a", "r") as r:
        r.acquire()
        assert (r.array == 3).all()

        def refused(why: str) -> None:
            for ask in (r.versions, r.snapshot, r.take, lambda: r.owner):
                with pytest.raises(dsmfs.OperationError, match=why) as e:
                    ask()
                assert e.value.errno == errno.ESTALE and not isinstance(e.value, dsmfs.VersionDroppedError)

        os.replace(nodes[1] / "b", nodes[1] / "a")
        refused("the path leads to another file now")
        assert r.mode == "r" and os.getxattr(nodes[1] / "a", "user.dsm.owner").decode() == name(nodes[0])
        os.unlink(nodes[1] / "a")
        refused("the path leads to no file now")


def test_take_goes_on_with_the_file_it_took(nodes: dsmfs.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for n, value in (("a", 3), ("b", 5)):
        with nodes[1].create(n, 10, "i8", consistency="versioned") as w:
            w.array[:] = value
            w.publish()
    take = _versions.take

    def renamed(*args: Any) -> None:
        take(*args)
        os.replace(nodes[1] / "b", nodes[1] / "a")

    with dsmfs.open(nodes[1] / "a", "r") as r:
        monkeypatch.setattr(_versions, "take", renamed)
        if r.plane == "memory":  # it attaches by number
            r.take()
            assert r.mode == "r+"
        else:
            with pytest.raises(dsmfs.OperationError, match="the path leads to another") as e:
                r.take()
            assert e.value.errno == errno.ESTALE and r.mode == "r"
        assert (r.array == 3).all()


def test_a_silent_owner_is_named(binary: str, tmp_path: Path) -> None:
    nodes: list[dsmfs.Filesystem] = []
    try:
        for n in range(3):
            join = [str(nodes[0].config["addr"])] if nodes else []
            options = {"state": str(tmp_path / f"state{n}"), "fault-timeout": "1s" if n == 0 else f"{LIMIT}s"}
            nodes.append(
                dsmfs.mount(tmp_path / f"n{n}", join=join, listen="127.0.0.1:0", memory="64M", options=options)
            )
        with nodes[2].create("w", 10, "i8", consistency="versioned") as w:
            w.publish()
        with dsmfs.open(nodes[0] / "w", "r") as r:
            silent = int(nodes[2].config["pid"])
            why = f"the owner, node {r.owner}, does not answer; the file may still be moved later"
            os.kill(silent, signal.SIGSTOP)
            try:
                with pytest.raises(dsmfs.OperationError) as e:
                    r.take()
            finally:
                os.kill(silent, signal.SIGCONT)
        assert isinstance(e.value, dsmfs.TimedOutError) and e.value.errno == errno.ETIMEDOUT
        assert why in str(e.value)
    finally:
        for node in reversed(nodes):
            node.unmount()


def test_a_snapshot_of_the_newest_gives_up(nodes: dsmfs.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = 0

    def gone(*_: object) -> None:
        nonlocal tries
        tries += 1
        assert tries < 1000, "it tries for ever"
        raise dsmfs.VersionDroppedError(errno.ESTALE, f"try {tries}")

    with made(nodes[0]) as w:
        monkeypatch.setattr(_versions, "Snapshot", gone)
        with pytest.raises(dsmfs.VersionDroppedError, match="try 10"):
            w.snapshot()
