"""The C library and the preloaded one: areas whose pages come when they are touched, against both daemons, and a daemon that is lost."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import dsmfs
import numpy as np
import pytest
from conftest import LIMIT, Talk, kill, stopped

from .fake_daemon import FakeDaemon
from .test_demand import home as home  # fixtures
from .test_demand import small as small
from .test_faults import daemon as daemon

ROOT = Path(__file__).parents[2]
WORDS = 1 << 16  # of the daemon of Python
REAL_WORDS = 2 << 20  # 16 MiB, twice the memory of the small node

pytestmark = pytest.mark.skipif(not (ROOT / "include").exists(), reason="the sources of the C library are not here")


def compiled(out: Path, flags: str, *sources: str) -> str:
    """Compile C sources of the tree; return the path of what they make."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    command = [
        "cc",
        "-g",
        "-Wall",
        "-Wextra",
        "-Werror",
        *flags.split(),
        "-o",
        str(out),
        *(str(ROOT / s) for s in sources),
    ]
    done = subprocess.run([*command, "-pthread"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return str(out)


@pytest.fixture(scope="module")
def demand(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compiled(
        tmp_path_factory.mktemp("c") / "demand",
        "-std=c99 -O1 -fsanitize=undefined -fno-sanitize-recover=undefined",
        "include/test/demand.c",
    )


@pytest.fixture
def fake(daemon: FakeDaemon) -> FakeDaemon:
    """A daemon of Python with the words."""
    daemon.make_absent("/words", np.arange(WORDS, dtype="u8").tobytes())
    return daemon


@pytest.fixture
def words(home: dsmfs.Filesystem) -> str:
    """A file of words at the home; where the small node has it."""
    path = home / "words"
    with open(path, "wb") as f:
        os.setxattr(path, "user.dsm.residency", b"demand")
        f.write(np.arange(REAL_WORDS, dtype="u8").tobytes())
    return "/words"


def attach_socket(node: dsmfs.Filesystem) -> str:
    return (Path(node.path) / ".dsm/attach").read_text().strip()


def test_served_by_python(fake: FakeDaemon, demand: str) -> None:
    subprocess.run([demand, "served", fake.path, "/words"], check=True, timeout=LIMIT)


def test_fails_by_python(fake: FakeDaemon, demand: str, talk: Callable[..., Talk]) -> None:
    t = talk(demand, "fails", fake.path, "/words")
    t.ends_well_after(fake.areas["/words"].silent(), "ready")


def test_gone_by_python(fake: FakeDaemon, demand: str, talk: Callable[..., Talk]) -> None:
    t = talk(demand, "gone", fake.path, "/words")
    t.until("ready")
    fake.end_serving()
    t.go()
    t.ends_well()


def test_served(small: dsmfs.Filesystem, words: str, demand: str) -> None:
    subprocess.run([demand, "served", attach_socket(small), words], check=True, timeout=LIMIT)


@pytest.mark.parametrize("small", ["1s"], indirect=True)
def test_fails(
    small: dsmfs.Filesystem, home: dsmfs.Filesystem, words: str, demand: str, talk: Callable[..., Talk]
) -> None:
    t = talk(demand, "fails", attach_socket(small), words)
    t.ends_well_after(stopped(int(home.config["pid"])), "ready")


def test_gone(small: dsmfs.Filesystem, words: str, demand: str, talk: Callable[..., Talk]) -> None:
    t = talk(demand, "gone", attach_socket(small), words)
    t.until("ready")
    kill(int(small.config["pid"]))
    t.go()
    t.ends_well()


def test_a_daemon_that_is_lost(small: dsmfs.Filesystem, tmp_path: Path, talk: Callable[..., Talk]) -> None:
    flags = "-std=c99 -O1 -fsanitize=undefined -fno-sanitize-recover=undefined"
    t = talk(compiled(tmp_path / "lost", flags, "include/test/lost.c"), "real", attach_socket(small))
    t.until("ready")
    kill(int(small.config["pid"]))
    t.go()
    t.ends_well()


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, str]]:
    """The program of the preloaded library, and the environment to run it in."""
    made = tmp_path_factory.mktemp("shim")
    flags = "-O2 -fPIC -shared -fvisibility=hidden -ftls-model=initial-exec"
    shim = compiled(made / "shim.so", flags, "shim/client.c", "shim/shim.c", "shim/shown.c")
    environment = {k: v for k, v in os.environ.items() if k != "DSMFS_ATTACH"} | {"LD_PRELOAD": shim}
    return compiled(made / "program", "-O1", "shim/test/demand.c"), environment


def test_preloaded(small: dsmfs.Filesystem, words: str, preloaded: tuple[str, dict[str, str]]) -> None:
    program, environment = preloaded
    command = [program, small.path + words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_preloaded_for_one_who_may_only_read(
    small: dsmfs.Filesystem, words: str, preloaded: tuple[str, dict[str, str]]
) -> None:
    program, environment = preloaded
    file = small.path + words
    os.chmod(file, 0o644)
    for path in (program, environment["LD_PRELOAD"], small.path, attach_socket(small)):
        for directory in Path(path).parents:
            if os.stat(directory).st_mode & 0o5 != 0o5:
                os.chmod(directory, 0o755)
    done = subprocess.run(
        [program, file, "reads"],
        env=environment,
        user=65534,
        group=65534,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"{words} stays on the page cache: attach: {words} has residency demand" in done.stderr
