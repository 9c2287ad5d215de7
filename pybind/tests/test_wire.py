"""Packets, and a connection that many threads use."""

from __future__ import annotations

import errno
import os
import re
import resource
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dsmfs
import pytest
from dsmfs._wire import HEADER, Connection, Op, pack, unpack
from hypothesis import given
from hypothesis import strategies as st

from .fake_daemon import FakeDaemon

u64 = st.integers(0, 2**64 - 1)


@given(st.sampled_from(Op), u64, u64, st.lists(u64, min_size=4, max_size=4), st.binary(max_size=4096))
def test_a_packet_is_read_as_it_was_written(op: Op, tag: int, attachment: int, args: list[int], payload: bytes) -> None:
    m = unpack(pack(op, tag, attachment, args, payload, -5), [])
    assert (m.op, m.tag, m.attachment, m.args, m.payload, m.error) == (op, tag, attachment, tuple(args), payload, -5)


@given(st.binary(max_size=200))
def test_what_is_no_packet_is_refused(packet: bytes) -> None:
    with pytest.raises(ValueError):
        unpack(packet, [])


def test_the_header_is_that_of_the_document() -> None:
    text = (Path(__file__).parents[2] / "docs" / "attach.md").read_text()
    packet = pack(Op.WAIT, 0x0102030405060708, 9, (10, 11, 12, 13), b"xy")
    where = {
        m[3]: (int(m[1]), m[2]) for m in re.finditer(r"^\| (\d+) \| ([ui]\d+)(?: x 4)? \| ([\w ]+) \|", text, re.M)
    }
    fields = {
        "magic": 0x414D5344,
        "version": 1,
        "op": 7,
        "tag": 0x0102030405060708,
        "attachment": 9,
        "a b c d": 10,
        "length": 2,
        "error": 0,
    }
    assert where.keys() == fields.keys()
    for name, value in fields.items():
        at, kind = where[name]
        assert int.from_bytes(packet[at : at + int(kind[1:]) // 8], "little") == value, name
    assert packet[64:] == b"xy"
    ops = {m[2]: int(m[1]) for m in re.finditer(r"^\| (\d+) ([A-Z]+) \|", text, re.M)}
    assert ops == {o.name: o.value for o in Op}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    d = FakeDaemon(str(tmp_path / "attach"))
    yield d
    d.close()


@pytest.fixture
def connection(daemon: FakeDaemon) -> Iterator[Connection]:
    c = Connection(daemon.path)
    yield c
    c.close()


def test_replies_find_the_thread_that_asked_in_any_order(daemon: FakeDaemon, connection: Connection) -> None:
    area = daemon.make("/w", bytes(4096))
    attachment = connection.call(Op.ATTACH, args=(1,), payload=b"/w").attachment
    with ThreadPoolExecutor(16) as pool:
        waits = [pool.submit(connection.call, Op.WAIT, attachment, (n, 0)) for n in range(8, 0, -1)]
        daemon.await_asked(Op.WAIT, 8)
        asks = [pool.submit(connection.call, Op.STATS, attachment) for _ in range(8)]
        assert all(b"version 0" in f.result().payload for f in asks)
        assert not any(f.done() for f in waits)
        with daemon.changed:
            area.version = 4
            daemon.changed.notify_all()
        assert [f.result().args[0] for f in waits[4:]] == [4] * 4
        assert not any(f.done() for f in waits[:4])
        with daemon.changed:
            area.version = 8
            daemon.changed.notify_all()
        assert [f.result().args[0] for f in waits] == [8] * 4 + [4] * 4


def test_the_end_of_the_daemon_reaches_every_waiting_thread(daemon: FakeDaemon, connection: Connection) -> None:
    daemon.make("/w", bytes(4096))
    attachment = connection.call(Op.ATTACH, args=(1,), payload=b"/w").attachment
    with ThreadPoolExecutor(4) as pool:
        waits = [pool.submit(connection.call, Op.WAIT, attachment, (1, 0)) for _ in range(4)]
        daemon.await_asked(Op.WAIT, 4)
        daemon.hang_up()
        assert {type(f.exception()) for f in waits} == {dsmfs.DisconnectedError}
    with pytest.raises(ConnectionError) as e:
        connection.call(Op.STATS, attachment)
    assert e.value.errno == errno.ENOTCONN


def test_closing_wakes_a_thread_that_waits(daemon: FakeDaemon, connection: Connection) -> None:
    daemon.make("/w", bytes(4096))
    attachment = connection.call(Op.ATTACH, args=(1,), payload=b"/w").attachment
    with ThreadPoolExecutor(1) as pool:
        wait = pool.submit(connection.call, Op.WAIT, attachment, (1, 0))
        daemon.await_asked(Op.WAIT, 1)
        connection.close()
        assert isinstance(wait.exception(), dsmfs.DisconnectedError)


@pytest.mark.parametrize("answer", [b"x", bytes(64), pack(Op.STATS, 1, payload=b"ab")[:-1]])
def test_an_answer_that_is_no_packet_ends_the_connection(tmp_path: Path, answer: bytes) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        connection = Connection(path)
        peer, _ = listener.accept()
        with peer:
            peer.send(answer)
            with pytest.raises(dsmfs.DisconnectedError):
                connection.call(Op.STATS)
            connection.close()


class Interrupted(Exception):
    """Raised by the signal handler of the test."""


def test_a_descriptor_for_which_there_is_no_room_is_no_end_of_the_connection(
    daemon: FakeDaemon, connection: Connection
) -> None:
    daemon.make("/w", b"x" * 4096)
    connection.call(Op.ATTACH, args=(3,), payload=b"/w").close()  # the fake daemon has taken the connection then
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)  # the fake daemon is of this process, and needs none: a descriptor that is sent comes in twice
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        with pytest.raises(dsmfs.OperationError, match="no room for the descriptor") as e:
            connection.call(Op.ATTACH, args=(3,), payload=b"/w")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert e.value.errno == errno.EMFILE
    reply = connection.call(Op.ATTACH, args=(3,), payload=b"/w")
    assert len(reply.fds) == 1
    reply.close()


def test_an_interrupted_caller_leaves_the_connection_usable(daemon: FakeDaemon, connection: Connection) -> None:
    area = daemon.make("/w", bytes(4096))
    attachment = connection.call(Op.ATTACH, args=(1,), payload=b"/w").attachment

    def interrupt(*_: object) -> None:
        raise Interrupted

    main = threading.get_ident()

    def later() -> None:
        daemon.await_asked(Op.WAIT, 1)
        signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        killer = threading.Thread(target=later)
        killer.start()
        with pytest.raises(Interrupted):
            connection.call(Op.WAIT, attachment, (1, 0))
        killer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    with daemon.changed:
        area.version = 1
        daemon.changed.notify_all()  # the answer that nobody waits for any more comes first or second
    assert connection.call(Op.WAIT, attachment, (1, 0)).args[0] == 1


def test_a_payload_too_large_is_not_sent(connection: Connection) -> None:
    with pytest.raises(dsmfs.OperationError):
        connection.call(Op.ATTACH, args=(1,), payload=bytes(4097))


def test_the_header_has_64_bytes() -> None:
    assert HEADER.size == 64
