"""The wheel, and the example of the README."""

from __future__ import annotations

import doctest
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest

PYBIND = Path(__file__).parents[1]


def wheel(tmp_path: Path, source: Path = PYBIND, **environment: str) -> Path:
    """Build the wheel as pip does, but without fetching anything."""
    pytest.importorskip("hatchling")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-build-isolation",
        "--no-deps",
        "-w",
        str(tmp_path),
    ]
    done = subprocess.run(
        [*command, str(source)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [path] = tmp_path.glob("*.whl")
    return path


def test_the_wheel_carries_the_binary(tmp_path: Path) -> None:
    binary = tmp_path / "program"
    binary.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\x3e\x00" + b"rest")
    binary.chmod(0o755)
    path = wheel(tmp_path, DSMFS_BINARY=str(binary))
    assert path.name.endswith("-py3-none-linux_x86_64.whl")
    with zipfile.ZipFile(path) as z:
        names = z.namelist()
        [script] = [n for n in names if n.endswith(".data/scripts/dsmfs")]
        assert z.read(script) == binary.read_bytes()
        assert "dsmfs/py.typed" in names and not [n for n in names if "test" in n]
        [metadata] = [n for n in names if n.endswith("WHEEL")]
        assert b"Root-Is-Purelib: false" in z.read(metadata)
    fresh = tmp_path / "fresh"
    venv.create(fresh)
    python = str(fresh / "bin" / "python")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", str(path)]
    subprocess.run(install, check=True, timeout=120)
    environment = {k: v for k, v in os.environ.items() if k != "DSMFS_BINARY"}
    environment |= {"PYTHONPATH": str(Path(np.__file__).parents[1]), "PATH": ""}
    found = subprocess.run(
        [python, "-c", "import dsmfs; print(dsmfs.__file__, dsmfs.find_binary())"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert found.returncode == 0, found.stderr
    package, program = found.stdout.split()
    assert package.startswith(str(fresh)) and program == str(fresh / "bin" / "dsmfs")
    assert os.access(program, os.X_OK)


def clone(tmp_path: Path) -> Path:
    """Return a fresh clone of the tree, with what is not committed."""
    if shutil.which("go") is None or not (PYBIND.parent / ".git").exists():
        pytest.skip("no Go, or no clone")
    fresh = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(PYBIND.parent), str(fresh)], check=True, timeout=120)
    listed = subprocess.check_output(["git", "ls-files", "-moz", "--exclude-standard"], cwd=PYBIND.parent, text=True)
    for name in filter(None, listed.split("\0")):
        if (PYBIND.parent / name).exists():
            (fresh / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PYBIND.parent / name, fresh / name)
    return fresh


def test_a_wheel_of_a_fresh_clone_is_what_make_builds(tmp_path: Path) -> None:
    fresh = clone(tmp_path)
    environment = {"DSMFS_BINARY": "", "MAKEFLAGS": ""}
    path = wheel(tmp_path, fresh / "pybind", **environment)
    with zipfile.ZipFile(path) as z:
        [script] = [n for n in z.namelist() if n.endswith(".data/scripts/dsmfs")]
        program = tmp_path / "dsmfs"
        program.write_bytes(z.read(script))
        [metadata] = [n for n in z.namelist() if n.endswith(".dist-info/METADATA")]
        [version] = [line.split()[1] for line in z.read(metadata).decode().splitlines() if line.startswith("Version:")]
    assert version == subprocess.check_output([fresh / "scripts" / "version.sh"], text=True).strip()
    program.chmod(0o755)
    assert subprocess.check_output([program, "version"], text=True).split()[1] == version
    subprocess.run(["make", "build"], cwd=fresh, env={**os.environ, **environment}, check=True, timeout=300)
    assert program.read_bytes() == (fresh / "bin" / "dsmfs").read_bytes()
    if shutil.which("gcc"):
        preloaded = subprocess.check_output([program, "run", "--", "sh", "-c", "echo $LD_PRELOAD"], text=True)
        assert "libdsmfs" in preloaded


def test_the_sdist_keeps_the_version(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(command, cwd=PYBIND, check=True, capture_output=True, timeout=120)
    [archive] = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as t:
        t.extractall(tmp_path, filter="data")
    [source] = [p for p in tmp_path.iterdir() if p.is_dir()]
    path = wheel(tmp_path, source, DSMFS_BINARY="")
    version = source.name.removeprefix("dsmfs-")
    assert path.name == f"dsmfs-{version}-py3-none-any.whl"
    if (PYBIND.parent / "scripts").exists():
        script = PYBIND.parent / "scripts" / "version.sh"
        assert version == subprocess.check_output([script], text=True).strip()


@pytest.mark.usefixtures("binary")
def test_the_readme() -> None:
    failed, tried = doctest.testfile(str(PYBIND / "README.md"), module_relative=False, verbose=False)
    assert tried >= 2 and failed == 0
