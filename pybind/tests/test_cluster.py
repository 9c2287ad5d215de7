"""A cluster of this machine, however it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import dsmfs
import pytest
from conftest import LIMIT, Program, Talk, has_ended
from dsmfs._guard import _end_node


def processes(directory: str) -> dict[int, str]:
    """Return the commands of the processes of a cluster, by pid."""
    found = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if directory in command and pid != os.getpid():
            found[pid] = command
    return found


def left(directory: str) -> list[str]:
    """Return what is left of a cluster: its directory, mounts and processes."""
    found = [directory] if os.path.exists(directory) else []
    found += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if directory in line]
    return found + list(processes(directory).values())


def watched(directory: str) -> list[int]:
    """Return descriptors of the processes of a cluster that is up."""
    pids = processes(directory)
    assert len(pids) >= 3, "the guard, dsmfs dev and a node"
    return [os.pidfd_open(pid) for pid in pids]  # none ends by itself


def await_nothing_left(directory: str, watched: list[int]) -> None:
    """Fail if a cluster whose owner has ended does not end too."""
    assert all([has_ended(fd) for fd in watched]), processes(directory)
    assert not left(directory)


def test_the_end_of_the_context_leaves_nothing(binary: str) -> None:
    with dsmfs.cluster(2, memory="64MiB") as nodes:
        assert len(nodes) == 2 and nodes[1].path == f"{nodes.directory}/node2" and len(nodes[:1]) == 1
        assert "node1" in nodes._repr_html_() and "of 2" in repr(nodes)
        assert left(nodes.directory)
    nodes.close()
    assert not left(nodes.directory) and not os.path.exists(nodes.directory)


def test_a_given_directory_stays(binary: str, tmp_path: Path) -> None:
    with dsmfs.cluster(1, str(tmp_path), memory="64MiB") as nodes:
        assert nodes[0].path == str(tmp_path / "node1")
    assert os.listdir(tmp_path) == []


def test_arrays_and_descriptors_in_use_do_not_keep_a_mount(binary: str) -> None:
    with dsmfs.cluster(1, memory="64MiB") as nodes:
        area = nodes[0].create("w.npy", 5000, "f4", plane="page-cache")
        area.array += 1
        area.publish()
        fd = os.open(nodes[0] / "w.npy", os.O_RDONLY)
    assert not left(nodes.directory)
    with contextlib.suppress(OSError):
        os.close(fd)
    with pytest.raises(OSError):
        area.close()


def test_dropping_it_ends_it(binary: str) -> None:
    directory = dsmfs.cluster(1, memory="64MiB").directory
    assert not left(directory)


@pytest.mark.parametrize(
    "how", ["os._exit(1)", "os.kill(os.getpid(), 9)", "sys.exit()", "1 / 0", "os.fork(); sys.exit()"]
)
def test_the_end_of_the_program_ends_it(binary: str, talk: Callable[..., Talk], how: str) -> None:
    code = (
        f"import os, sys, dsmfs; c = dsmfs.cluster(2, memory='64MiB'); print(c.directory, flush=True); input(); {how}"
    )
    program = talk(sys.executable, "-c", code)
    directory = program.said()
    there = watched(directory)
    program.go()
    program.end()
    await_nothing_left(directory, there)


def test_it_does_not_outlive_its_program_because_of_a_fork(binary: str, talk: Callable[..., Talk]) -> None:
    program = talk(
        sys.executable,
        "-c",
        """
import os, signal, dsmfs
c = dsmfs.cluster(1, memory="64MiB")
pid = os.fork()
if pid == 0:
    signal.pause()
print(c.directory, pid, flush=True)
input()
os.kill(os.getpid(), signal.SIGKILL)
""",
    )
    directory, _, fork = program.said().rpartition(" ")
    try:
        there = watched(directory)
        program.go()
        await_nothing_left(directory, there)
    finally:
        os.kill(int(fork), signal.SIGKILL)


def test_it_needs_no_small_descriptors(binary: str, program: Program) -> None:
    program("""
import os, resource, dsmfs
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 2000), most))
while os.open("/dev/null", os.O_RDONLY) < 1024:
    pass
with dsmfs.cluster(1, memory="64MiB", timeout=1e9) as c:
    c.add()
""")


def test_a_node_that_dies_is_reported_and_leaves_nothing(binary: str) -> None:
    nodes = dsmfs.cluster(2, memory="64MiB")
    os.kill(int(nodes[1].config["pid"]), signal.SIGKILL)
    nodes._guard.wait(LIMIT)
    with pytest.raises(dsmfs.NodeError, match="node2") as e:
        nodes.close()
    assert e.value.code == 14
    assert not left(nodes.directory) and not os.path.exists(nodes.directory)


def test_nodes_are_killed_and_added(binary: str) -> None:
    with dsmfs.cluster(3, memory="64MiB") as nodes:
        pid = int(nodes[2].config["pid"])
        gone = nodes[2].path
        process = os.pidfd_open(pid)
        nodes.kill(2)
        assert has_ended(process) and len(nodes) == 2 and os.listdir(gone) == []
        more = nodes.add()
        assert more is nodes[-1] and len(nodes) == 3 and more.path == f"{nodes.directory}/node4"
        assert "node4" in nodes._repr_html_() and "node3" not in nodes._repr_html_()
        os.mkdir(more / "d")
        assert os.path.isdir(nodes[0] / "d") and os.path.isdir(nodes[1] / "d")
        assert {"node1", "node2", "node4"} <= {m.name for m in more.members}
        with pytest.raises(IndexError):
            nodes.kill(3)
    assert not left(nodes.directory) and not os.path.exists(nodes.directory)
    with pytest.raises(dsmfs.NodeError, match="ended"):
        nodes.add()


def test_a_node_that_is_stopped_outlives_nobody(binary: str) -> None:
    """Stop a node and kill its dsmfs dev. The kernel lets it go on then, for it is in an orphaned process group."""
    nodes = dsmfs.cluster(1, memory="64MiB")
    node = int(nodes[0].config["pid"])
    dev = int(Path(f"/proc/{node}/stat").read_text().rpartition(")")[2].split()[1])
    there = watched(nodes.directory)
    os.kill(node, signal.SIGSTOP)
    os.kill(dev, signal.SIGKILL)
    with pytest.raises(dsmfs.NodeError):
        nodes.close()
    await_nothing_left(nodes.directory, there)


def test_the_guard_kills_a_node_that_hangs_and_nobody_else(talk: Callable[..., Talk], tmp_path: Path) -> None:
    directory = str(tmp_path / "cluster")
    node = talk(sys.executable, "-c", "print('up', flush=True); input()", directory)
    other = talk(sys.executable, "-c", "print('up', flush=True); input()", str(tmp_path / "another"))
    for t in (node, other):
        t.until("up")
        _end_node(t.process.pid, directory)
    assert node.process.wait(LIMIT) == -signal.SIGKILL
    other.go()
    other.ends_well()
    _end_node(node.process.pid, directory)  # gone


def test_a_cluster_that_does_not_start(binary: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(dsmfs.NodeError, match="--nodes") as e:
        dsmfs.cluster(1000)
    assert e.value.code == 2
    silent = tmp_path / "dsmfs"
    silent.write_text("#!/bin/sh\nexec sleep 1000\n")
    silent.chmod(0o755)
    monkeypatch.setenv("DSMFS_BINARY", str(silent))
    with pytest.raises(dsmfs.NodeError, match="not ready within"):
        dsmfs.cluster(1, str(tmp_path / "c"), timeout=0.2)
    assert left(str(tmp_path / "c")) in ([], [str(tmp_path / "c")])
