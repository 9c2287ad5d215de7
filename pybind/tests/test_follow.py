"""Attachments that outlive the daemon, against daemons made of Python that follow each other."""

from __future__ import annotations

import builtins
import contextlib
import errno
import gc
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dsmfs
import numpy as np
import pytest
from conftest import Talk
from dsmfs import _linux, _mounts, _npy, _open
from dsmfs._memory import MemoryPlane
from dsmfs._mounts import locate
from dsmfs._wire import Op

from .fake_daemon import COMPARES, LASTS, FakeDaemon

CONTENT = np.arange(1000, dtype="i8")
NEVER = 1 << 63  # a version


class Daemons:
    """Daemons that follow each other at one socket."""

    def __init__(self, path: str) -> None:
        self.all = [FakeDaemon(path, COMPARES | LASTS, heads=True)]
        self.now.make("/w.npy", _npy.header(CONTENT.dtype, CONTENT.shape, False) + CONTENT.tobytes())

    @property
    def now(self) -> FakeDaemon:
        return self.all[-1]

    def follow(
        self,
        wants: int = COMPARES | LASTS,
        dies_at: set[Op] | None = None,
        nonsense_at: set[Op] | None = None,
        refuse: dict[Op, tuple[int, str]] | None = None,
    ) -> FakeDaemon:
        """Have another one follow that which has died."""
        before = self.now
        before.await_death()
        self.all.append(FakeDaemon(before.path, wants, before, True, dies_at, nonsense_at, refuse))
        return self.now

    def another(self) -> FakeDaemon:
        """Kill the daemon, and have another one follow it."""
        self.now.die()
        return self.follow()


@pytest.fixture
def daemons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemons]:
    d = Daemons(str(tmp_path / "attach"))
    monkeypatch.setenv("DSMFS_ATTACH", d.now.path)
    yield d
    for one in d.all:
        one.close()


def later(do: Callable[[], object]) -> threading.Thread:
    t = threading.Thread(target=do)
    t.start()
    return t


REQUESTS: dict[str, Callable[[dsmfs.Area], object]] = {
    "publish": lambda w: w.publish(),
    "acquire": lambda w: w.acquire(),
    "sync": lambda w: w.sync(),
    "version": lambda w: w.version,
    "staleness": lambda w: w.staleness,
    "stats": lambda w: w.stats,
    "wait": lambda w: w.wait(w.version),
    "resize": lambda w: w.resize(2000),
}


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("watched", [False, True])
def test_a_request_goes_on_with_the_next_daemon(daemons: Daemons, name: str, watched: bool) -> None:
    with dsmfs.open("/w.npy") as w:
        w.publish()
        if watched:
            assert w.version > 0
        first = daemons.now
        first.die()
        w.array[5] = 77
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(REQUESTS[name], w)
            second = daemons.follow()
            asked.result()
        [resume] = second.asked(Op.RESUME)
        memory = os.fstat(second.areas["/w.npy"].memory)
        assert resume.message.args == (3, 7, memory.st_ino, 0) and resume.message.payload == b"/w.npy"
        before, after = first.asked(Op.TRACK)[0].message, second.asked(Op.TRACK)[0].message
        assert before.args == after.args and after.attachment >= 100
        assert w.array[5] == 77 and (name == "resize" or w.array.ctypes.data == after.args[0] + 128)
        w.publish()
        assert not w.closed


def test_a_daemon_that_says_nothing_of_it_is_not_followed(daemons: Daemons) -> None:
    daemons.now.wants = COMPARES
    with dsmfs.open("/w.npy") as w:
        daemons.another()
        with pytest.raises(dsmfs.DisconnectedError):
            w.publish()
        w.array[0] = 5
        assert daemons.now.requests == []


def test_what_is_tracked_anew_has_a_new_userfaultfd(daemons: Daemons) -> None:
    try:
        os.close(_linux.userfaultfd())
    except OSError as e:
        pytest.skip(f"no userfaultfd here: {e.strerror}")
    with dsmfs.open("/w.npy") as w, dsmfs.open("/w.npy", "r") as r:
        daemons.now.die()
        daemons.follow(1 | LASTS)
        w.publish()
        assert r.acquire() > 0
        [track] = daemons.now.asked(Op.TRACK)
        assert track.kinds == ["anon_inode:[userfaultfd]"]
        assert sorted(q.message.args[0] for q in daemons.now.asked(Op.RESUME)) == [1, 3]


def test_many_daemons(daemons: Daemons) -> None:
    with dsmfs.open("/w.npy") as w:
        for i in range(10):
            w.array[i] = i + 1
            version = w.publish()
            assert w.version == version
            daemons.another()
        assert w.wait(w.publish(), 60) > 0 and w.array[:10].tolist() == list(range(1, 11))
        assert [len(d.asked(Op.RESUME)) for d in daemons.all[1:]] == [1] * 10


def test_one_thread_connects_for_all(daemons: Daemons) -> None:
    threads = 16
    with dsmfs.open("/w.npy") as w, ThreadPoolExecutor(threads) as pool:
        waits = [pool.submit(w.wait, NEVER) for _ in range(threads // 2)]
        daemons.now.await_asked(Op.EXPECT, 1)
        daemons.now.die()
        asked = [pool.submit(w.publish) for _ in range(threads // 2)]
        second = daemons.follow()
        assert all(a.result() > 0 for a in asked)
        second.await_asked(Op.WAIT, len(waits))
        assert len(second.asked(Op.RESUME)) == len(second.asked(Op.TRACK)) == 1
        third = daemons.another()
        third.await_asked(Op.WAIT, len(waits))
        assert len(third.asked(Op.RESUME)) == 1
        with third.changed:
            third.areas["/w.npy"].version = NEVER
            third.changed.notify_all()
        assert {a.result() for a in waits} == {NEVER}


def test_a_sleep_on_the_header_page_goes_on_with_the_time_that_is_left(daemons: Daemons) -> None:
    with dsmfs.open("/w.npy", "r") as w, ThreadPoolExecutor(2) as pool:
        assert w.version == 0  # it has the page of the first
        waits = [pool.submit(w.wait, 1, 600), pool.submit(w.wait, 1)]
        daemons.now.await_asked(Op.EXPECT, 1)
        second = daemons.another()
        second.await_asked(Op.WAIT, 2)
        left = sorted(q.message.args[1] for q in second.asked(Op.WAIT))
        assert left[0] == 0 and 300_000 < left[1] < 600_000
        version = second.publish(second.areas["/w.npy"])
        assert [a.result() for a in waits] == [version] * 2
        assert w.version == version and second.asked(Op.WATCH)
        gc.collect()
        assert heads_mapped() == 1


def heads_mapped() -> int:
    with open("/proc/self/maps", encoding="utf-8") as f:
        return sum("fake:head" in line and "r--s" in line for line in f)


@pytest.mark.parametrize("timeout", [0, 0.2])
def test_a_wait_ends_in_time_without_a_daemon(daemons: Daemons, timeout: float) -> None:
    with dsmfs.open("/w.npy") as w:
        w.publish()
        w.version  # noqa: B018
        daemons.now.die()
        for _ in range(3):
            with pytest.raises(dsmfs.TimedOutError):
                w.wait(NEVER, timeout)
        daemons.follow()
        assert w.publish() > 0
        assert len(daemons.now.asked(Op.RESUME)) == 1, "it ended no resumption"


def test_an_interrupt_ends_a_request_and_no_resumption(daemons: Daemons) -> None:
    with dsmfs.open("/w.npy") as w:
        daemons.now.die()
        me = threading.get_ident()
        for _ in range(3):
            asks = threading.Event()

            def interrupt(asks: threading.Event = asks) -> None:
                asks.wait()
                await_follower(w)
                signal.pthread_kill(me, signal.SIGINT)

            interrupts = later(interrupt)
            with pytest.raises(KeyboardInterrupt):
                asks.set()
                w.publish()
            interrupts.join()
        daemons.follow()
        assert w.publish() > 0
        assert len(daemons.now.asked(Op.RESUME)) == 1


def await_follower(w: dsmfs.Area) -> None:
    """Wait until the area is without a daemon, and looks for the next."""
    plane = w._plane
    assert isinstance(plane, MemoryPlane)
    end = time.monotonic() + 30
    while plane._live()._follower is None:
        assert time.monotonic() < end
        time.sleep(0.001)


def test_the_mount_is_gone_for_good(daemons: Daemons) -> None:
    with dsmfs.open("/w.npy") as w:
        assert w.version == 0
        daemons.now.die()
        with ThreadPoolExecutor(3) as pool:
            asked = [pool.submit(f, w) for f in (REQUESTS["publish"], REQUESTS["version"], lambda w: w.wait(5))]
            await_follower(w)
            daemons.now.give_up()
            assert {type(a.exception()) for a in asked} == {dsmfs.DisconnectedError}
        os.unlink(daemons.now.path)
        with pytest.raises(dsmfs.DisconnectedError, match="process's own"):
            w.acquire()
        w.array[3] = 9
        assert w.array[3] == 9


def test_the_socket_has_gone(daemons: Daemons) -> None:
    with dsmfs.open("/w.npy") as w:
        os.unlink(daemons.now.path)
        daemons.now.die()
        with pytest.raises(dsmfs.DisconnectedError):
            w.publish()


@pytest.mark.parametrize("dies_at", [Op.RESUME, Op.TRACK])
def test_the_next_daemon_dies_too(daemons: Daemons, dies_at: Op) -> None:
    with dsmfs.open("/w.npy") as w, ThreadPoolExecutor(1) as pool:
        daemons.now.die()
        asked = pool.submit(w.publish)
        for _ in range(3):
            daemons.follow(dies_at={dies_at}).await_death()
        daemons.follow()
        assert asked.result() > 0
        assert len(daemons.now.asked(Op.RESUME)) == len(daemons.now.asked(Op.TRACK)) == 1


@pytest.mark.parametrize("at", [Op.RESUME, Op.TRACK])
def test_what_the_next_daemon_sends_is_no_packet(daemons: Daemons, at: Op) -> None:
    with dsmfs.open("/w.npy") as w:
        daemons.now.die()
        daemons.follow(nonsense_at={at})
        for _ in range(2):
            with pytest.raises(dsmfs.DisconnectedError, match="has not taken it over"):
                w.publish()
        assert len(daemons.now.asked(Op.RESUME)) == 1
        w.array[0] = 3


def test_the_next_daemon_does_not_know_the_attachment(daemons: Daemons) -> None:
    with dsmfs.open("/w.npy") as w:
        daemons.now.die()
        daemons.follow().areas["/w.npy"].number = 8
        for _ in range(2):
            with pytest.raises(dsmfs.DisconnectedError, match="there is no such attachment") as e:
                w.publish()
            assert e.value.errno == errno.ENOTCONN and e.value.filename == "/w.npy"
        assert len(daemons.now.asked(Op.RESUME)) == 1
        w.array[0] = 3
        assert w.array[0] == 3


def test_the_homes_do_not_answer_yet(daemons: Daemons) -> None:
    with dsmfs.open("/w.npy") as w, ThreadPoolExecutor(1) as pool:
        daemons.now.die()
        second = daemons.follow(refuse={Op.RESUME: (errno.ETIMEDOUT, "no home answers")})
        asked = pool.submit(w.publish)
        second.await_asked(Op.RESUME, 3)
        assert not asked.done()
        second.refuse.clear()
        assert asked.result() > 0
        assert len(second.accepted) == 1


def test_the_next_daemon_cannot_track(daemons: Daemons) -> None:
    with dsmfs.open("/w.npy") as w:
        daemons.now.die()
        daemons.follow().refuse[Op.TRACK] = errno.ENODEV, "the machine cannot do it"
        with pytest.raises(dsmfs.DisconnectedError, match="the machine cannot do it"):
            w.publish()


def test_the_last_daemon_says_that_it_is_not_followed(daemons: Daemons) -> None:
    with dsmfs.open("/w.npy") as w:
        daemons.now.die()
        daemons.follow(COMPARES)
        assert w.publish() > 0
        daemons.another()
        with pytest.raises(dsmfs.DisconnectedError):
            w.publish()


@pytest.mark.parametrize("following", [False, True])
def test_closing_without_a_daemon_returns_at_once(daemons: Daemons, following: bool) -> None:
    w = dsmfs.open("/w.npy")
    daemons.now.die()
    w.array[0] = 5
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(w.publish) if following else None
        if following:
            await_follower(w)
        w.close()
        assert asked is None or isinstance(asked.exception(), dsmfs.DisconnectedError)
    second = daemons.follow()
    assert os.pread(second.areas["/w.npy"].memory, 8, 128) == b"\5" + bytes(7)
    with dsmfs.open("/w.npy") as again:  # the daemon serves what had connected before
        assert again.array[0] == 5
    assert [d for d in second.asked(Op.RESUME) if not following] == []


def test_an_area_that_is_dropped_without_a_daemon_is_unmapped(daemons: Daemons) -> None:
    w = dsmfs.open("/w.npy")
    array = w.array[5:]
    daemons.now.die()
    with ThreadPoolExecutor(1) as pool, pytest.raises(TimeoutError):
        pool.submit(w.wait, 5, 0.05).result()
    address = array.ctypes.data - 128 - 40
    w.close()
    del w
    assert array[0] == 5
    del array
    gc.collect()
    with open("/proc/self/maps", encoding="utf-8") as f:
        assert f"{address:x}-" not in f.read()


def test_a_fork_without_a_daemon(daemons: Daemons) -> None:
    with dsmfs.open("/w.npy") as w, ThreadPoolExecutor(1) as pool:
        w.array[0] = 5
        daemons.now.die()
        asked = pool.submit(w.publish)
        await_follower(w)
        child = os.fork()
        if child == 0:
            code = 1
            with contextlib.suppress(BaseException):
                code = 0 if w.array[0] == 5 and w.publish() > 0 else 2
            os._exit(code)
        daemons.follow()
        assert asked.result() > 0
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(daemons.now.asked(Op.RESUME)) == 1 and len(daemons.now.asked(Op.ATTACH)) == 1


def test_a_program_that_ends_without_a_daemon(daemons: Daemons, talk: Callable[..., Talk]) -> None:
    code = """
import sys, threading, dsmfs
w = dsmfs.open('/w.npy')
print('open', flush=True)
sys.stdin.readline()
threading.Thread(target=w.publish, daemon=True).start()
try:
    w.wait(5, 0.1)
except dsmfs.TimedOutError:
    print('late', flush=True)
"""
    t = talk(sys.executable, "-W", "ignore", "-c", code)
    t.until("open")
    daemons.now.die()
    t.go()
    t.until("late")
    t.ends_well()


def test_an_attach_without_an_answer_is_repeated(daemons: Daemons) -> None:
    daemons.now.dies_at = {Op.ATTACH}
    with ThreadPoolExecutor(1) as pool:
        opened = pool.submit(dsmfs.open, "/w.npy")
        daemons.now.await_death()
        daemons.follow(dies_at={Op.TRACK}).await_death()
        daemons.follow()
        with opened.result() as w:
            assert w.publish() > 0
    assert [len(d.asked(Op.TRACK)) for d in daemons.all] == [0, 1, 1]


def test_an_attach_without_a_daemon_is_not(daemons: Daemons) -> None:
    daemons.now.dies_at = {Op.ATTACH}
    os.unlink(daemons.now.path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as nobody:
        nobody.bind(daemons.now.path)
        with pytest.raises(dsmfs.PlaneUnavailableError):
            dsmfs.open("/w.npy", plane="memory")


def made(pool: ThreadPoolExecutor, path: str = "/new.npy") -> Any:
    return pool.submit(dsmfs.create, path, 10, "i8")


@pytest.mark.parametrize("dies_at", [Op.ATTACH, Op.TRACK])
def test_the_daemon_dies_when_a_forked_process_attaches(daemons: Daemons, dies_at: Op) -> None:
    with dsmfs.open("/w.npy") as w:
        w.array[0] = 5
        daemons.now.dies_at = {dies_at}
        child = os.fork()
        if child == 0:
            code = 1
            with contextlib.suppress(BaseException):
                code = 0 if w.array[0] == 5 and w.publish() > 0 else 2
            os._exit(code)
        daemons.now.await_death()
        daemons.follow()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert w.publish() > 0


@pytest.mark.parametrize("how", ["dies_at", "dies_after"])
@pytest.mark.parametrize("op", [Op.PREPARE, Op.TRACK, Op.NAME])
def test_a_create_goes_on(daemons: Daemons, how: str, op: Op) -> None:
    setattr(daemons.now, how, {op})
    with ThreadPoolExecutor(1) as pool:
        new = made(pool)
        daemons.now.await_death()
        daemons.follow()
        with new.result() as w:
            w.array[:] = 3
            w.publish()
        with dsmfs.open("/new.npy") as w:
            assert w.array.tolist() == [3] * 10


@pytest.mark.parametrize("how", ["dies_at", "dies_after"])
def test_a_create_that_another_program_was_faster_with(daemons: Daemons, how: str) -> None:
    setattr(daemons.now, how, {Op.NAME})
    with ThreadPoolExecutor(1) as pool:
        new = made(pool)
        daemons.now.await_death()
        if how == "dies_at":
            daemons.now.make("/new.npy", b"x").number = 99
        else:
            daemons.now.areas["/elsewhere"] = daemons.now.areas.pop("/new.npy")
            daemons.now.make("/new.npy", b"x").number = 99
        daemons.follow()
        assert isinstance(new.exception(), dsmfs.ExistsError)


@pytest.mark.parametrize("how", ["dies_at", "dies_after"])
def test_a_draft_that_is_there_is_the_one_that_was_asked_for(daemons: Daemons, how: str) -> None:
    setattr(daemons.now, how, {Op.CREATE})
    plan = _open._plan("/draft.npy", 10, "i8", None, "C")
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(_open._create_by_socket, locate("/draft.npy"), "/new.npy", {}, plan, 0o600)
        daemons.now.await_death()
        daemons.follow()
        made.result()
    assert daemons.now.areas["/draft.npy"].size == plan.size and len(daemons.now.asked(Op.CREATE)) == 1
    with pytest.raises(dsmfs.ExistsError):
        _open._create_by_socket(locate("/draft.npy"), "/new.npy", {}, plan, 0o600)


def test_a_join_is_repeated_with_the_time_that_is_left(daemons: Daemons) -> None:
    daemons.now.dies_at = {Op.JOIN}
    with ThreadPoolExecutor(1) as pool:
        joined = pool.submit(dsmfs.group, "/g", 1, timeout=600)
        daemons.now.await_death()
        second = daemons.follow(dies_at={Op.BARRIER})
        with joined.result() as g:
            assert [300_000 < q.message.args[1] <= 600_000 for q in second.asked(Op.JOIN)] == [True]
            with pytest.raises(dsmfs.DisconnectedError):
                g.barrier()
            daemons.follow()
            with pytest.raises(dsmfs.DisconnectedError):
                g.barrier()
        assert daemons.now.requests == []


def test_a_control_file_of_a_daemon_that_has_ended_is_opened_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "attach"
    path.write_text("name\n")
    opened = 0

    def once(*args: Any, **more: Any) -> Any:
        nonlocal opened
        opened += 1
        if opened % 3:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return builtins.open(*args, **more)

    monkeypatch.setattr(_mounts, "open", once, raising=False)
    assert _mounts._control(str(path)) == "name\n" and opened == 3
    with pytest.raises(FileNotFoundError):
        _mounts._control("/no/such/file")
