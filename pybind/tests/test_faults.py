"""Areas whose pages come when they are touched, and what a program sees when they do not.

The programs are other processes: one that waits for a page may have the GIL, which the daemon of these tests needs.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import dsmfs
import numpy as np
import pytest
from conftest import Program, Talk
from dsmfs import _linux, _npy
from dsmfs._wire import Op

from .fake_daemon import FakeDaemon

VALUES = np.arange(100_000, dtype="f8")
HEAD = _npy.header(VALUES.dtype, VALUES.shape, False)

PREPARE = """
import ctypes, os, signal, sys, threading
import numpy as np, dsmfs

def tell(what):
    "Say something, and go on when the test says so."
    print(what, flush=True)
    assert sys.stdin.readline()

def fails(operation):
    "Return the error that an operation ends with; its result is never there."
    results = []
    try:
        results.append(operation())
        len(results)
    except dsmfs.OperationError as e:
        assert not results
        return e
    raise AssertionError(f"no error, but {results}")

w = dsmfs.open("/w.npy")
a = w.array
"""


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    try:
        os.close(_linux.userfaultfd())
    except OSError as e:
        pytest.skip(f"no userfaultfd here: {e.strerror}")
    d = FakeDaemon(str(tmp_path / "attach"))
    d.make_absent("/w.npy", HEAD + VALUES.tobytes())
    monkeypatch.setenv("DSMFS_ATTACH", d.path)
    yield d
    d.close()


Client = Callable[[str], Talk]


@pytest.fixture
def client(talk: Callable[..., Talk]) -> Client:
    """Starts a program with `w` and `a`."""
    return lambda code: talk(sys.executable, "-W", "ignore", "-X", "faulthandler", "-c", PREPARE + code)


def test_pages_come_when_they_are_touched(daemon: FakeDaemon, program: Program) -> None:
    area = daemon.areas["/w.npy"]
    assert area.home is not None
    out = program("import dsmfs\nwith dsmfs.open('/w.npy', 'r') as w: print(w.array[50_000], w.array.flags.writeable)")
    assert out.stdout == "50000.0 False\n"
    assert area.home.fetched == 2, "the page of the header and the one that was read"
    assert [t.kinds for t in daemon.asked(Op.TRACK)] == [["anon_inode:[userfaultfd]"]], "readers are served, too"
    program("import dsmfs\nwith dsmfs.open('/w.npy') as w: assert w.array.sum() == sum(range(100_000)); w.array[:] = 1")
    assert os.pread(area.memory, 800_000, len(HEAD)) == np.ones(100_000).tobytes()


OPERATIONS = {
    "load": "a[20_000]",
    "store": "a.__setitem__(20_000, 1.0)",
    "sum": "a[20_000:].sum()",
    "compare": "a == 3",
    "fill": "a.fill(7)",
    "assign": "np.copyto(a[20_000:30_000], 1.0)",
    "add": "np.add(a[20_000:30_000], 1, out=a[20_000:30_000])",
    "dot": "a[:90_000].reshape(300, 300) @ a[:90_000].reshape(300, 300)",
    "copy": "bytes(memoryview(a)[20_000:20_001])",
    "list": "a[20_000:20_002].tolist()",
    "system call": "os.write(sink, a[20_000:20_001])",
}


@pytest.mark.parametrize("where", ["main", "thread"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_page_that_does_not_come_is_an_exception(daemon: FakeDaemon, client: Client, name: str, where: str) -> None:
    area = daemon.areas["/w.npy"]
    system_call = name == "system call"
    c = client(f"""
sink = os.open("/dev/null", os.O_WRONLY)
tell("open")
def run():
    for _ in range(2):
        e = fails(lambda: {OPERATIONS[name]}) if {not system_call} else None
        if e is None:  # the kernel touches the page, and says EFAULT
            try:
                {OPERATIONS[name]}
            except OSError as e:
                assert e.errno == 14
            continue
        assert isinstance(e, dsmfs.FaultError) and isinstance(e, TimeoutError), e
        assert e.filename == "/w.npy" and e.offset % 4096 == 0 and str(e.offset) in str(e), e
        assert w._plane._region._aside == []
    tell("failed")
    {OPERATIONS[name]}
    if {name not in ("store", "fill", "assign", "add")}:
        assert a.sum() == sum(range(100_000))
    global done
    done = True
if {where == "main"}:
    run()
else:
    t = threading.Thread(target=run)
    t.start()
    t.join()
assert done
""")
    c.ends_well_after(area.silent())


def test_the_result_of_a_step_is_not_used(daemon: FakeDaemon, client: Client) -> None:
    c = client("""
tell("open")
other, seen = np.ones(3), []
try:
    x = a[20_000]
    y = x + 1
    other[0] = y
except dsmfs.FaultError:
    seen.append(a[0])
assert seen == [0] and other[0] == 1
try:
    a[20_000:20_010] += 1
    other[0] = 2
except dsmfs.FaultError:
    seen.append(1)
assert len(seen) == 2 and other[0] == 1
""")
    c.ends_well_in(daemon.areas["/w.npy"].silent())


@pytest.mark.parametrize(
    "statement",
    [
        "a[20_000] = 1",
        "a[20_000:] = 1",
        "x = a[20_000]",
        "return a[20_000]",
        "a[20_000:] += 1",
        "a[20_000:].sum()",
        "return a[20_000:].sum()",
        "x = np.dot(a, a)",
        "a.fill(1)",
        "for x in a: pass",
        "del a[20_000]",
        "assert 20_000 in a",
        "view[:] = 1",
        "m[5, 5] = 1",
    ],
)
def test_the_exception_does_not_leave_its_block(daemon: FakeDaemon, client: Client, statement: str) -> None:
    c = client(f"""
assert a[0] == 0
def tried(view, m):
    try:
        {statement}
    except (dsmfs.FaultError, ValueError) as e:
        return e
def within(view, m):
    import contextlib
    with contextlib.suppress(dsmfs.FaultError, ValueError):
        {statement}
    return "suppressed"
tell("open")
e = tried(a[20_000:], a[:90_000].reshape(300, 300)[100:])
assert isinstance(e, dsmfs.FaultError) == {statement != "del a[20_000]"}, e
if not {"return" in statement}:
    assert within(a[30_000:], a[:90_000].reshape(300, 300)[200:]) == "suppressed"
""")
    c.ends_well_in(daemon.areas["/w.npy"].silent())


def test_arrays_on_demand_are_arrays(daemon: FakeDaemon, program: Program) -> None:
    program("""
import pickle, numpy as np, dsmfs
w = dsmfs.open("/w.npy")
a = w.array
assert isinstance(a, np.ndarray) and isinstance(w.array[5:], type(a)) and a[5:].base is not None
for plain in (a + 1, a[[1, 2]], a > 3, np.sqrt(a[:5]), a[:4].reshape(2, 2) @ np.eye(2), np.asarray(a)):
    assert type(plain) is np.ndarray, type(plain)
assert type(a.sum()) is type(a[3]) is np.float64 and np.add.reduce(a) == a.sum()
a += 1
assert type(a) is type(w.array) and np.add(a, 1, out=a) is a and a[0] == 2
w.array += 1
assert a[0] == 3 and pickle.loads(pickle.dumps(a[:3])).tolist() == [3, 4, 5]
""")


def test_stores_behind_a_fault_stay(daemon: FakeDaemon, client: Client) -> None:
    area = daemon.areas["/w.npy"]
    c = client("""
a[:1000] = 5
tell("open")
fails(lambda: a.fill(9))
tell("failed")
assert np.array_equal(a[496:], np.arange(496, 100_000)) or a[496] == 9
""")
    c.until("open")
    with area.silent():
        c.go()
        c.until("failed")
        assert np.frombuffer(os.pread(area.memory, 800, len(HEAD))).tolist() == [9] * 100, "what it stored before"
    c.go()
    c.ends_well()


def test_threads_fail_each_for_itself(daemon: FakeDaemon, client: Client) -> None:
    area = daemon.areas["/w.npy"]
    c = client("""
tell("open")
failed = []
def run(i):
    part = a[20_000 + 10_000 * i:][:10_000]
    for _ in range(2):
        e = fails(lambda: part.sum())
        failed.append(e)
threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
[t.start() for t in threads]
[t.join() for t in threads]
assert [type(e) for e in failed] == 4 * [dsmfs.FaultError], failed
assert w._plane._region._aside == []
tell("failed")
assert a.sum() == sum(range(100_000))
""")
    c.ends_well_after(area.silent())


WORKER = """
c = ctypes.CDLL(None)
touch = ctypes.cast(c.strlen, ctypes.c_void_p)  # what a thread runs that knows no Python
def work(i):
    t = ctypes.c_ulong()
    assert c.pthread_create(ctypes.byref(t), None, touch, ctypes.c_void_p(a.ctypes.data + 8 * i)) == 0
    assert c.pthread_join(t, None) == 0
"""


def test_a_worker_fails_who_waits_for_it(daemon: FakeDaemon, client: Client) -> None:
    area = daemon.areas["/w.npy"]
    c = client(f"""
{WORKER}
tell("open")
e = fails(lambda: work(20_000))
assert isinstance(e, dsmfs.FaultError) and e.offset == (128 + 160_000) // 4096 * 4096, e
assert w._plane._region._aside == []
waits = threading.Event()
other = threading.Thread(target=waits.wait)
other.start()
e = fails(lambda: work(30_000))
assert isinstance(e, dsmfs.FaultError), e
waits.set()
other.join()
tell("failed")
work(20_000)
assert a.sum() == sum(range(100_000))
""")
    c.ends_well_after(area.silent())


def test_many_absent_pages_take_a_few_times_the_limit(daemon: FakeDaemon, client: Client) -> None:
    area = daemon.make_absent("/large", bytes(64 << 20))
    c = client("""
big = dsmfs.open("/large", dtype="u1")
tell("open")
e = fails(lambda: big.array.sum())
assert isinstance(e, dsmfs.FaultError), e
tell("failed")
assert big.array[::4096].sum() == 0
""")
    c.until("open")
    with area.silent():
        c.go()
        c.until("failed")
        assert area.served[0].poisoned < 20, "16384 pages were not there"
    c.go()
    c.ends_well()


def test_without_a_daemon_what_is_not_here_is_gone(daemon: FakeDaemon, client: Client) -> None:
    c = client("""
assert a[5000] == 5000
closed = dsmfs.open("/w.npy")
view = closed.array[:]
closed.close()
tell("open")
for _ in range(2):
    for array in (a, view):
        for operation in (lambda: array[20_000], lambda: array.sum()):
            e = fails(operation)
            assert isinstance(e, dsmfs.DisconnectedError) and isinstance(e, ConnectionError), e
        assert array[5000] == 5000
a[5000] = 1
assert view[5000] == 1
""")
    c.until("open")
    daemon.end_serving()
    c.go()
    c.ends_well()


def test_a_closed_area_is_served_on(daemon: FakeDaemon, client: Client) -> None:
    area = daemon.areas["/w.npy"]
    c = client("""
w.close()
assert a[20_000] == 20_000
tell("closed")
e = fails(lambda: a[30_000])
assert isinstance(e, dsmfs.FaultError), e
tell("failed")
assert a[30_000] == 30_000
""")
    c.ends_well_after(area.silent(), "closed")


def test_beyond_the_end_of_a_shrunk_area(daemon: FakeDaemon, client: Client) -> None:
    area = daemon.areas["/w.npy"]
    c = client("""
tell("open")
e = fails(lambda: a[90_000])
assert e.errno == 6 and "shrunk" in str(e), e
assert a[10] == 10
tell("failed")
assert a[90_000] == 0 and a[10] == 10
""")
    c.until("open")
    os.ftruncate(area.memory, 4096)
    c.go()
    c.until("failed")
    assert area.home is not None
    area.home.content[4096:] = bytes(len(area.home.content) - 4096)
    os.ftruncate(area.memory, area.size)
    c.go()
    c.ends_well()


OTHERS = [
    "os.kill(os.getpid(), signal.SIGBUS)",
    "import mmap; f = os.memfd_create('x'); os.ftruncate(f, 4096); m = mmap.mmap(f, 4096); os.ftruncate(f, 0); m[0]",
]


@pytest.mark.parametrize("how", OTHERS)
def test_other_bus_errors_kill_as_ever(daemon: FakeDaemon, client: Client, how: str) -> None:
    c = client(f"import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); {how}")
    code, text = c.end()
    assert code == -signal.SIGBUS, text
    assert "Fatal Python error: Bus error" in text, "whoever had the signal before gets it"


@pytest.mark.parametrize("how", OTHERS)
@pytest.mark.parametrize("again", ["", "a[0]; faulthandler.enable(); v = dsmfs.open('/w.npy')"])
def test_a_handler_of_a_worker_has_what_is_no_areas(daemon: FakeDaemon, client: Client, again: str, how: str) -> None:
    c = client(f"""
import faulthandler, resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
pid = os.fork()
if pid == 0:
    faulthandler.disable()
    {again}  # its handler goes back to ours then
    faulthandler.enable()
    tell("open")
    assert isinstance(fails(lambda: a[20_000]), dsmfs.FaultError)
    tell("failed")
    {how}
_, status = os.waitpid(pid, 0)
assert os.waitstatus_to_exitcode(status) == -signal.SIGBUS
""")
    c.until("open")
    with daemon.areas["/w.npy"].silent():
        c.go()
        c.until("failed")
    c.go()
    code, text = c.end()
    assert code == 0 and text.count("Fatal Python error: Bus error") == 1, text


LOADER = """
import mmap, os, resource, sys, dsmfs
from torch.utils.data import DataLoader, Dataset

class Samples(Dataset):
    def __init__(self, w):
        self.w = w
    def __len__(self):
        return 2
    def __getitem__(self, i):
        if i == 0:
            return float(self.w[20_000])
        memory = os.memfd_create("full")
        os.ftruncate(memory, 4096)
        full = mmap.mmap(memory, 4096)
        os.ftruncate(memory, 0)
        return full[0]

def next_fails(samples, kind):
    try:
        next(samples)
    except kind as e:
        return str(e)
    raise AssertionError("no error")

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    w = dsmfs.open("/w.npy")
    print("open", flush=True)
    input()
    one = {"batch_size": None, "num_workers": 1, "prefetch_factor": 1}
    samples = iter(DataLoader(Samples(w), multiprocessing_context=sys.argv[1], **one))
    assert "did not come in time" in next_fails(samples, dsmfs.FaultError)
    assert "exited unexpectedly" in next_fails(samples, RuntimeError)
"""


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_workers_of_torch_fail_as_others_and_report_full_memory(
    daemon: FakeDaemon, talk: Callable[..., Talk], tmp_path: Path, how: str
) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "loader.py"
    script.write_text(LOADER)
    c = talk(sys.executable, "-W", "ignore", str(script), how)
    c.until("open")
    with daemon.areas["/w.npy"].silent():
        c.go()
        code, text = c.end()
    assert code == 0 and text.count("insufficient shared memory") == 1, text


def test_a_forked_child_is_served(daemon: FakeDaemon, client: Client) -> None:
    area = daemon.areas["/w.npy"]
    c = client("""
reader = dsmfs.open("/w.npy", "r")
pid = os.fork()
if pid == 0:
    assert a[20_000] == reader.array[20_000] == 20_000
    tell("child")
    for array in (a, reader.array):
        assert isinstance(fails(lambda: array[30_000]), dsmfs.FaultError)
    os._exit(7)
_, status = os.waitpid(pid, 0)
assert os.waitstatus_to_exitcode(status) == 7
tell("parent")
assert a[40_000] == 40_000
""")
    c.ends_well_after(area.silent(), "child", "parent")
    assert len(daemon.asked(Op.TRACK)) == 4


def test_a_debugger_is_not_disturbed_but_by_the_exception(daemon: FakeDaemon, client: Client) -> None:
    c = client("""
events = []
def trace(frame, event, arg):
    if frame.f_code.co_name == "touch":
        events.append(event)
    return trace
def touch():
    x = a[20_000]
    return x
tell("open")
sys.settrace(trace)
e = fails(touch)
assert isinstance(e, dsmfs.FaultError) and events[:2] == ["call", "line"], events
""")
    c.ends_well_in(daemon.areas["/w.npy"].silent())


def test_nothing_is_left_of_an_area(daemon: FakeDaemon, program: Program) -> None:
    program("""
import gc, os, dsmfs
from dsmfs import _faults
fds = len(os.listdir("/proc/self/fd"))
for i in range(5):
    w = dsmfs.open("/w.npy")
    a = w.array
    w.close()
    assert a[0] == 0 and len(_faults._regions) == 1
    del w, a
assert not _faults._regions
assert len(os.listdir("/proc/self/fd")) == fds + 1, "one for all areas: the file of which nothing can be touched"
""")


def test_who_may_only_read_is_on_the_page_cache(daemon: FakeDaemon) -> None:
    why = "it is of residency demand, and you may only read it"
    daemon.refuse[Op.ATTACH] = 19, why
    with pytest.raises(dsmfs.PlaneUnavailableError, match=why):
        dsmfs.open("/w.npy", "r", plane="memory")
