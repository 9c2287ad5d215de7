"""Making areas: what is made, with which rules, and what is left if that fails."""

from __future__ import annotations

import errno
import os
import re
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dsmfs
import numpy as np
import pytest
from conftest import Program
from dsmfs import _mounts, _open, _rules
from dsmfs._wire import Connection, Op


def test_only_one_of_many_makes_an_area(nodes: dsmfs.Cluster) -> None:
    start = threading.Barrier(6)

    def make(i: int) -> bool:
        start.wait()
        try:
            nodes[i % 3].create("w.npy", 10, "f4").close()
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(make, range(6))) == 1
    assert os.listdir(nodes[0].path) == ["w.npy"], "no draft is left"


def test_making_one_takes_two_changes_of_names(nodes: dsmfs.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of names is a round of the catalog: one makes the file with all its rules, one gives it its name."""
    asked: list[str] = []
    call = Connection.call

    def counted(self: Connection, op: Op, *arguments: Any, **more: Any) -> Any:
        asked.append(op.name)
        return call(self, op, *arguments, **more)

    ftruncate = os.ftruncate

    def none(*arguments: Any) -> None:
        if isinstance(arguments[0], int) and "memfd:" in os.readlink(f"/proc/self/fd/{arguments[0]}"):
            return ftruncate(*arguments)  # that asks nobody
        raise AssertionError(arguments)

    monkeypatch.setattr(Connection, "call", counted)
    for name in ("setxattr", "truncate", "ftruncate"):
        monkeypatch.setattr(os, name, none)
    with nodes[1].create("w.npy", (4, 3), "bfloat16", merge="sum", apply="arrival", interval=1) as w:
        assert asked == (["PREPARE", "TRACK", "NAME"] if w.plane == "memory" else ["CREATE"])
        assert os.listdir(nodes[0].path) == ["w.npy"]
        assert [w.settings[k] for k in ("merge", "apply", "interval", "dtype")] == ["sum", "arrival", "1s", "bf16"]
        os.rename(nodes[1] / "w.npy", nodes[1] / "v.npy")
        w[:] = np.ones((), w.dtype)
        w.publish()
        assert np.load(nodes[2] / "v.npy").tobytes() == w.array.tobytes()


def test_a_program_that_dies_while_it_makes_an_area(nodes: dsmfs.Cluster, program: Program) -> None:
    """On the memory plane nothing is left: the file has no name before it is whole."""
    code = """
import os, sys, dsmfs
from dsmfs import _open
dsmfs._wire.Connection.call = lambda self, op, *a, _call=dsmfs._wire.Connection.call, **k: os._exit(0) if op.name == "NAME" else _call(self, op, *a, **k)
_open.rename_new = lambda *a: os._exit(0)
dsmfs.create(sys.argv[1], 1000, "f4", plane="memory")
raise SystemExit("it was made")
"""
    program(code, nodes[1] / "w.npy")
    assert os.listdir(nodes[0].path) == []


def test_a_socket_that_has_moved(nodes: dsmfs.Cluster) -> None:
    """A mount is asked for its socket once more if nobody answers at the one that is known."""
    nodes[0].create("w.npy", 3, "f4", plane="memory").close()
    known = {at: name for at, name in _mounts._sockets.items() if at[0] == nodes[0].path}
    assert known
    ways: list[Callable[[], dsmfs.Area]] = [
        lambda: nodes[0].create("x.npy", 3, "f4", plane="memory"),
        lambda: nodes[0].open("w.npy", plane="memory"),
    ]
    for again in ways:
        _mounts._sockets.update(dict.fromkeys(known, "/nonexistent/socket"))
        again().close()
        assert known.items() <= _mounts._sockets.items()


def test_a_daemon_that_nobody_can_ask(nodes: dsmfs.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then files are made with calls of the system."""
    monkeypatch.setenv("DSMFS_ATTACH", "/nonexistent/socket")
    monkeypatch.setenv("DSMFS_PLANE", "page-cache")
    with nodes[0].create("w.npy", 3, "f4", merge="sum", interval=0.25, permissions=0o640) as w:
        assert w.settings["merge"] == "sum" and w.settings["interval"] == "250ms"
        assert os.stat(w.path).st_mode & 0o777 == 0o640
        w[0] = 4
        w.publish()
    assert np.load(nodes[1] / "w.npy")[0] == 4
    with pytest.raises(dsmfs.OperationError, match="interval=soon: want a time"):
        nodes[0].create("x.npy", 3, "f4", interval="soon")
    with pytest.raises(dsmfs.OperationError, match="memory for it"):
        nodes[0].create("x.npy", 1 << 32, "f4")
    with pytest.raises(OSError, match="larger than a file"):
        nodes[0].create("x.npy", 1 << 60, "u1")
    with pytest.raises(dsmfs.FormatError, match="merged"):
        nodes[0].create("x.npy", 3, "?", merge="sum")
    assert os.listdir(nodes[0].path) == ["w.npy"]


def test_exist_ok(nodes: dsmfs.Cluster) -> None:
    with nodes[0].create("w.npy", (2, 2), "f4") as w:
        w.array[:] = 3
        w.publish()
        with nodes[1].create("w.npy", (2, 2), "f4", exist_ok=True) as again:
            assert (again.array == 3).all()
        for shape, dtype, said in (
            ((2, 3), "f4", r"float32 \(2, 2\), not float32 \(2, 3\)"),
            ((2, 2), "i4", r"not int32 \(2, 2\)"),
        ):
            with pytest.raises(dsmfs.FormatError, match=said):
                nodes[1].create("w.npy", shape, dtype, exist_ok=True)
        with pytest.raises(dsmfs.ExistsError) as e:
            nodes[1].create("w.npy", (2, 2), "f4")
        assert "create: create" not in str(e.value)


def test_exist_ok_with_other_rules(nodes: dsmfs.Cluster) -> None:
    with nodes[0].create("w.npy", 4, "f4", merge="sum", interval=0.25):
        for same in ({}, {"merge": "sum"}, {"interval": "250ms"}, {"interval": 0.25}, {"residency": "full"}):
            nodes[1].create("w.npy", 4, "f4", exist_ok=True, **same).close()
        for other in ({"merge": "last"}, {"interval": 1}, {"apply": "arrival"}, {"residency": "demand"}):
            with pytest.raises(dsmfs.FormatError, match=next(iter(other))):
                nodes[1].create("w.npy", 4, "f4", exist_ok=True, **other)
    nodes[0].create("f.npy", (4, 3), "f4", order="F").close()
    with pytest.raises(dsmfs.FormatError, match=r"float32 \(4, 3\) in order F, not float32 \(4, 3\)"):
        nodes[1].create("f.npy", (4, 3), "f4", exist_ok=True)
    nodes[1].create("f.npy", (4, 3), "f4", order="F", exist_ok=True).close()


@pytest.mark.parametrize(
    ("time", "seconds"), [(0, 0), (0.25, 0.25), (1e-9, 1e-9), (1e-30, 1e-9), ("50ms", 0.05), ("100", 0.1), (-1, None)]
)
def test_durations(time: float | str, seconds: float | None) -> None:
    assert _rules.seconds(_rules.duration(time)) == seconds


def test_rules(nodes: dsmfs.Cluster) -> None:
    with nodes[0].create("w.npy", 3, "f4", consistency="relaxed", merge="sum", apply="arrival", interval=0.25) as w:
        assert w.settings == {
            "consistency": "relaxed",
            "merge": "sum",
            "dtype": "auto",
            "apply": "arrival",
            "interval": "250ms",
            "residency": "full",
            "access": "cached",
            "locks": "meet",
            "placement": "auto",
            "staleness": "none",
            "retain": "2",
            "replicas": "2",
            "on_nonfinite": "count",
        }
        w.configure(merge="last", interval="1s", apply="sync")
        with nodes[1].create("p.npy", 3, "f4", placement="spread") as spread:
            assert spread.settings["placement"] == "spread"
        os.unlink(nodes[0] / "p.npy")
        with nodes[2].open("w.npy") as other:
            assert [other.settings[k] for k in ("merge", "interval", "apply")] == ["last", "1s", "sync"]
        with pytest.raises(OSError, match="merge=magic"):
            w.configure(merge="magic")
    for wrong in (
        {"consistency": "psychic"},
        {"merge": "magic"},
        {"apply": "never"},
        {"interval": -1.0},
        {"residency": "some"},
        {"placement": "nobody"},
        {"staleness": 0.0001},
        {"staleness": "3 versions"},
        {"replicas": 4},
        {"on_nonfinite": "ignore"},
    ):
        with pytest.raises(dsmfs.OperationError, match=next(iter(wrong))):
            nodes[0].create("x.npy", 3, "f4", **wrong)
    assert os.listdir(nodes[0].path) == ["w.npy"]


def test_the_old_name_of_consistency_warns(nodes: dsmfs.Cluster) -> None:
    with pytest.warns(DeprecationWarning, match="consistency"):
        w = nodes[0].create("w.npy", 3, "f4", mode="relaxed")
    with w:
        assert w.mode == "r+" and w.consistency == "relaxed"
        with pytest.warns(DeprecationWarning, match="consistency"):
            assert w.settings["mode"] == "relaxed"
        with pytest.raises(KeyError):
            w.settings["mood"]


@pytest.mark.parametrize(
    "shape", [-1, (3, -1), 2.5, (2.5,), "12", None, (1,) * 65, 1 << 63, (1 << 40, 1 << 40), (0, 1 << 62, 8)]
)
def test_shapes_that_are_none(nodes: dsmfs.Cluster, shape: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        nodes[0].create("w.npy", shape, "f4")
    assert os.listdir(nodes[0].path) == []
    with open(nodes[0] / "raw", "wb") as f:
        f.write(bytes(64))
    if shape is not None:
        with pytest.raises(ValueError):
            nodes[0].open("raw", dtype="f4", shape=shape)
    with pytest.raises(ValueError, match="offset"):
        nodes[0].open("raw", dtype="f4", offset=-4)
    with pytest.raises(dsmfs.FormatError, match="too few"):
        nodes[0].open("raw", dtype="f4", offset=65)


def test_more_than_there_is_memory_for(nodes: dsmfs.Cluster) -> None:
    with pytest.raises(dsmfs.OperationError, match=r"memory|budget") as e:
        nodes[0].create("w.npy", 1 << 32, "f4")
    assert e.value.errno == errno.ENOSPC
    assert os.listdir(nodes[0].path) == []
    with nodes[0].create("w.npy", 10, "f4") as w:
        with pytest.raises(dsmfs.OperationError, match=r"memory|budget"):
            w.resize(1 << 32)
        assert w.shape == (10,)
    with pytest.raises(OSError, match="arge"):
        nodes[0].create("x.npy", 1 << 60, "u1")


def test_what_is_wrong_with_a_rule_is_said_as_the_daemon_does(nodes: dsmfs.Cluster) -> None:
    connection = Connection(Path(nodes[0] / ".dsm/attach").read_text().strip())
    try:
        for rule, known in _rules.VALUES.items():
            name = _rules.attribute(rule).removeprefix("user.dsm.")
            with pytest.raises(OSError, match="want one of") as said:
                connection.call(Op.CREATE, args=(1, 0o600, 1), payload=f"/x\n{name} wrong\n".encode())
            assert re.findall(r"want one of (.*)", str(said.value.strerror)) == [" ".join(known)]
            if rule != "dtype":
                nodes[0].create("w.npy", 3, "f4").close()
                with pytest.raises(OSError, match=f"{rule}=wrong: want {' or '.join(known)}"):
                    _rules.write(nodes[0] / "w.npy", "w.npy", {rule: "wrong"})
                os.unlink(nodes[0] / "w.npy")
    finally:
        connection.close()


def test_safetensors(nodes: dsmfs.Cluster) -> None:
    described = {"w": ((10, 3), "f4"), "none": ((0, 4), "f4"), "one": ((), "f4")}
    with nodes[0].create("m.safetensors", tensors=described, merge="sum") as m, nodes[1].open("m.safetensors") as there:
        m.tensors["w"] = 1
        there.tensors["w"] += 2
        m.publish()
        there.sync()
        assert (there.tensors["w"] == 3).all()
        assert {n: a.shape for n, a in there.tensors.items()} == {
            "w": (10, 3),
            "none": (0, 4),
            "one": (),
        }
        assert all(a.flags.aligned for a in there.tensors.values())
        nodes[2].create("m.safetensors", tensors=described, exist_ok=True).close()
        with pytest.raises(dsmfs.FormatError):
            nodes[2].create("m.safetensors", tensors={"w": ((10, 3), "f4")}, exist_ok=True)
        plain = pytest.importorskip("safetensors.numpy").load_file(nodes[2] / "m.safetensors")
        assert plain["w"].sum() == 90 and plain["one"].shape == ()


def test_safetensors_of_several_types(nodes: dsmfs.Cluster) -> None:
    described = {"flags": (7, "?"), "b": ((3,), "bfloat16"), "none": ((0, 4), "i8"), "one": ((), "f8")}
    with nodes[0].create("m.safetensors", tensors=described) as m:
        assert {n: (a.shape, a.dtype.itemsize) for n, a in m.tensors.items()} == {
            "flags": ((7,), 1),
            "b": ((3,), 2),
            "none": ((0, 4), 8),
            "one": ((), 8),
        }
        assert all(a.flags.aligned for a in m.tensors.values())
    for refused in ({"c": (3, "c8"), "w": (3, "f8")}, {"flags": (7, "?")}):
        with pytest.raises(dsmfs.FormatError, match="cannot be merged by 'sum'"):
            nodes[0].create("n.safetensors", tensors=refused, merge="sum")
    with pytest.raises(dsmfs.FormatError, match="have no order"):
        nodes[0].create("n.safetensors", tensors={"c": (3, "c8")}, merge="max")


def test_what_is_no_safetensors_file(nodes: dsmfs.Cluster) -> None:
    for path, options in (
        ("x.safetensors", {"shape": 3, "dtype": "f4"}),
        ("x.npy", {"tensors": {"w": (3, "f4")}}),
        ("x.safetensors", {"tensors": {"w": (3, "f4")}, "shape": 3}),
        ("x.safetensors", {"tensors": {"w": (3, ">f4")}}),
        ("x.safetensors", {"tensors": {"w": (3, "S3")}}),
        ("x.safetensors", {"tensors": {"w": (-3, "f4")}}),
        ("x.safetensors", {"tensors": {"__metadata__": (3, "f4")}}),
    ):
        with pytest.raises(ValueError):
            nodes[0].create(path, **options)
    with pytest.raises(TypeError):
        nodes[0].create("x.npy")
    assert os.listdir(nodes[0].path) == []


def test_elements_that_cannot_be_added_up(nodes: dsmfs.Cluster) -> None:
    for dtype in ("?", ">f4", "S3", [("a", "f4")]):
        with pytest.raises(dsmfs.FormatError, match="merged"):
            nodes[0].create("x.npy", 3, dtype, merge="sum")
        nodes[0].create("x.npy", 3, dtype).close()
        os.unlink(nodes[0] / "x.npy")
    os.setxattr(nodes[0].path, "user.dsm.merge", b"sum")
    try:
        with pytest.raises(dsmfs.FormatError, match="merged"):
            nodes[0].create("x.npy", 3, "?")
    finally:
        os.setxattr(nodes[0].path, "user.dsm.merge", b"last")
    with pytest.raises(TypeError):
        nodes[0].create("x.npy", 3, object)


def test_the_umask_stays_while_threads_ask_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0o027)
    change = os.umask

    def changed(umask: int) -> int:
        old = change(umask)
        os.sched_yield()  # other threads run meanwhile
        return old

    monkeypatch.setattr(os, "umask", changed)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:

        def make(i: int) -> int:
            seen = 0
            for k in range(300):
                assert _open._umask() == 0o027
                fd = os.open(tmp_path / f"{i}.{k}", os.O_CREAT | os.O_WRONLY, 0o666)
                seen |= os.fstat(fd).st_mode & 0o777
                os.close(fd)
            return seen

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(make, range(8))) == {0o640}
    finally:
        sys.setswitchinterval(interval)
        left = os.umask(before)
    assert left == 0o027
