"""Programs that know nothing of dsmfs, on two nodes: each is a process of its own, and what one has written another reads."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import dsmfs
import pytest
from conftest import HERE, Program, Talk

ROUNDS = 20


def test_numpy_saves_over_a_name_that_exists(mounts: dsmfs.Cluster, program: Program) -> None:
    """Alternately on two nodes: what is loaded is what was saved last, and a mapping of it stores into that."""
    code = """
import sys, numpy as np
path, i = sys.argv[1], int(sys.argv[2])
if i:
    was = np.load(path)
    assert was.shape == (1000 + i - 1,) and (was == i - 1).all() and was[0] == i - 1, (i, was)
np.save(path, np.full(1000 + i, i))
m = np.load(path, mmap_mode="r+")
m[0] = -1
m.flush()
assert np.load(path)[0] == -1
m[0] = i
m.flush()
"""
    for i in range(ROUNDS):
        program(code, mounts[i % 2] / "a.npy", i)


def test_a_mapping_of_a_file_that_another_node_has_saved_twice(mounts: dsmfs.Cluster, program: Program) -> None:
    """A node that never had the file open maps it and stores: the other reads what was stored."""
    save = "import sys, numpy as np; [np.save(sys.argv[1], np.full(5000, i)) for i in (1, 2)]"
    store = """
import sys, numpy as np
m = np.load(sys.argv[1], mmap_mode="r+")
assert (m == 2).all()
m[::7] = 3
m.flush()
"""
    load = "import sys, numpy as np; a = np.load(sys.argv[1]); assert (a[::7] == 3).all() and a[1] == 2, a"
    for i in range(ROUNDS // 2):
        program(save, mounts[1] / f"{i}.npy")
        program(store, mounts[0] / f"{i}.npy")
        program(load, mounts[1] / f"{i}.npy")


def test_zarr(mounts: dsmfs.Cluster, program: Program) -> None:
    pytest.importorskip("zarr")
    write = """
import sys, numpy as np, zarr
g = zarr.open_group(sys.argv[1], mode="w")
a = g.create_array("a", shape=(100, 40), chunks=(10, 40), dtype="f4")
a[:] = np.arange(4000).reshape(100, 40)
g.create_group("below").attrs["who"] = "first"
"""
    change = """
import sys, numpy as np, zarr
g = zarr.open_group(sys.argv[1], mode="r+")
assert g["below"].attrs["who"] == "first"
assert (g["a"][:] == np.arange(4000).reshape(100, 40)).all()
g["a"][50:60] = -1
g["a"].append(np.full((10, 40), 7, "f4"))
g["below"].attrs["who"] = "second"
"""
    read = """
import sys, numpy as np, zarr
g = zarr.open_group(sys.argv[1], mode="r")
a = g["a"][:]
assert a.shape == (110, 40) and (a[50:60] == -1).all() and (a[100:] == 7).all() and a[49, 39] == 1999
assert g["below"].attrs["who"] == "second" and sorted(g) == ["a", "below"]
"""
    program(write, mounts[0] / "z.zarr")
    program(change, mounts[1] / "z.zarr")
    program(read, mounts[0] / "z.zarr")
    program(read, mounts[2] / "z.zarr")


def test_hdf5(mounts: dsmfs.Cluster, program: Program) -> None:
    """One writer, then readers and another writer on other nodes."""
    pytest.importorskip("h5py")
    write = """
import sys, numpy as np, h5py
with h5py.File(sys.argv[1], "w") as f:
    d = f.create_dataset("d", (300, 100), "f8", chunks=(30, 100), maxshape=(None, 100), compression="gzip")
    d[:] = np.arange(30000).reshape(300, 100)
    f.attrs["who"] = "first"
"""
    change = """
import sys, numpy as np, h5py
with h5py.File(sys.argv[1], "r+") as f:
    assert f.attrs["who"] == "first"
    d = f["d"]
    assert (d[:] == np.arange(30000).reshape(300, 100)).all()
    d.resize((400, 100))
    d[300:] = 5
    f.attrs["who"] = "second"
"""
    read = """
import sys, numpy as np, h5py
with h5py.File(sys.argv[1], "r") as f:
    assert f.attrs["who"] == "second"
    assert f["d"].shape == (400, 100) and (f["d"][300:] == 5).all() and f["d"][299, 99] == 29999
"""
    program(write, mounts[0] / "a.h5")
    program(change, mounts[1] / "a.h5")
    for node in mounts:
        program(read, node / "a.h5")


def test_hdf5_locks_its_files(mounts: dsmfs.Cluster, program: Program, talk: Callable[..., Talk]) -> None:
    """A file that is open for writing on one node is refused on another, until it is closed."""
    pytest.importorskip("h5py")
    write = """
import sys, h5py
with h5py.File(sys.argv[1], "w") as f:
    f["d"] = 1
    f.flush()
    print("open", flush=True)
    input()
    f["d"][()] = 2
print("closed", flush=True)
"""
    read = """
import sys, h5py
try:
    with h5py.File(sys.argv[1], "r") as f:
        print(f["d"][()])
except BlockingIOError:
    print("locked")
"""
    writer = talk(sys.executable, "-c", write, mounts[0] / "a.h5")
    writer.until("open")
    assert program(read, mounts[1] / "a.h5").stdout == "locked\n"
    writer.go()
    writer.until("closed")
    assert program(read, mounts[1] / "a.h5").stdout == "2\n"
    writer.ends_well()


def test_lmdb_read_only(mounts: dsmfs.Cluster, program: Program) -> None:
    """Written on one node; the others only read it. LMDB's own lock file works on one node only, so they open it with lock=False."""
    pytest.importorskip("lmdb")
    write = """
import sys, lmdb
with lmdb.open(sys.argv[1], map_size=8 << 20) as env:
    with env.begin(write=True) as t:
        for i in range(int(sys.argv[2]), int(sys.argv[3])):
            t.put(b"%06d" % i, b"value %d " % i * 20)
    env.sync(True)
"""
    read = """
import sys, lmdb
with lmdb.open(sys.argv[1], readonly=True, lock=False) as env, env.begin() as t:
    n = int(sys.argv[2])
    assert t.stat()["entries"] == n, t.stat()
    assert [k for k, _ in t.cursor()] == [b"%06d" % i for i in range(n)]
    assert all(t.get(b"%06d" % i) == b"value %d " % i * 20 for i in range(n))
"""
    for some in (2000, 3000):
        program(write, mounts[0] / "db", some - 2000, some)
        for node in mounts:
            program(read, node / "db", some)


def test_safetensors(mounts: dsmfs.Cluster, program: Program) -> None:
    pytest.importorskip("safetensors")
    code = """
import sys, numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
path, i = sys.argv[1], int(sys.argv[2])
if i:
    was = load_file(path)
    assert was["a"].shape == (100, i) and (was["a"] == i).all() and (was["b"] == -i).all(), i
    with safe_open(path, "np") as f:
        assert (f.get_slice("a")[3:5] == i).all()
save_file({"a": np.full((100, i + 1), i + 1, "f4"), "b": np.full(3, -i - 1, "i8")}, path)
"""
    for i in range(6):
        program(code, mounts[i % 2] / "m.safetensors", i)


def test_torch_saves_and_loads(mounts: dsmfs.Cluster, program: Program) -> None:
    pytest.importorskip("torch")
    code = """
import sys, torch
from safetensors.torch import load_file, save_file
path, i = sys.argv[1], int(sys.argv[2])
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64))
for p in model.parameters():
    p.data.fill_(i)
if i:
    for kind in (True, False):  # mapped, and read
        was = torch.load(path + ".pt", mmap=kind)
        assert all((v == i - 1).all() for k, v in was.items() if k.endswith(("weight", "bias"))), was
    assert (load_file(path + ".safetensors")["0.weight"] == i - 1).all()
torch.save(model.state_dict(), path + ".pt")
save_file(model.state_dict(), path + ".safetensors")
"""
    for i in range(3):
        program(code, mounts[i % 2] / "m", i)


def test_a_tree_of_tensordict(mounts: dsmfs.Cluster, program: Program) -> None:
    pytest.importorskip("tensordict")
    write = """
import sys, torch
from tensordict import TensorDict
TensorDict({"obs": torch.zeros(100, 8), "next": {"reward": torch.zeros(100, 1)}}, [100]).memmap(sys.argv[1])
"""
    change = """
import os, sys, torch
from pathlib import Path
from tensordict import TensorDict
d = TensorDict.load_memmap(sys.argv[1])
lo = int(sys.argv[2])
assert d.batch_size == (100,)
d[lo : lo + 50] = TensorDict({"obs": torch.full((50, 8), lo + 1.0), "next": {"reward": torch.full((50, 1), lo + 2.0)}}, [50])
for file in Path(sys.argv[1]).rglob("*.memmap"):  # which it leaves to the interval
    fd = os.open(file, os.O_RDWR)
    os.fsync(fd)
    os.close(fd)
"""
    read = """
import sys, torch
from tensordict import TensorDict
d = TensorDict.load_memmap(sys.argv[1])
assert (d["obs"][:50] == 1).all() and (d["obs"][50:] == 51).all() and (d["next", "reward"][50:] == 52).all()
"""
    program(write, mounts[0] / "tree")
    program(change, mounts[1] / "tree", 0)
    program(change, mounts[2] / "tree", 50)
    program(read, mounts[0] / "tree")


LOADER = """
import sys
import numpy as np, torch, dsmfs
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __init__(self, rows):
        self.rows = rows
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, i):
        return torch.as_tensor(self.rows[i])

if __name__ == "__main__":
    path, how = sys.argv[1:]
    rows = dsmfs.open(path, "r") if how == "area" else np.load(path, mmap_mode="r")
    loader = DataLoader(Rows(rows), batch_size=16, num_workers=2, multiprocessing_context="spawn")
    seen = torch.cat(list(loader))
    assert torch.equal(seen[:, 0], torch.arange(200.0)) and (seen[:, 1] == 7).all(), seen
    print("ok")
"""


@pytest.mark.parametrize("how", ["area", "mapping"])
def test_a_data_loader_with_spawned_workers(mounts: dsmfs.Cluster, program: Program, tmp_path: Path, how: str) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "loader.py"
    script.write_text(LOADER)
    write = """
import sys, numpy as np
a = np.lib.format.open_memmap(sys.argv[1], "w+", "f4", (200, 5))
a[:, 0] = np.arange(200); a[:, 1:] = 7
a.flush()
"""
    program(write, mounts[0] / "rows.npy")
    run = "import subprocess, sys; subprocess.run([sys.executable, *sys.argv[1:]], check=True)"
    program(run, script, mounts[1] / "rows.npy", how)


def test_hogwild(mounts: dsmfs.Cluster, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example for PyTorch, on three mounts."""
    pytest.importorskip("torch")
    example = HERE.parent / "examples" / "pytorch" / "hogwild.py"
    if not example.exists():
        pytest.skip("the examples are not here")
    run = "import subprocess, sys; subprocess.run([sys.executable, *sys.argv[1:]], check=True)"
    monkeypatch.setenv("STEPS", "30")
    said = program(run, example, *(node.path for node in mounts)).stdout
    assert "after 30 steps of 3 workers" in said, said
