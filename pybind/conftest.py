"""Fixtures: a cluster of three nodes for all tests, and programs that run beside them.

pytest puts this directory into sys.path because of this file: the tests need no installation.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import dsmfs
import hypothesis
import pytest

HERE = Path(__file__).parent
BUILT = HERE.parent / "bin" / "dsmfs"
if "DSMFS_BINARY" not in os.environ and BUILT.exists():
    os.environ["DSMFS_BINARY"] = str(BUILT)
TORCH = HERE.parent / "scripts" / "torch.sh"  # not in the sdist
packages = subprocess.check_output([TORCH, "--where"], text=True).strip() if TORCH.exists() else ""
if packages:
    sys.path.append(packages)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), packages, os.environ.get("PYTHONPATH")]))
os.environ.pop("DSMFS_ATTACH", None)

# Examples that failed are printed, so that nothing needs to be kept in the tree.
hypothesis.settings.register_profile("dsmfs", database=None, print_blob=True)
hypothesis.settings.load_profile("dsmfs")

# A shell has what it runs in the background ignore SIGINT, and tests interrupt themselves.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

LIMIT = 300  # seconds that a program of a test may take: it bounds a hang


def missing() -> str | None:
    """Return why this machine cannot mount, None if it can."""
    if os.geteuid() != 0:
        return "mounting needs root"
    if not os.path.exists("/dev/fuse"):
        return "there is no /dev/fuse"
    try:
        dsmfs.find_binary()
    except dsmfs.NotFoundError as e:
        return str(e.strerror)
    return None


@pytest.fixture(scope="session")
def binary() -> str:
    """The path of dsmfs, on a machine that can mount."""
    why = missing()
    if why is not None:
        pytest.skip(why)
    return dsmfs.find_binary()


@pytest.fixture(scope="session")
def cluster_of_three(binary: str) -> Iterator[dsmfs.Cluster]:
    """One cluster for all tests."""
    with dsmfs.cluster(3, memory="512MiB") as nodes:
        yield nodes
    assert nodes.directory not in Path("/proc/self/mountinfo").read_text(), "the cluster left a mount"
    assert not os.path.exists(nodes.directory)


@pytest.fixture(params=["page-cache", "memory"])
def nodes(
    cluster_of_three: dsmfs.Cluster, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dsmfs.Cluster]:
    """Three nodes of one filesystem, which is empty before and after the test; on either plane."""
    if request.param == "memory" and not os.path.exists(cluster_of_three[0] / ".dsm/attach"):
        pytest.skip("this dsmfs has no /.dsm/attach")
    monkeypatch.setenv("DSMFS_PLANE", request.param)
    yield from emptied(cluster_of_three)


@pytest.fixture
def mounts(cluster_of_three: dsmfs.Cluster) -> Iterator[dsmfs.Cluster]:
    """Three nodes likewise, for programs that only have the mount."""
    yield from emptied(cluster_of_three)


def emptied(nodes: dsmfs.Cluster) -> Iterator[dsmfs.Cluster]:
    """Check that there is nothing before a test, and see to it afterwards."""
    assert list(nodes[0].areas) == []
    yield nodes
    for directory, below, files in os.walk(nodes[0].path, topdown=False):
        for name in files:
            os.unlink(os.path.join(directory, name))
        for name in below:
            os.rmdir(os.path.join(directory, name))


Program = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def program() -> Program:
    """Runs Python code with arguments in a process of its own; fails the test if that fails."""

    def run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    return run


class Talk:
    """A program that talks with its test: it says a word, a line of its output, and goes on when it has a line of input."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def said(self) -> str:
        """Wait until it has said something, or ended; return what, or nothing."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().strip()

    def until(self, what: str) -> None:
        """Wait until it has said something, which must be that."""
        line = self.said()
        assert line == what, f"it said {line!r}\n{self.end()[1]}"

    def go(self) -> None:
        """Let it go on."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def end(self) -> tuple[int, str]:
        """Wait until it has ended; return how, and what it said of errors."""
        _, text = self.process.communicate(timeout=LIMIT)
        return self.process.returncode, text.decode()

    def ends_well(self) -> None:
        """Wait until it has ended without an error."""
        code, text = self.end()
        assert code == 0, text

    def ends_well_in(self, trouble: AbstractContextManager[None], before: str = "open") -> None:
        """Let it go from a word to its end in trouble."""
        self.until(before)
        with trouble:
            self.go()
            self.ends_well()

    def ends_well_after(
        self, trouble: AbstractContextManager[None], before: str = "open", after: str = "failed"
    ) -> None:
        """Let it go from a word to the next in trouble, and to its end without."""
        self.until(before)
        with trouble:
            self.go()
            self.until(after)
        self.go()
        self.ends_well()


@pytest.fixture
def talk() -> Iterator[Callable[..., Talk]]:
    """Starts a program by its command; it does not outlive the test."""
    started: list[Talk] = []

    def start(*command: str) -> Talk:
        started.append(Talk(*command))
        return started[-1]

    yield start
    for t in started:
        t.process.kill()
        t.process.communicate()


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Have a process do nothing meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        await_stop(pid)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def await_stop(pid: int) -> None:
    """Return when no thread comes back to the program: on a busy machine some run on until another, which has the signal, is scheduled.

    One that waits in the kernel (D) stops before it comes back. It may wait for what the process itself would do.
    """
    end = time.monotonic() + LIMIT
    while "T" not in (states := thread_states(pid)) or states - {"T", "D"}:
        assert time.monotonic() < end, f"process {pid} does not stop: {states}"
        time.sleep(0.001)


def thread_states(pid: int) -> set[str]:
    """Return the states of the threads of a process."""
    return {stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")}


def has_ended(pidfd: int) -> bool:
    """Wait until a process has ended, and close its descriptor; tell whether it has in time."""
    try:
        return bool(select.select([pidfd], [], [], LIMIT)[0])
    finally:
        os.close(pidfd)


def kill(pid: int) -> None:
    """Kill a process, and wait until it has ended."""
    process = os.pidfd_open(pid)
    signal.pidfd_send_signal(process, signal.SIGKILL)
    assert has_ended(process)
