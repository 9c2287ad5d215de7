"""A mount as a whole, and mounting."""

from __future__ import annotations

import os
from pathlib import Path

import dsmfs
import pytest
from dsmfs import _mounts, _rules


def test_members_areas_and_figures(nodes: dsmfs.Cluster) -> None:
    fs = nodes[1]
    assert sorted(m.name for m in fs.members) == ["node1", "node2", "node3"]
    assert all(m.state == "alive" and m.budget == 512 << 20 and not m.leaving for m in fs.members)
    assert sum(m.voter for m in fs.members) == 3
    assert fs.config["mount"] == fs.path and fs.version
    assert isinstance(fs.stats["publishes"], int)
    nodes[0].create("a/b/w.npy", 1000, "f8", merge="sum").close()
    nodes[0].create("v.npy", 10, "i4").close()
    os.symlink("v.npy", fs / "link.npy")
    assert list(fs.areas) == ["v.npy", "a/b/w.npy"] and len(fs.areas) == 2
    info = fs.areas["a/b/w.npy"]
    assert info.size == 8128 and info.settings["merge"] == "sum" and info.path == fs / "a/b/w.npy"
    with info.open("r") as w:
        assert w.shape == (1000,)
    assert info.conflicts == []
    info.clear_conflicts()
    info.clear_conflicts(through=3)
    with dsmfs.open(fs / "link.npy") as w:
        assert w.path == fs / "v.npy"
    for no in ("a", "nothing", "v.npy/x"):
        with pytest.raises(KeyError):
            fs.areas[no]
    assert "a/b/w.npy" in fs.areas and os.path.join(fs, "x") == fs / "x"
    assert "node2" in fs._repr_html_() and "a/b/w.npy" in fs._repr_html_()
    assert dsmfs.Filesystem(fs / "a/b/w.npy").path == fs.path
    with pytest.raises(dsmfs.NotMountedError):
        dsmfs.Filesystem("/proc")


def test_conflicts_of_an_area(tmp_path: Path) -> None:
    line = "n3/7 time=1764000000.250000 offset=4096 length=4 kept=6d696e65"
    file = tmp_path / ".dsm" / "areas" / "d" / "w" / "conflicts"
    file.parent.mkdir(parents=True)
    file.write_text(f"{line} taken=74686579\n{line}\nlost node=n3 bytes=12\nmore node=n3\nsilent node=n4\n")
    info = dsmfs.AreaInfo("d/w", str(tmp_path / "d/w"), 0, 0, _rules.Settings())
    with pytest.warns(RuntimeWarning, match="lost node=n3 bytes=12, more node=n3, silent node=n4"):
        first, second = info.conflicts
    assert first == dsmfs.Conflict(7, 1764000000.25, 4096, b"mine", b"they", "n3") and second.taken is None
    for through, order in (7, "clear 7\n"), (first, "clear n3/7\n"), (None, "clear\n"):
        info.clear_conflicts(through)
        assert file.read_text() == order


def test_mount_starts_a_node_and_ends_it(binary: str, tmp_path: Path) -> None:
    options = {"state": str(tmp_path / "state")}
    with dsmfs.mount(tmp_path / "m", listen="127.0.0.1:0", memory="64MiB", name="solo", options=options) as fs:
        assert [m.name for m in fs.members] == ["solo"]
        with dsmfs.mount(tmp_path / "m") as same:
            assert same.path == fs.path
        assert fs.version, "the second context did not unmount what the first one mounted"
        with pytest.raises(dsmfs.NodeError, match="another program has the port") as e:
            dsmfs.mount(tmp_path / "n", listen=str(fs.members[0].address), options={"state": str(tmp_path / "state2")})
        assert e.value.code == 7
        with fs.create("w.npy", 3, "f4", plane="page-cache"):
            pass
    assert _mounts.find_mount(str(tmp_path / "m")) is None


def test_a_bind_mount_of_a_part(nodes: dsmfs.Cluster, tmp_path: Path) -> None:
    nodes[0].create("part/w.npy", 3, "f4", interval=0).close()
    point = tmp_path / "with a space"
    point.mkdir()
    if os.system(f"mount --bind '{nodes[0] / 'part'}' '{point}'") != 0:
        pytest.skip("no bind mounts here")
    try:
        with dsmfs.open(point / "w.npy") as w, nodes[1].open("part/w.npy") as there:
            w.array += 1
            w.publish()
            there.acquire()
            assert there.array.tolist() == [1, 1, 1]
        where = _mounts.locate(point / "w.npy")
        assert where.inside == "/part/w.npy" and where.top == nodes[0].path
        del w
    finally:
        assert os.system(f"umount '{point}'") == 0


def test_no_binary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DSMFS_BINARY", str(tmp_path / "missing"))
    with pytest.raises(FileNotFoundError, match="DSMFS_BINARY"):
        dsmfs.find_binary()
    with pytest.raises(dsmfs.NotFoundError):
        dsmfs.cluster(1)
    monkeypatch.delenv("DSMFS_BINARY")
    program = tmp_path / "dsmfs"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr("dsmfs._binary._script_directories", lambda: iter([tmp_path]))
    assert dsmfs.find_binary() == str(program)
    monkeypatch.setattr("dsmfs._binary._script_directories", lambda: iter([]))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert dsmfs.find_binary() == str(program)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(dsmfs.NotFoundError, match="make build"):
        dsmfs.find_binary()
