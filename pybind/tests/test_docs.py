"""What the pages of docs print works as it stands, from the top to the bottom."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import dsmfs
import numpy as np
import pytest
from conftest import HERE, Program

PAGE = HERE.parent / "docs" / "python.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the page is not here")


def blocks(page: Path = PAGE) -> Iterator[str]:
    """Yield the indented blocks of a page."""
    for found in re.finditer(r"(?:^    .*\n|^\n(?=    ))+", page.read_text(), re.M):
        text = re.sub(r"^    ", "", found[0], flags=re.M).strip("\n")
        if text:
            yield text + "\n"


def test_the_page(mounts: dsmfs.Cluster, program: Program, tmp_path: Path) -> None:
    page = list(blocks())
    assert len(page) >= 5
    here = [text.replace("/mnt/dsm", mounts[0].path) for text in page]
    programs = [text for text in here if "__main__" in text]
    program("\n".join(text for text in here if text not in programs))  # one program, in the order of the page
    w = np.load(mounts[1] / "model/w.npy")
    assert w.shape == (1000, 50) and 0.5 < w.mean() < 1
    run = "import subprocess, sys; subprocess.run([sys.executable, *sys.argv[1:]], check=True)"
    for text in programs:
        if "torch" in text:
            pytest.importorskip("torch")
        script = tmp_path / "program.py"
        script.write_text(text)
        program(run, script)
    assert programs and np.load(mounts[2] / "layer.npy").shape == (50, 1000)


def test_workers_of_the_page_on_all_nodes(mounts: dsmfs.Cluster, program: Program) -> None:
    make, work = list(blocks())[:2]
    program(make.replace("/mnt/dsm", mounts[0].path))
    for node in mounts:
        program(work.replace("/mnt/dsm", node.path))
    w = np.load(mounts[0] / "model/w.npy")
    assert abs(w.mean() - (1 - 0.98**300)) < 0.01


def test_the_page_of_modes(mounts: dsmfs.Cluster, program: Program) -> None:
    """Each example is a program of its own, and prints what is behind its lines."""
    examples = [text for text in blocks(PAGE.with_name("modes.md")) if text.startswith("import")]
    assert len(examples) >= 6
    for text in examples:
        wanted = re.findall(r"^ *print\(.*\) +# (.*)$", text, re.M)
        shown = program(text.replace("/mnt/dsm", mounts[0].path)).stdout.splitlines()
        assert shown == wanted, text
