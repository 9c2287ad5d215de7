"""The wheel, and the example of the README."""

from __future__ import annotations

import doctest
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest

PYBIND = Path(__file__).parents[1]


def wheel(tmp_path: Path, **environment: str) -> Path:
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
        [*command, str(PYBIND)],
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


@pytest.mark.usefixtures("binary")
def test_the_readme() -> None:
    failed, tried = doctest.testfile(str(PYBIND / "README.md"), module_relative=False, verbose=False)
    assert tried >= 2 and failed == 0
