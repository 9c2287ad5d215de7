"""The C library with daemons that follow each other."""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Talk
from dsmfs._wire import Op

from .fake_daemon import COMPARES, LASTS
from .test_c import ROOT, compiled
from .test_follow import Daemons
from .test_follow import daemons as daemons  # a fixture

pytestmark = pytest.mark.skipif(not (ROOT / "include").exists(), reason="the sources of the C library are not here")

Step = Callable[..., Talk]


@pytest.fixture(scope="module", params=["address,undefined", "thread"])
def follow(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return compiled(
        tmp_path_factory.mktemp("c") / "follow",
        f"-std=gnu11 -O1 -fsanitize={request.param} -fno-sanitize-recover=all",
        "include/test/follow.c",
    )


@pytest.fixture
def step(daemons: Daemons, follow: str, talk: Callable[..., Talk]) -> Step:
    """Starts a step of the program."""
    os.pwrite(daemons.now.areas["/w.npy"].memory, bytes(4096), 0)
    daemons.now.areas["/w"] = daemons.now.areas.pop("/w.npy")
    daemons.now.publish(daemons.now.areas["/w"])
    return lambda name, *more: talk(follow, name, daemons.now.path, *more)


def test_requests_go_on(daemons: Daemons, step: Step) -> None:
    t = step("requests")
    for i in range(16):
        t.until("ready")
        if i % 3:
            daemons.another()
            t.go()
        else:
            daemons.now.die()
            t.go()
            daemons.follow(1 | LASTS if i % 2 else COMPARES | LASTS)
    t.until("done")
    first, second = daemons.all[:2]
    memory = os.fstat(second.areas["/w"].memory).st_ino
    resumed = sorted(q.message.args for q in second.asked(Op.RESUME))
    assert resumed == [(1, 7, memory, 0), (3, 7, memory, 0)]
    assert {q.message.payload for q in second.asked(Op.RESUME)} == {b"/w"}
    assert first.asked(Op.TRACK)[0].message.args == second.asked(Op.TRACK)[0].message.args
    kinds = {tuple(q.kinds) for d in daemons.all for q in d.asked(Op.TRACK)}
    assert kinds <= {(), ("anon_inode:[userfaultfd]",)}
    t.go()
    t.ends_well()


def test_threads_go_on(daemons: Daemons, step: Step) -> None:
    seed = int(os.environ.get("DSMFS_SEED", random.randrange(1 << 32)))
    print("seed", seed)
    rng = random.Random(seed)
    t = step("threads")
    t.until("ready")
    for _ in range(20):
        daemons.now.await_asked(Op.PUBLISH, rng.randrange(1, 30))
        daemons.now.die()
        daemons.follow(dies_at=rng.choice([set(), set(), {Op.RESUME}, {Op.TRACK}, {Op.WATCH}]))
        if daemons.now.dies_at:
            daemons.now.await_death()
            daemons.follow()
    t.go()
    t.ends_well()
    assert {len(d.asked(Op.RESUME)) for d in daemons.all[1:]} == {1}


def test_a_timeout_ends_a_wait_and_no_resumption(daemons: Daemons, step: Step) -> None:
    t = step("late")
    t.until("ready")
    daemons.now.die()
    t.go()
    t.until("late")
    daemons.follow()
    t.go()
    t.ends_well()
    assert len(daemons.now.asked(Op.RESUME)) == 1


def test_the_homes_do_not_answer_yet(daemons: Daemons, step: Step) -> None:
    t = step("late")
    t.until("ready")
    daemons.now.die()
    t.go()
    t.until("late")
    second = daemons.follow(refuse={Op.RESUME: (errno.ETIMEDOUT, "no home answers")})
    t.go()
    second.await_asked(Op.RESUME, 3)
    second.refuse.clear()
    t.ends_well()
    assert len(second.accepted) == 1


def test_signal_handlers_make_requests(daemons: Daemons, step: Step, follow: str) -> None:
    if b"libtsan" in Path(follow).read_bytes():
        pytest.skip("the sanitizer runs handlers when the signals are blocked by then")
    t = step("signals")
    t.until("ready")
    t.go()
    for _ in range(10):
        daemons.now.await_asked(Op.PUBLISH, 10)
        daemons.now.die()
        time.sleep(0.02)  # for signals while no daemon serves
        daemons.follow()
    t.go()
    t.ends_well()
    assert {len(d.asked(Op.RESUME)) for d in daemons.all[1:]} == {1}


def test_areas_are_left_without_a_daemon(daemons: Daemons, step: Step) -> None:
    t = step("leaves")
    t.until("ready")
    daemons.now.die()
    t.go()
    t.until("left")
    second = daemons.follow()
    t.go()
    t.until("goes on")
    assert len(second.asked(Op.RESUME)) == 2, "both were asked for"
    second.await_asked(Op.DETACH, 1)
    assert len(second.asked(Op.ATTACH)) == 1, "by the child"
    second.die()
    t.go()
    t.ends_well()


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("unknown", "there is no such attachment"),
        ("another", "it is another area"),
        ("untracked", "the machine cannot do it"),
        ("nonsense", "has ended"),
        ("nobody", "has ended"),
        ("no socket", "has ended"),
        ("unflagged", "has ended"),
    ],
)
def test_areas_end(daemons: Daemons, step: Step, how: str, why: str) -> None:
    if how == "unflagged":
        daemons.now.wants = COMPARES
    t = step("ends", why)
    t.until("ready")
    if how == "no socket":
        os.unlink(daemons.now.path)
    daemons.now.die()
    if how == "nobody":
        daemons.now.give_up()
    elif how == "nonsense":
        daemons.follow(nonsense_at={Op.RESUME})
    elif how != "no socket":
        daemons.follow()
    daemons.now.resumes_as = 8 if how == "another" else None
    if how == "unknown":
        daemons.now.areas["/w"].number = 8
    if how == "untracked":
        daemons.now.refuse[Op.TRACK] = 19, "the machine cannot do it"
    t.go()
    t.ends_well()
    assert len(daemons.now.asked(Op.RESUME)) <= 1


def test_attach_and_create_wait_for_a_daemon(daemons: Daemons, step: Step) -> None:
    t = step("makes")
    t.until("ready")
    daemons.now.die()
    t.go()
    daemons.follow()
    t.until("attached")
    daemons.now.die()
    t.go()
    daemons.follow()
    t.until("created")
    daemons.now.dies_at.add(Op.CREATE)
    daemons.now.areas["/new"].number = 9
    del daemons.now.areas["/new"]
    t.go()
    daemons.now.await_death()
    daemons.follow()
    t.until("created")
    daemons.now.dies_at.add(Op.CREATE)
    t.go()
    daemons.now.await_death()
    daemons.follow()
    t.until("created")
    daemons.now.dies_after.add(Op.CREATE)
    t.go()
    daemons.now.await_death()
    daemons.follow()
    t.ends_well()
