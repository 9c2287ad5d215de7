"""The memory plane against a daemon made of Python."""

from __future__ import annotations

import errno
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dsmfs
import numpy as np
import numpy.typing as npt
import pytest
from conftest import Program
from dsmfs import _linux, _npy
from dsmfs._wire import Op

from .fake_daemon import COMPARES, FakeDaemon, page_of


def npy(values: npt.NDArray[Any]) -> bytes:
    return _npy.header(values.dtype, values.shape, False) + values.tobytes()


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    d = FakeDaemon(str(tmp_path / "attach"))
    d.make("/w.npy", npy(np.arange(1000, dtype="f4")))
    monkeypatch.setenv("DSMFS_ATTACH", d.path)
    yield d
    d.close()


@pytest.fixture
def uffd() -> None:
    try:
        os.close(_linux.userfaultfd())
    except OSError as e:
        pytest.skip(f"no userfaultfd here: {e.strerror}")


@pytest.mark.usefixtures("uffd")
def test_the_array_is_the_memory_of_the_daemon(daemon: FakeDaemon) -> None:
    with dsmfs.open("/w.npy") as w:
        assert w.plane == "memory"
        assert w.shape == (1000,) and w.dtype == np.float32
        assert np.array_equal(w.array, np.arange(1000))
        w.array[:] = 7
        assert os.pread(daemon.areas["/w.npy"].memory, 4, 128) == np.float32(7).tobytes()
        os.pwrite(daemon.areas["/w.npy"].memory, np.float32(9).tobytes(), 128)
        assert w.array[0] == 9


@pytest.mark.usefixtures("uffd")
def test_tracking_gets_a_userfaultfd_that_the_program_keeps_no_copy_of(daemon: FakeDaemon) -> None:
    with dsmfs.open("/w.npy") as w:
        [track] = daemon.asked(Op.TRACK)
        assert track.kinds == ["anon_inode:[userfaultfd]"]
        address, length, offset, _ = track.message.args
        assert address % 4096 == 0 and length == 8192 and offset == 0
        assert w.array.ctypes.data == address + 128
        assert mine("anon_inode:[userfaultfd]") == []
        assert " dc " in page_of(address), "the mapping must not be copied by fork"


def test_a_daemon_that_compares_gets_no_userfaultfd(daemon: FakeDaemon) -> None:
    daemon.wants = COMPARES
    with dsmfs.open("/w.npy"):
        [track] = daemon.asked(Op.TRACK)
        assert track.kinds == []


def test_a_reader_is_not_tracked_and_cannot_store(daemon: FakeDaemon) -> None:
    with dsmfs.open("/w.npy", "r") as w:
        assert daemon.asked(Op.ATTACH)[0].message.args[0] == 1
        assert daemon.asked(Op.TRACK) == []
        assert not w.array.flags.writeable
        with pytest.raises(PermissionError):
            w.publish()
        w.sync()
        assert daemon.asked(Op.SYNC) == [] and len(daemon.asked(Op.ACQUIRE)) == 1


def test_versions_waits_and_figures(daemon: FakeDaemon) -> None:
    area = daemon.areas["/w.npy"]
    daemon.wants = COMPARES
    with dsmfs.open("/w.npy") as w:
        assert w.version == 0 and w.staleness == float("inf")
        v = w.publish()
        assert v == area.version == w.version == w.acquire()
        assert w.sync() > v
        assert 0.25 <= w.staleness < 60
        assert w.stats == {
            "plane": "memory",
            "version": area.version,
            "publish_seconds": 0.5,
            "tracking": "wp-async",
            "staleness_ms": 250,
        }
        for timeout in (0, 0.01):
            with pytest.raises(TimeoutError) as e:
                w.wait(area.version + 1, timeout)
            assert isinstance(e.value, dsmfs.TimedOutError)
        assert w.wait(area.version) == area.version


@pytest.mark.parametrize(
    ("code", "builtin", "own"),
    [
        (errno.EACCES, PermissionError, dsmfs.AccessError),
        (errno.EPERM, PermissionError, dsmfs.AccessError),
        (errno.ENOENT, FileNotFoundError, dsmfs.NotFoundError),
        (errno.EISDIR, IsADirectoryError, dsmfs.DirectoryError),
        (errno.ETIMEDOUT, TimeoutError, dsmfs.TimedOutError),
        (errno.EINVAL, OSError, dsmfs.OperationError),
        (errno.ENODEV, OSError, dsmfs.PlaneUnavailableError),
    ],
)
def test_a_refusal_is_the_exception_of_its_errno(
    daemon: FakeDaemon, code: int, builtin: type[OSError], own: type[dsmfs.OperationError]
) -> None:
    daemon.refuse[Op.ATTACH] = code, "the reason and what to do"
    with pytest.raises(builtin, match="the reason and what to do") as e:
        dsmfs.open("/w.npy")
    assert isinstance(e.value, own) and e.value.errno == code and e.value.filename == "/w.npy"


def test_nobody_at_the_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSMFS_ATTACH", str(tmp_path / "nothing"))
    with pytest.raises(dsmfs.PlaneUnavailableError, match="nobody answers"):
        dsmfs.open("/w.npy")


def test_a_machine_without_userfaultfd(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> int:
        raise OSError(errno.ENOSYS, "not in this kernel")

    monkeypatch.setattr(_linux, "userfaultfd", none)
    with pytest.raises(dsmfs.PlaneUnavailableError, match="no userfaultfd: not in this kernel"):
        dsmfs.open("/w.npy")
    with dsmfs.open("/w.npy", "r") as w:
        assert w.array[5] == 5


def test_closing_publishes_detaches_and_leaves_arrays_valid(daemon: FakeDaemon) -> None:
    daemon.wants = COMPARES
    w = dsmfs.open("/w.npy")
    array = w.array
    view = array[10:20]
    w.close()
    w.close()
    assert len(daemon.asked(Op.PUBLISH)) == 1
    assert daemon.asked(Op.DETACH) == [], "what is stored into the view is still to be published"
    assert view[0] == 10
    with pytest.raises(ValueError):
        array[0] = 1
    with pytest.raises(dsmfs.ClosedError):
        w.publish()
    with pytest.raises(dsmfs.ClosedError):
        _ = w.array


def test_closing_detaches_when_no_array_is_left(daemon: FakeDaemon) -> None:
    daemon.wants = COMPARES
    w = dsmfs.open("/w.npy")
    w.array[0] = 1
    w.close()
    assert len(daemon.asked(Op.DETACH)) == 1


def test_an_array_keeps_the_area_attached(daemon: FakeDaemon) -> None:
    daemon.wants = COMPARES
    view = dsmfs.open("/w.npy").array[10:20]
    gc.collect()
    assert daemon.asked(Op.DETACH) == []
    view[0] = 3
    assert os.pread(daemon.areas["/w.npy"].memory, 4, 128 + 40) == np.float32(3).tobytes()
    connections = len(mine("socket:"))
    del view
    gc.collect()
    assert len(mine("socket:")) < connections


def mine(kind: str) -> list[str]:
    """Return what of a kind this process has open."""
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            continue
    return [x for x in links if x.startswith(kind)]


def test_after_the_end_of_the_daemon_memory_stays_and_calls_fail(daemon: FakeDaemon) -> None:
    daemon.wants = COMPARES
    w = dsmfs.open("/w.npy")
    daemon.hang_up()
    for call in (w.publish, w.acquire, w.sync):
        with pytest.raises(ConnectionError):
            call()
    w.array[0] = 42
    assert w.array[0] == 42
    w.close()


def test_what_is_no_array_needs_a_type(daemon: FakeDaemon) -> None:
    daemon.wants = COMPARES
    daemon.make("/raw", bytes(range(64)))
    daemon.make("/empty", b"")
    with pytest.raises(dsmfs.FormatError, match="dtype="):
        dsmfs.open("/raw")
    with dsmfs.open("/raw", dtype="u1", offset=10) as w:
        assert w.shape == (54,) and w.array[0] == 10
    with dsmfs.open("/raw", dtype="<u2", shape=(4, 8), order="F") as w:
        assert w.array.flags.f_contiguous and w.array[1, 0] == 0x0302
    with pytest.raises(dsmfs.FormatError, match="64 bytes"):
        dsmfs.open("/raw", dtype="f8", shape=9)
    with pytest.raises(dsmfs.FormatError, match="empty"):
        dsmfs.open("/empty", dtype="u1")
    with pytest.raises(dsmfs.FormatError, match="shape"):
        dsmfs.open("/w.npy", shape=999)
    for wrong in ({"mode": "w"}, {"plane": "x"}, {"order": "K"}):
        with pytest.raises(ValueError):
            dsmfs.open("/raw", **wrong)  # type: ignore[arg-type]


def test_create_without_a_mount(daemon: FakeDaemon) -> None:
    daemon.wants = COMPARES
    with dsmfs.create("/new", (3, 4), "bfloat16", merge="sum", interval=0.02) as w:
        assert w.shape == (3, 4)
        assert daemon.areas["/new"].settings == ["merge sum", "interval 0.020000000s", "dtype bf16"]
        with pytest.raises(OSError, match="through a mount"):
            _ = w.settings
    with pytest.raises(FileExistsError):
        dsmfs.create("/new", (3, 4), "bf16")
    with dsmfs.create("/new", (3, 4), "bf16", exist_ok=True):
        pass
    with pytest.raises(dsmfs.FormatError):
        dsmfs.create("/new", (3, 5), "bf16", exist_ok=True)
    with pytest.raises(dsmfs.FormatError, match="merged"):
        dsmfs.create("/bool", 3, "?", merge="sum")


FORK = """
import os, sys, numpy as np, dsmfs
w = dsmfs.open("/w.npy")
reader = dsmfs.open("/w.npy", "r")
address = w.array.ctypes.data
{before}
pid = os.fork()
if pid == 0:
    assert w.array.ctypes.data == address
    w.array[1] = 11
    assert reader.array[1] == 11
    w.publish()
    os._exit(0)
_, status = os.waitpid(pid, 0)
w.array[2] = 12
w.publish()
print(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_child_is_attached_at_the_same_address(daemon: FakeDaemon, program: Program) -> None:
    assert program(FORK.format(before="")).stdout == "0\n"
    area = daemon.areas["/w.npy"]
    assert np.frombuffer(os.pread(area.memory, 12, 128), "f4").tolist() == [0, 11, 12]
    tracks = daemon.asked(Op.TRACK)
    assert len(tracks) == 2 and len(daemon.asked(Op.ATTACH)) == 4
    assert tracks[0].message.args == tracks[1].message.args
    assert tracks[0].message.attachment != tracks[1].message.attachment


def test_a_forked_child_that_cannot_attach_gets_no_memory(daemon: FakeDaemon, program: Program) -> None:
    out = program(FORK.format(before="os.environ.clear(); os.rename(w._plane._socket, w._plane._socket + '-')")).stdout
    assert out == f"{-signal.SIGSEGV}\n", "the child must die at its first access, and the parent go on"
    assert np.frombuffer(os.pread(daemon.areas["/w.npy"].memory, 12, 128), "f4").tolist() == [0, 1, 12]


def test_fork_of_a_closed_area_does_nothing(daemon: FakeDaemon, program: Program) -> None:
    program("import os, dsmfs\nwith dsmfs.open('/w.npy'): pass\nif os.fork() == 0: os._exit(0)\nos.wait()")
    assert len(daemon.asked(Op.ATTACH)) == 1


def test_errors_leave_no_descriptor(daemon: FakeDaemon) -> None:
    daemon.wants = COMPARES
    before = len(mine("anon_inode:")), len(mine("/memfd:"))
    for op in (Op.ATTACH, Op.TRACK, Op.PUBLISH, Op.DETACH):
        daemon.refuse = {op: (errno.EIO, "no")}
        with pytest.raises(OSError, match="no"), dsmfs.open("/w.npy"):
            pass
    gc.collect()
    assert (len(mine("anon_inode:")), len(mine("/memfd:"))) == before
