"""Header pages on real nodes: waits that ask nobody, and what ends them."""

from __future__ import annotations

import ctypes
import errno
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dsmfs
import pytest
from conftest import LIMIT, Talk
from dsmfs import _linux
from dsmfs._wire import Connection, Op

#: Waits for each version that its input names, and says what is in memory then.
READER = """
import sys, dsmfs
with dsmfs.open(sys.argv[1], 'r') as w:
    print('open', flush=True)
    for line in sys.stdin:
        want = int(line)
        assert w.wait(want, 60) >= want
        print(int(w.array.min()), int(w.array.max()), flush=True)
"""
#: Counts how often it is woken for a later version, until it sees the value that ends it.
FOLLOWER = """
import sys, dsmfs
with dsmfs.open(sys.argv[1], 'r') as w:
    print('open', flush=True)
    last = -1
    while last < int(sys.argv[2]):
        version = w.version
        now = int(w.array[0])
        assert now >= last, (now, last)
        last = now
        if now < int(sys.argv[2]):
            assert w.wait(version + 1, 60) > version
"""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[Op]:
    """Count what this process asks daemons."""
    count: Counter[Op] = Counter()
    call = Connection.call

    def counted(self: Connection, op: Op, *rest: Any, **named: Any) -> Any:
        count[op] += 1
        return call(self, op, *rest, **named)

    monkeypatch.setattr(Connection, "call", counted)
    return count


@pytest.fixture
def pages(mounts: dsmfs.Cluster, monkeypatch: pytest.MonkeyPatch) -> dsmfs.Cluster:
    """Three nodes, with areas in the memory plane."""
    monkeypatch.setenv("DSMFS_PLANE", "memory")
    return mounts


def test_version_staleness_and_wait_ask_nobody(
    pages: dsmfs.Cluster, talk: Callable[..., Talk], asked: Counter[Op]
) -> None:
    with pages[0].create("w.npy", 8, "i8", interval=0) as w, pages[1].open("w.npy", "r") as r:
        assert r.version >= 0
        asked.clear()
        for i in range(20):
            w.array[:] = i
            version = w.publish()
            assert r.wait(version, 60) >= version and (r.array == i).all()
            assert r.version >= version and r.staleness < 60 and w.version >= version
        assert asked[Op.WAIT] == asked[Op.ACQUIRE] == asked[Op.STATS] == 0
        assert set(asked) <= {Op.PUBLISH, Op.WATCH, Op.EXPECT}


def test_header_pages_keep_no_descriptor_and_are_unmapped(pages: dsmfs.Cluster) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    def mapped() -> int:
        with open("/proc/self/maps", encoding="utf-8") as f:
            return sum("dsmfs:head" in line for line in f)

    before = mapped()
    with pages[0].create("w.npy", 8, "i8", interval=0) as w:
        w.publish()
        few = descriptors()
        assert w.version > 0
        assert mapped() == before + 1
        assert descriptors() == few
    del w
    assert mapped() == before


def test_pages_that_cannot_be_mapped_are_no_loss(
    pages: dsmfs.Cluster, asked: Counter[Op], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, length: int) -> int:
        raise OSError(errno.ENOMEM, "too many mappings")

    with pages[0].create("w.npy", 8, "i8", interval=0) as w:
        version = w.publish()
        monkeypatch.setattr(_linux, "map_shared", full)
        assert w.version >= version and w.wait(version, 60) >= version
        assert asked[Op.WAIT] == 2


def test_a_sleep_that_is_forbidden_is_none_that_spins(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forbidding:
        @staticmethod
        def syscall(*_: object) -> int:
            ctypes.set_errno(errno.EPERM)
            return -1

    slept: list[float] = []
    monkeypatch.setattr(_linux, "_libc", Forbidding)
    monkeypatch.setattr(time, "sleep", slept.append)
    assert _linux.futex_wait((0, 0), (0, 0), 1)
    assert slept == [0.001]


def test_who_waits_is_told_at_once_when_the_daemon_is_killed(binary: str, talk: Callable[..., Talk]) -> None:
    code = """
import sys, dsmfs
with dsmfs.open(sys.argv[1], 'r') as w:
    version = w.version
    print('open', flush=True)
    try:
        w.wait(version + 1)
    except dsmfs.DisconnectedError:
        print('ended', flush=True)
    try:
        w.version
    except dsmfs.DisconnectedError:
        print('ended', flush=True)
"""
    with dsmfs.cluster(2, memory="256MiB") as nodes:
        with nodes[0].create("w.npy", 8, "i8") as w:
            w.publish()
        waiting = [talk(sys.executable, "-W", "ignore", "-c", code, nodes[1] / "w.npy") for _ in range(4)]
        for t in waiting:
            t.until("open")
        nodes.kill(1)
        for t in waiting:
            t.until("ended")
            t.until("ended")
            t.ends_well()


def test_an_interrupt_ends_a_wait(pages: dsmfs.Cluster, talk: Callable[..., Talk]) -> None:
    code = """
import sys, dsmfs
with dsmfs.open(sys.argv[1], 'r') as w:
    w.version
    try:
        print('open', flush=True)
        w.wait(w.version + 1)
    except KeyboardInterrupt:
        print('interrupted', flush=True)
"""
    with pages[0].create("w.npy", 8, "i8", interval=0) as w:
        w.publish()
        t = talk(sys.executable, "-c", code, pages[1] / "w.npy")
        t.until("open")
        t.process.send_signal(signal.SIGINT)
        t.until("interrupted")
        t.ends_well()


def test_who_waits_is_told_that_the_area_was_closed(pages: dsmfs.Cluster, asked: Counter[Op]) -> None:
    with pages[0].create("w.npy", 8, "i8", interval=0) as w, pages[0].open("w.npy", "r") as r:
        version = w.publish()
        assert w.version >= version  # somebody goes on watching the area
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(r.wait, version + 1)
            while asked[Op.EXPECT] == 0:
                assert not waits.done()
            r.close()
            try:
                assert isinstance(waits.exception(LIMIT), dsmfs.DisconnectedError)
            finally:
                w.array[0] = 1
                w.publish()  # which ends it at the latest


def test_a_wait_brings_updates_into_memory_of_the_programs_own(pages: dsmfs.Cluster, asked: Counter[Op]) -> None:
    with pages[0].create("w.npy", 8, "i8", merge="sum", interval=0) as a, pages[1].open("w.npy") as b:
        for i in range(1, 4):
            a.array += 1
            version = a.publish()
            assert (b.array == i - 1).all()
            assert b.wait(version, 60) >= version and (b.array == i).all()
            asked.clear()
            assert b.wait(version, 60) >= version
            assert not asked
        with pytest.raises(dsmfs.TimedOutError):
            b.wait(b.version + 1, 0.2)


@pytest.mark.parametrize("nbytes", [64, 3 << 20])
def test_no_wake_up_is_lost_and_no_version_comes_before_its_bytes(
    pages: dsmfs.Cluster, talk: Callable[..., Talk], nbytes: int
) -> None:
    seed = int(os.environ.get("DSMFS_SEED", random.randrange(1 << 32)))
    print("seed", seed)
    rng = random.Random(seed)
    rounds = 150 if nbytes < 1 << 20 else 20
    with pages[0].create("w.npy", nbytes // 8, "i8", interval=0) as w:
        path = [node / "w.npy" for node in pages]
        readers = [talk(sys.executable, "-W", "ignore", "-c", READER, path[i % 3]) for i in range(4)]
        followers = [talk(sys.executable, "-W", "ignore", "-c", FOLLOWER, path[i % 3], str(rounds)) for i in range(3)]
        for t in readers + followers:
            t.until("open")
        for value in range(1, rounds + 1):
            w.array[:] = value
            version = w.publish()
            chosen = rng.sample(readers, rng.randrange(len(readers) + 1))
            for t in chosen:
                assert t.process.stdin is not None
                t.process.stdin.write(f"{version}\n".encode())
                t.process.stdin.flush()
            if rng.random() < 0.2:
                readers[-1].process.kill()  # costs nobody a wake-up
                readers[-1].process.wait()
                chosen = [t for t in chosen if t is not readers[-1]]
                readers[-1] = talk(sys.executable, "-W", "ignore", "-c", READER, path[rng.randrange(3)])
                readers[-1].until("open")
            for t in chosen:
                t.until(f"{value} {value}")
        for t in followers + readers:
            t.ends_well()
