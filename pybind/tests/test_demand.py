"""Areas larger than the memory of a node, on real mounts: the fake daemon's tests of faults, with a daemon that is none."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import dsmfs
import numpy as np
import pytest
from conftest import LIMIT, Program, kill, stopped

from .test_faults import WORKER, Client
from .test_faults import client as client  # a fixture

COUNT = 4 << 20  # elements of 8 bytes: four times what the small node has
TOTAL = COUNT * (COUNT - 1) // 2
AGAIN = """
def again(operation, limit=60):
    "Try until it does not fail: a home that was stopped takes a while until it answers."
    import time
    end = time.monotonic() + limit
    while True:
        try:
            return operation()
        except dsmfs.FaultError:
            assert time.monotonic() < end
"""


@pytest.fixture
def small(
    binary: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[dsmfs.Filesystem]:
    """A node with little memory. The other, of which `home` is the fixture, has all of ``w.npy``.

    The parameter is how long its programs wait for a page; without one that is long, or a busy machine would be a silent home.
    """

    def mount(name: str, memory: str, join: tuple[str, ...] = ()) -> dsmfs.Filesystem:
        # No daemon follows one that a test kills.
        options = {"state": str(tmp_path / f"state-{name}"), "hold": "off"}
        if name == "small":
            options["fault-timeout"] = getattr(request, "param", f"{LIMIT}s")
        return dsmfs.mount(tmp_path / name, join=join, listen="127.0.0.1:0", memory=memory, options=options)

    nodes = [mount("small", "8M")]
    try:
        nodes.append(mount("large", "512M", (str(nodes[0].config["addr"]),)))
        os.setxattr(nodes[0].path, "user.dsm.replicas", b"1")  # else the small one would have to keep a copy of all
        with nodes[1].create("w.npy", COUNT, "i8", residency="demand", interval=0) as w:
            assert w.plane == "memory" and w.settings["residency"] == "demand"
            w.array[:] = np.arange(COUNT)
        monkeypatch.setenv("DSMFS_ATTACH", (Path(nodes[0].path) / ".dsm/attach").read_text().strip())
        yield nodes[0]
    finally:
        for node in nodes:  # the large one last: its files have no room elsewhere
            end(node)


def end(node: dsmfs.Filesystem) -> None:
    with contextlib.suppress(dsmfs.NodeError):
        node.unmount()


@pytest.fixture
def home(small: dsmfs.Filesystem) -> dsmfs.Filesystem:
    return dsmfs.Filesystem(Path(small.path).parent / "large")


def test_more_than_the_memory_of_the_node(small: dsmfs.Filesystem, home: dsmfs.Filesystem, program: Program) -> None:
    code = f"""
import os, sys, dsmfs
w = dsmfs.open(sys.argv[1])
reader = dsmfs.open(sys.argv[1], "r")
assert w.plane == reader.plane == "memory"
assert w.array.sum() == reader.array.sum() == {TOTAL}
w.array[::512] = -1
pid = os.fork()
if pid == 0:
    assert reader.array[512] == -1 and reader.array[513] == 513
    w.array[1::512] = -2
    w.publish()
    os._exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
w.publish()
assert reader.array[-512] == -1 and reader.array[-511] == -2
assert w.stats["pages_here"] < {COUNT} // 512, w.stats
"""
    program(code, small / "w.npy")
    with home.open("w.npy", "r") as w:
        w.acquire()
        want = np.arange(COUNT)
        want[::512], want[1::512] = -1, -2
        assert np.array_equal(w.array, want)


def test_it_grows_and_shrinks(small: dsmfs.Filesystem, home: dsmfs.Filesystem) -> None:
    with small.open("w.npy") as w:
        old = w.array
        w.resize(COUNT + 5000)
        assert w.array[COUNT - 1] == COUNT - 1 and not w.array[COUNT:].any() and old[7] == 7
        w.array[-1] = 3
        w.publish()
        with home.open("w.npy", "r") as there:
            assert there.shape == (COUNT + 5000,) and there.array[-1] == 3
        w.resize(1000)
        assert np.array_equal(w.array, np.arange(1000))


def test_an_old_array_beyond_the_end(small: dsmfs.Filesystem, home: dsmfs.Filesystem, program: Program) -> None:
    code = f"""
import sys, dsmfs
w = dsmfs.open(sys.argv[1])
old, reader = w.array, dsmfs.open(sys.argv[1], "r").array
w.resize(1000)
for array in (old, reader):
    for i in ({COUNT} - 1, 5000):
        try:
            value = array[i]
        except dsmfs.OperationError as e:
            assert e.errno == 6 and "shrunk" in str(e), e
        else:
            raise AssertionError(value)
w.resize({COUNT})
assert old[{COUNT} - 1] == reader[5000] == 0 and old[7] == 7
"""
    program(code, small / "w.npy")


@pytest.mark.parametrize("small", ["1s"], indirect=True)
@pytest.mark.parametrize("operation", ["[int(a[i]) for i in places]", "a.sum()", "[work(i + 1) for i in places]"])
def test_a_home_that_does_not_answer(
    small: dsmfs.Filesystem, home: dsmfs.Filesystem, client: Client, operation: str
) -> None:
    c = client(f"""
{AGAIN}
{WORKER}
places = range(0, {COUNT}, {COUNT} // 16)  # most are at the other node
assert again(lambda: a[5]) == 5
tell("open")
e = fails(lambda: {operation})
assert isinstance(e, dsmfs.FaultError), e
assert a[5] == 5
tell("failed")
again(lambda: {operation})
assert again(a.sum) == {TOTAL}
""")
    c.ends_well_after(stopped(int(home.config["pid"])))


def test_a_daemon_that_is_killed(small: dsmfs.Filesystem, client: Client) -> None:
    c = client(f"""
reader = dsmfs.open("/w.npy", "r").array
assert a[5] == reader[5] == 5
tell("open")
missing = 0
for array in (a, reader):
    for i in range(0, {COUNT}, {COUNT} // 16):
        try:
            assert array[i + 5] == i + 5
        except dsmfs.DisconnectedError:
            missing += 1
    assert array[5] == 5
assert missing, "a node with a quarter of the memory had all of it"
e = fails(lambda: a.sum())
assert isinstance(e, dsmfs.DisconnectedError), e
""")
    c.until("open")
    kill(int(small.config["pid"]))
    c.go()
    c.ends_well()
