"""Interrupts and forks at any moment."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

import dsmfs
import numpy as np
import pytest
from dsmfs import _memory
from dsmfs._wire import Op

attached = pytest.mark.parametrize("nodes", ["memory"], indirect=True)


class Stop(BaseException):
    """What the handler of the alarm raises, as that of Ctrl-C does."""


@pytest.fixture
def alarm() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise Stop

    before = signal.signal(signal.SIGALRM, stop)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@attached
def test_an_interrupt_leaves_the_connection_as_it_is(nodes: dsmfs.Cluster, alarm: None) -> None:
    with nodes[0].create("w.npy", 8, "i8", interval=0) as w:
        plane = w._plane
        assert isinstance(plane, _memory.MemoryPlane)
        connection, attachment = plane._live().now()
        end, interrupts = time.monotonic() + 2, 0
        while time.monotonic() < end:
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(5e-5, 6e-4))
                while True:
                    connection.call(Op.STATS, attachment).close()
            except Stop:
                interrupts += 1
            again = threading.Thread(target=lambda: connection.call(Op.STATS, attachment).close())
            again.start()
            again.join(60)
            assert not again.is_alive(), f"after {interrupts} interrupts nobody reads any more"
        assert interrupts > 100
        w += 1
        w.publish()


@attached
def test_a_forked_process_maps_nothing_over_its_own_memory(nodes: dsmfs.Cluster) -> None:
    """Where a file was mapped before a resize something else may be."""
    size = 1 << 20
    with nodes[0].create("w.npy", size, "u1", interval=0) as w:
        old = w._plane  # as a traceback keeps it
        assert isinstance(old, _memory.MemoryPlane)
        w.resize(2 * size)
        others = [mmap.mmap(-1, size + 4096) for _ in range(40)]
        for other in others:
            np.frombuffer(other, np.uint8)[:] = 1
        begins = [ctypes.addressof(ctypes.c_char.from_buffer(other)) for other in others]
        assert any(b < old._address + size and old._address < b + size + 4096 for b in begins), (
            "nothing has the addresses"
        )
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = (
                    0
                    if all(np.frombuffer(other, np.uint8).all() for other in others) and w.array.size == 2 * size
                    else 2
                )
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        taken: list[bool] = []

        def take() -> None:
            taken.append(_memory._registry.acquire(timeout=60))
            _memory._registry.release()

        taker = threading.Thread(target=take)
        taker.start()
        taker.join()
        assert taken == [True]
        del old


def test_a_forked_process_ends_no_cluster(nodes: dsmfs.Cluster) -> None:
    with dsmfs.cluster(1) as own:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with own:
                    pass
                own.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(own[0].members) == 1
