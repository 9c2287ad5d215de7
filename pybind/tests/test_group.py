"""Groups of programs on real mounts."""

from __future__ import annotations

import errno
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import dsmfs
import numpy as np
import pytest
from conftest import LIMIT, Talk

#: A member that does what its input says, a line each: an expression of g and w.
WORK = """
import sys, dsmfs, numpy as np
w = dsmfs.open(sys.argv[3]) if len(sys.argv) > 3 else None
def step(more=1):
    w.array += more
    m = w.round(g)
    return m.number, m.missing, set(w.array.ravel().tolist())
with dsmfs.group(sys.argv[1], int(sys.argv[2]), timeout=100) as g:
    print(g.rank, flush=True)
    for line in sys.stdin:
        try:
            print(eval(line), flush=True)
        except dsmfs.Error as e:
            print(type(e).__name__, flush=True)
"""


class Worker:
    """A program that is a member."""

    def __init__(self, talk: Talk) -> None:
        self.talk = talk
        self.rank = -1

    def joined(self) -> None:
        self.rank = int(self.talk.said() or self.talk.end()[1])

    def begin(self, what: str) -> None:
        assert self.talk.process.stdin is not None
        self.talk.process.stdin.write(f"{what}\n".encode())
        self.talk.process.stdin.flush()

    def said(self) -> str:
        return self.talk.said() or self.talk.end()[1]

    def kill(self) -> None:
        self.talk.process.send_signal(signal.SIGKILL)
        self.talk.process.wait()

    def leave(self) -> None:
        self.talk.ends_well()


Start = Callable[..., Worker]


@pytest.fixture
def start(talk: Callable[..., Talk]) -> Start:
    """Starts a member on a node."""

    def begin(node: dsmfs.Filesystem, size: int, area: str | None = None) -> Worker:
        more = [] if area is None else [str(node / area)]
        return Worker(talk(sys.executable, "-W", "ignore", "-c", WORK, str(node / "job"), str(size), *more))

    return begin


def together(members: list[Worker], what: str) -> list[str]:
    """Have all do something, and return what they say of it."""
    for m in members:
        m.begin(what)
    return [m.said() for m in members]


@pytest.fixture
def memory(nodes: dsmfs.Cluster) -> Iterator[dsmfs.Cluster]:
    """The nodes for tests in which several programs of a node add, which is exact on the memory plane only."""
    if os.environ["DSMFS_PLANE"] != "memory":
        pytest.skip("several programs of a node add")
    yield nodes


def test_rounds_add_exactly_while_programs_are_killed_and_come(memory: dsmfs.Cluster, start: Start) -> None:
    memory[0].create("w.npy", 100, "i8", merge="sum", interval=0).close()
    members = [start(memory[i % 3], 4, "w.npy") for i in range(4)]
    for m in members:
        m.joined()
    assert sorted(m.rank for m in members) == [0, 1, 2, 3]
    for number in (1, 2, 3):
        assert set(together(members, "step()")) == {f"({number}, (), {{{4 * number}}})"}

    victim = members.pop(1)
    for m in members:
        m.begin("step()")  # they wait for the fourth
    victim.kill()
    assert {m.said() for m in members} == {f"(4, ({victim.rank},), {{15}})"}

    new = start(memory[1], 4, "w.npy")
    new.joined()
    assert new.rank == victim.rank
    members.append(new)
    assert set(together(members, "step()")) == {"(5, (), {19})"}
    for m in members:
        m.leave()


def test_the_next_round_is_not_in_the_memory_of_who_ends_the_last(memory: dsmfs.Cluster, start: Start) -> None:
    memory[0].create("w.npy", 100, "i8", merge="sum", interval=0).close()
    early, late = (start(memory[0], 2, "w.npy") for _ in range(2))
    for m in (early, late):
        m.joined()
    late.begin("w.array.fill(1) or w.round(g, timeout=0.01)")
    assert late.said() == "TimedOutError"  # it has arrived, and has not seen the end
    early.begin("step(10)")
    assert early.said() == "(1, (), {11})"
    early.begin("w.array.fill(111) or w.round(g, timeout=0.3)")
    assert early.said() == "TimedOutError"
    late.begin("w.round(g).number, set(w.array.tolist())")
    assert late.said() == "(1, {11})"
    late.begin("step(1000)")
    early.begin("w.round(g).number, set(w.array.tolist())")
    assert [late.said(), early.said()] == ["(2, (), {1111})", "(2, {1111})"]


def test_a_mean_is_of_the_members_of_the_round(nodes: dsmfs.Cluster, start: Start) -> None:
    nodes[0].create("w.npy", 100, "f8", merge="mean", interval=0).close()
    on = [0, 1, 2]
    if os.environ["DSMFS_PLANE"] == "memory":
        on.append(1)  # two members share what their node contributes
    members = [start(nodes[i], len(on), "w.npy") for i in on]
    for m in members:
        m.joined()
    full = sum(range(1, len(on) + 1)) * 12 / len(on)
    assert set(together(members, "step(12 * (g.rank + 1))")) == {f"(1, (), {{{full}}})"}
    victim = members.pop()
    for m in members:
        m.begin("step(24)")
    victim.kill()
    assert {m.said() for m in members} == {f"(2, ({victim.rank},), {{{full + 24}}})"}


def test_what_is_accumulated_is_added_by_the_round(memory: dsmfs.Cluster, start: Start) -> None:
    memory[0].create("w.npy", (3, 1 << 18), "f4", merge="sum", interval=0).close()
    members = [start(memory[i], 3, "w.npy") for i in (0, 1, 1)]
    for m in members:
        m.joined()
    give = "w.accumulate(np.full(w.shape, g.rank + 1, 'f4'), g)"
    for _ in range(2):
        assert together(members, give) == ["None"] * 3
    assert together(members, "g.barrier()") == ["OperationError"] * 3
    assert together(members, "set(w.array.ravel().tolist())") == ["{0.0}"] * 3
    assert set(together(members, "step(10)")) == {"(1, (), {42.0})"}
    victim = members.pop(0)
    victim.begin(give)
    assert victim.said() == "None"
    victim.kill()  # nobody else of its node is in the round
    assert set(together(members, "step()")) == {f"(2, ({victim.rank},), {{44.0}})"}


def test_what_cannot_be_accumulated_is_refused(nodes: dsmfs.Cluster) -> None:
    with dsmfs.group(nodes[0] / "job", 1) as g, nodes[0].create("w.npy", (2, 3), "f4", merge="sum", interval=0) as w:
        if w.plane == "page-cache":
            with pytest.raises(dsmfs.PlaneUnavailableError, match="memory plane"):
                w.accumulate(np.ones((2, 3), "f4"), g)
            return
        with pytest.raises(TypeError, match="elements of float64, want float32"):
            w.accumulate(np.ones((2, 3)), g)
        with pytest.raises(ValueError, match=r"shape \(3, 2\), want \(2, 3\)"):
            w.accumulate(np.ones((3, 2), "f4"), g)
        w.accumulate(np.ones((3, 2), "f4").T, g)
        assert g.round().number == 1 and w.array.tolist() == [[1.0] * 3] * 2
        with (
            nodes[0].create("last.npy", 3, "f4") as last,
            pytest.raises(dsmfs.OperationError, match="neither sum nor mean"),
        ):
            last.accumulate(np.ones(3, "f4"), g)
        assert g.barrier().number == 2
        with nodes[0].open("w.npy", "r") as r:
            with pytest.raises(dsmfs.AccessError):
                g.round(r)
            r.accumulate(np.ones((2, 3), "f4"), g)
            assert g.round(r).number == 3 and r.array.tolist() == [[2.0] * 3] * 2


def test_tensors_are_accumulated(memory: dsmfs.Cluster) -> None:
    torch = pytest.importorskip("torch")
    described = {"w": ((2, 3), "bfloat16"), "n": (4, "i8"), "last": ((), "f4")}
    with (
        dsmfs.group(memory[0] / "job", 1) as g,
        memory[0].create("b.npy", (2, 3), "bfloat16", merge="sum", interval=0) as b,
        memory[0].create("m.safetensors", tensors=described, merge="sum", interval=0) as m,
    ):
        brain = torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.bfloat16)
        b.accumulate(torch.nn.Parameter(brain / 2), g)
        b.accumulate((brain / 2).T.contiguous().T, g)
        m.accumulate(brain, g, name="w")
        m.accumulate(np.arange(4), g, "n")
        m.accumulate(torch.tensor(2.5), g, "last")
        assert g.round().number == 1
        assert (b.tensor() == brain).all() and (m.tensor("w") == brain).all()
        assert m.tensors["n"].tolist() == [0, 1, 2, 3] and m.tensors["last"] == 2.5
        for area, name in ((b, None), (m, "w")):
            with pytest.raises(TypeError, match="elements of float32"):
                area.accumulate(torch.ones(2, 3), g, name)
            with pytest.raises(ValueError, match="shape"):
                area.accumulate(brain.T, g, name)
        with pytest.raises(TypeError):
            m.accumulate(brain, g, "n")
        with pytest.raises(KeyError):
            m.accumulate(brain, g, "missing")
        assert g.barrier().number == 2


def test_what_is_seen_of_a_round_is_of_all_its_members(nodes: dsmfs.Cluster, start: Start) -> None:
    nodes[0].create("w.npy", 1 << 20, "i8", merge="sum", placement="one", interval=0).close()
    members = [start(nodes[i], 2, "w.npy") for i in (0, 1)]
    for m in members:
        m.joined()
    seen: set[int] = set()
    with nodes[2].open("w.npy", "r") as reader:
        for number in range(1, 6):
            members[0].begin("step()")
            while not waits(nodes[0]):
                pass
            seen.update(np.unique(reader.array).tolist())
            members[1].begin("step()")
            while groups(nodes[0]).count(f" round={number} ") == 0:
                seen.update(np.unique(reader.array).tolist())
            seen.update(np.unique(reader.array).tolist())
            assert [m.said() for m in members] == [f"({number}, (), {{{2 * number}}})"] * 2
        reader.acquire()
        seen.update(np.unique(reader.array).tolist())
    assert seen <= {0, 2, 4, 6, 8, 10} and 10 in seen


def groups(node: dsmfs.Filesystem) -> str:
    return (Path(node.path) / ".dsm/groups").read_text()


def waits(node: dsmfs.Filesystem) -> bool:
    return " awaited=" in groups(node)


def test_barriers_counters_and_ticks(nodes: dsmfs.Cluster, start: Start) -> None:
    members = [start(nodes[i], 3) for i in range(3)]
    for m in members:
        m.joined()
    assert set(together(members, "g.barrier()")) == {"Meeting(number=1, members=(0, 1, 2), missing=())"}
    values = together(members, "[g.counter('n').add(2) for _ in range(50)][-1]")
    assert max(map(int, values)) == 300
    assert together(members[:1], "g.counter('n').value, g.counter('n').add(-300)") == ["(300, 0)"]
    assert together(members[:1], "[g.tick(3) for _ in range(3)]") == ["[1, 2, 3]"]
    assert together(members[:1], "g.tick(3, timeout=0.01)") == ["TimedOutError"]
    members[0].begin("g.await_slowest(3)")
    together(members[1:], "g.tick(3)")
    assert members[0].said() in ("3", "4")  # it may have heard of the others before
    assert together(members[:1], "g.barrier(timeout=0.01)") == ["TimedOutError"]
    assert set(together(members, "g.barrier().number")) == {"2"}
    stats = (Path(nodes[0].path) / ".dsm/stats").read_text()
    assert "group_ticks_ahead_1 0\n" not in stats and "group_members 1\n" in stats
    for m in members:
        m.leave()


@pytest.mark.parametrize("coordinates", [True, False])
def test_a_node_is_killed_in_a_round(
    binary: str, start: Start, coordinates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSMFS_PLANE", "memory")
    with dsmfs.cluster(4, memory="64MiB") as nodes:
        members = [start(n, 4) for n in nodes]
        for m in members:
            m.joined()
        values = together(members, "g.counter().add(1)")
        assert sorted(values) == ["1", "2", "3", "4"]
        dies = next(i for i, n in enumerate(nodes) if coordinator(n) == coordinates)
        home = nodes[dies - 1]  # of the area, which must survive
        members.pop(dies).kill()
        for i in range(1000):
            home.create(f"{i}.npy", 10, "i8", merge="sum", interval=0).close()
            if at_home(home, f"{i}.npy"):
                break
        assert set(together(members, "g.barrier().missing")) == {f"({missing(members)},)"}

        late = start(nodes[dies], 4)
        late.joined()
        together(members, f"globals().update(w=dsmfs.open(g.path.replace('job', '{i}.npy')))")
        late.begin(f"globals().update(w=dsmfs.open(g.path.replace('job', '{i}.npy')))")
        late.said()
        assert set(together([*members, late], "step()")) == {"(2, (), {4})"}
        for m in members:
            m.begin("step()")
        nodes.kill(dies)
        late.talk.process.kill()
        assert {m.said() for m in members} == {f"(3, ({late.rank},), {{7}})"}
        assert set(together(members, "step()")) == {f"(4, ({late.rank},), {{10}})"}
        more = {int(v) for v in together(members, "g.counter().add(1)")}
        assert len(more) == 3 and max(more) <= 7 and not more & {int(v) for i, v in enumerate(values) if i != dies}
        for m in members:
            m.leave()


def missing(members: list[Worker]) -> int:
    return ({0, 1, 2, 3} - {m.rank for m in members}).pop()


def coordinator(node: dsmfs.Filesystem) -> bool:
    return "groups_coordinated 1\n" in (Path(node.path) / ".dsm/stats").read_text()


def at_home(node: dsmfs.Filesystem, name: str) -> bool:
    home = (Path(node.path) / ".dsm/areas" / name / "home").read_text().split()
    own = (Path(node.path) / ".dsm/config").read_text().split("\n", 1)[0].split()[1]
    return home == [own]


def test_who_does_not_fit_is_told(nodes: dsmfs.Cluster) -> None:
    with pytest.raises(dsmfs.TimedOutError, match="1 of 2 came in time"):
        dsmfs.group(nodes[0] / "job", 2, timeout=0.05)
    with pytest.raises(ValueError):
        dsmfs.group(nodes[0] / "job", 2, timeout=-1)
    for size in (0, -1, -(1 << 70)):
        with pytest.raises(dsmfs.OperationError, match="1 to 256"):
            dsmfs.group(nodes[0] / "job", size)
    with pytest.raises(dsmfs.OperationError):
        dsmfs.group(nodes[0] / "job", 1 << 70)
    with pytest.raises(TypeError):
        dsmfs.group(nodes[0] / "job", 1.5)  # type: ignore[arg-type]
    with dsmfs.group(nodes[0] / "job", 1) as g:
        assert (g.rank, g.size, g.number, g.closed) == (0, 1, 0, False) and "rank 0 of 1" in repr(g)
        with pytest.raises(dsmfs.OperationError, match="the group has size 1, not 2"):
            dsmfs.group(nodes[1] / "job", 2)
        with pytest.raises(dsmfs.TimedOutError, match="no rank is free"):
            dsmfs.group(nodes[1] / "job", 1, timeout=0.05)
        with nodes[0].create("w.npy", 3, "f4") as w, nodes[0].create("v.npy", 3, "f4") as v:
            assert w.round(g).number == 1
            for twice in ((w, w), (w, v, nodes[0].open("w.npy"))):
                with pytest.raises(dsmfs.OperationError, match="twice") as e:
                    g.round(*twice)
                assert e.value.errno == errno.EINVAL
            assert g.round(v, w).number == 2
        with nodes[0].open("w.npy", "r") as r, pytest.raises(dsmfs.AccessError):
            r.round(g)
        for wrong in ({"slack": -1}, {"slack": 1 << 64}, {"timeout": -1}, {"timeout": math.nan}):
            with pytest.raises(ValueError):
                g.tick(**wrong)
        for call in (g.tick, g.counter("steps").add):
            with pytest.raises(TypeError):
                call(1.5)  # type: ignore[arg-type]
        assert g.clock == 0 and g.tick(timeout=1e300) == 1 and g.clock == 1
        pid = os.fork()
        if pid == 0:
            try:
                g.barrier()
            except dsmfs.AccessError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0 and g.barrier().number == 3
    assert g.closed
    g.leave()
    with pytest.raises(dsmfs.ClosedError):
        g.barrier()
    with dsmfs.group(nodes[1] / "job", 1) as g:
        assert g.number == 0  # a new life


def test_who_calls_something_else_is_told(nodes: dsmfs.Cluster) -> None:
    other: list[dsmfs.Group] = []
    joiner = threading.Thread(target=lambda: other.append(dsmfs.group(nodes[1] / "job", 2)))
    joiner.start()
    with dsmfs.group(nodes[0] / "job", 2) as one, nodes[1].create("w.npy", 3, "i8", merge="sum") as w:
        joiner.join()
        with other[0] as two:
            with pytest.raises(dsmfs.TimedOutError):
                one.barrier(timeout=0.05)
            w.array[:] = 1
            with pytest.raises(
                dsmfs.OperationError, match=f"number 1 is a barrier of rank {one.rank}, and a round of this"
            ) as e:
                w.round(two)
            assert e.value.errno == errno.EINVAL and w.array.tolist() == [1, 1, 1] and two.number == 0
            with pytest.raises(dsmfs.OperationError, match="has begun number 1 as a barrier"):
                one.round()
            first = threading.Thread(target=one.barrier)
            first.start()
            assert two.barrier(timeout=LIMIT).number == 1
            first.join()


def test_a_round_that_is_over_is_not_called_again(nodes: dsmfs.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a round that has ended, without what was accumulated, the daemon says ETIMEDOUT too."""
    with dsmfs.group(nodes[0] / "job", 1) as g:
        assert g.barrier().number == 1

        def over(*_: object) -> None:
            error = dsmfs.TimedOutError(errno.ETIMEDOUT, "what was accumulated is not in it")
            error._meeting = 2
            raise error

        connection = g._connection
        assert connection is not None
        with monkeypatch.context() as patch:
            patch.setattr(connection, "call", over)
            with pytest.raises(dsmfs.OperationError, match=r"has ended: .*what was accumulated") as e:
                g.round()
        assert e.value.errno == errno.EIO and not isinstance(e.value, dsmfs.TimedOutError) and g.number == 2


def test_a_forked_process_is_told_while_a_thread_waits(nodes: dsmfs.Cluster) -> None:
    with dsmfs.group(nodes[0] / "job", 1) as g:
        with g._turn:  # as a thread in a call has it
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    g.barrier()
                except dsmfs.AccessError:
                    code = 0
                finally:
                    os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_interrupt_frees_who_waits_at_once(nodes: dsmfs.Cluster) -> None:
    other: list[dsmfs.Group] = []
    joiner = threading.Thread(target=lambda: other.append(dsmfs.group(nodes[1] / "job", 2)))
    joiner.start()
    with dsmfs.group(nodes[0] / "job", 2) as g:
        joiner.join(LIMIT)
        main = threading.get_ident()
        waits = threading.Timer(0.05, lambda: signal.pthread_kill(main, signal.SIGINT))
        waits.start()
        with pytest.raises(KeyboardInterrupt):
            g.barrier()
        waits.join()
        meets = threading.Thread(target=other[0].barrier)
        meets.start()
        assert g.barrier().number == 1
        meets.join(LIMIT)
    other[0].leave()


#: A member that is a shell: its arguments are the mount and the value that the file has when both have added to it.
SHELL = """
exec 9<>$1/.dsm/areas/job/group
say() { echo "$*" >&9; read -r answer <&9; echo "$answer"; }
say barrier
say join 2
say barrier
printf "$2" | dd of=$1/w bs=1 seek=$2 conv=notrunc status=none
say round w
cat $1/w; echo
say add n 2 >/dev/null
say barrier
say add n 0
say tick 1
say nonsense
cat $1/.dsm/groups >&2
exec 9>&-
"""


def test_a_descriptor_of_a_shell_is_a_membership(mounts: dsmfs.Cluster) -> None:
    for name, text in (("job", ""), ("w", "..")):
        (Path(mounts[0].path) / name).write_text(text)
    shells = [
        subprocess.Popen(
            ["bash", "-c", SHELL, "member", mounts[i].path, str(i)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    ranks = set()
    for s in shells:
        out, err = s.communicate(timeout=LIMIT)
        lines = out.splitlines()
        assert lines[0] == "error: join SIZE comes first", err
        ranks.add(lines[1])
        assert lines[2:7] == ["number=1 missing=", "number=2 missing=", "01", "number=3 missing=", "value=4"]
        assert lines[7].startswith("clock=1 ahead=") and lines[8].startswith("error: want join")
        assert " size=2 members=" in err and " round=3 ranks=" in err
    assert ranks == {"rank=0 size=2", "rank=1 size=2"}
    end = time.monotonic() + LIMIT
    while True:  # a shell leaves when the kernel releases its descriptor, which may be after its end
        try:
            with dsmfs.group(mounts[0] / "job", 1, timeout=LIMIT):
                break
        except dsmfs.OperationError as e:
            if "has size 2" not in str(e) or time.monotonic() > end:
                raise
        time.sleep(0.01)


def test_an_interrupted_read_of_a_shell_keeps_the_answer(mounts: dsmfs.Cluster) -> None:
    (Path(mounts[0].path) / "job").touch()
    fd = os.open(mounts[0] / ".dsm/areas/job/group", os.O_RDWR)
    try:
        os.write(fd, b"join 1\njoin 1\n")
        assert os.read(fd, 5) == b"rank=" and os.read(fd, 100) == b"0 size=1\n"
        assert os.read(fd, 1000).startswith(b"error: ")
        main = threading.get_ident()
        later = threading.Timer(0.05, lambda: signal.pthread_kill(main, signal.SIGINT))
        later.start()
        with pytest.raises(KeyboardInterrupt):
            os.read(fd, 100)
        later.join()
        os.write(fd, b"barrier\n")
        assert os.read(fd, 100) == b"number=1 missing=\n"
    finally:
        os.close(fd)


def test_a_shell_may_use_what_its_supplementary_groups_may(mounts: dsmfs.Cluster) -> None:
    root = Path(mounts[0].path)
    for directory in (root, *root.parents):
        if os.stat(directory).st_mode & 0o5 != 0o5:
            os.chmod(directory, 0o755)
    (root / "job").touch()
    os.chmod(root / "job", 0o666)
    script = "exec 9<>$1/.dsm/areas/job/group; for line in 'join 1' \"round $2\"; do echo $line >&9; read -ru 9 answer; done; echo $answer"
    for mode, group_may in ((0o660, True), (0o606, False)):
        with mounts[0].create(f"{mode:o}.npy", 8, "i8") as w:
            w.publish()
        os.chown(root / f"{mode:o}.npy", 0, 4242)
        os.chmod(root / f"{mode:o}.npy", mode)
        for more in ([4242], []):
            shell = subprocess.run(
                ["bash", "-c", script, "member", root, f"{mode:o}.npy"],
                user=65534,
                group=65534,
                extra_groups=more,
                capture_output=True,
                text=True,
                timeout=LIMIT,
                check=True,
            )
            may = group_may == bool(more)
            assert shell.stdout.startswith("number=1 missing=" if may else "error: "), (oct(mode), more, shell)
