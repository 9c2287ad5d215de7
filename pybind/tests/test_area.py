"""Areas on real mounts, with programs on other nodes."""

from __future__ import annotations

import errno
import math
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dsmfs
import numpy as np
import pytest
from conftest import LIMIT, Program

ADD = """
import sys, numpy as np, dsmfs
with dsmfs.open(sys.argv[1]) as w:
    for _ in range(int(sys.argv[2])):
        w.array += 1
        w.sync()
"""


def test_a_store_is_seen_on_another_node_after_publish(nodes: dsmfs.Cluster, program: Program) -> None:
    with nodes[0].create("w.npy", (3, 4), "f8", interval=0) as w:
        w.array[1, 2] = 42
        version = w.publish()
        code = """
import sys, dsmfs
with dsmfs.open(sys.argv[1], 'r') as w:
    assert w.wait(int(sys.argv[2]), 30) >= int(sys.argv[2])
    print(w.shape, w.dtype, w.array[1, 2], w.array.sum(), w.array.flags.writeable)
"""
        assert program(code, nodes[1] / "w.npy", version).stdout == "(3, 4) float64 42.0 42.0 False\n"


def test_sums_of_programs_on_all_nodes_lose_nothing(nodes: dsmfs.Cluster, program: Program) -> None:
    with nodes[0].create("w.npy", 5000, "i8", merge="sum") as w:
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda n: program(ADD, n / "w.npy", 20), nodes))
        w.sync()
        assert (w.array == 60).all()


def test_numpy_maps_what_create_made(nodes: dsmfs.Cluster) -> None:
    with nodes[0].create("w.npy", (7, 3), "<i4", merge="sum") as w:
        w.array = np.arange(21).reshape(7, 3)
        w.publish()
        plain = np.load(nodes[1] / "w.npy", mmap_mode="r+")
        assert isinstance(plain, np.memmap) and plain.offset % 64 == 0
        assert np.array_equal(plain, np.arange(21).reshape(7, 3))
        plain += 1
        plain.flush()
        w.sync()
        assert np.array_equal(w.array, np.arange(1, 22).reshape(7, 3))
        del plain


def test_sync_lets_the_updates_of_a_sum_in_and_publish_does_not(nodes: dsmfs.Cluster) -> None:
    with nodes[0].create("w.npy", 4, "f4", merge="sum", interval=0) as a, nodes[1].open("w.npy") as b:
        a.array += 1
        a.publish()
        b.array += 10
        b.publish()
        assert a.array.tolist() == [1] * 4
        a.sync()
        assert a.array.tolist() == [11] * 4
        b.acquire()
        assert b.array.tolist() == [11] * 4


def test_versions_grow_and_say_their_time(nodes: dsmfs.Cluster) -> None:
    before = time.time()
    with nodes[0].create("w.npy", 4, "f4") as w:
        seen = [w.version]
        for i in range(5):
            w.array += i + 1
            seen.append(w.publish())
        assert seen == sorted(set(seen))
        assert before - 1 < dsmfs.version_time(seen[-1]) < time.time() + 1
        assert 0 <= w.staleness <= time.time() - before + 1
    assert dsmfs.version_time(0) == 0


def test_waiting_for_a_version(nodes: dsmfs.Cluster) -> None:
    with nodes[0].create("w.npy", 4, "f4") as a, nodes[1].open("w.npy", "r") as b:
        with pytest.raises(TimeoutError, match="did not come"):
            b.wait(a.version + 1, 0.05)
        for version, timeout in ((-5, 1.0), (1 << 64, 1.0), (0, math.nan)):
            with pytest.raises(ValueError, match=r"version|timeout"):
                b.wait(version, timeout)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(b.wait, a.version + 1, 30)
            a.array[0] = 5
            version = a.publish()
            assert waiting.result() >= version
            assert b.array[0] == 5


@pytest.mark.parametrize("plane", ["memory", "page-cache"])
@pytest.mark.parametrize("merge", ["last", "sum"])
def test_who_waits_has_what_was_published(nodes: dsmfs.Cluster, merge: str, plane: str) -> None:
    with nodes[0].create("w.npy", 4, "f4", merge=merge) as a, nodes[1].open("w.npy", plane=plane) as b:
        b.array[1] = 2
        b.sync()
        version = b.version
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(b.wait, version + 1, 30)
            a.array[0] = 5
            a.publish()
            assert waiting.result() > version
        assert list(b.array) == [5, 2, 0, 0]


def test_threads_use_one_area_at_once(nodes: dsmfs.Cluster) -> None:
    with nodes[0].create("w.npy", 64, "i8", merge="sum") as w:
        start = threading.Barrier(4)

        def work(me: int) -> None:
            start.wait()
            for _ in range(20):
                w.array[me] += 1
                w.publish()
                w.acquire()

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        with nodes[2].open("w.npy", "r") as r:
            assert r.array[:4].tolist() == [20] * 4


@pytest.mark.parametrize("rows", [5, 3000])
def test_a_program_opens_an_area_again_that_others_have_resized(nodes: dsmfs.Cluster, rows: int) -> None:
    nodes[0].create("w.npy", (10, 50), "i8", merge="sum").close()
    with nodes[1].open("w.npy") as a:
        a.array[3] = 1
        a.sync()
        with nodes[0].open("w.npy") as b:
            b.sync()
            b.resize((rows, 50))
            b.array[4] = 2
            b.sync()
        a.array[2] = 4  # not synced yet
        for mode in ("r+", "r"):
            with nodes[1].open("w.npy", mode) as again:
                assert again.shape == again.array.shape == (rows, 50)
                assert again.array[2:4, 0].tolist() == [4, 1]
        a.sync()
        assert a.remap().shape == (rows, 50) and a.array.sum() == 50 * (4 + 1 + 2)
    with nodes[2].open("w.npy") as late:
        assert late.array.sum() == 50 * (4 + 1 + 2)


@pytest.mark.parametrize("merge", ["last", "sum"])
def test_a_file_that_ends_too_soon(nodes: dsmfs.Cluster, merge: str) -> None:
    if merge == "sum" and os.environ["DSMFS_PLANE"] == "page-cache":
        pytest.skip("the page cache may have the header of before")
    nodes[0].create("w.npy", (10, 50), "i8", merge=merge).close()
    os.truncate(nodes[0] / "w.npy", 928)
    for node in nodes:
        with pytest.raises(dsmfs.FormatError, match="has 928 bytes: too few"):
            node.open("w.npy")


def test_an_area_is_resized_for_all_nodes(nodes: dsmfs.Cluster) -> None:
    with nodes[0].create("w.npy", (10, 50), "i8") as w:
        w.array[:] = 1
        w.publish()
        with nodes[1].open("w.npy") as there:
            w.resize((3000, 50))
            w.array[2999] = 2
            w.publish()
            there.acquire()
            before = there.array
            assert there.shape == (3000, 50), "the area's"
            assert before.shape == (10, 50) and before.sum() == 500, "the array's"
            assert there.remap().shape == (3000, 50) and there.array.sum() == 600
            assert there.remap() is there.array
            there.array[2999] = 3
            there.publish()
            w.acquire()
            assert w.array[2999, 0] == 3
        with nodes[1].open("w.npy") as there:
            assert there.shape == (3000, 50) and there.array.sum() == 650
            there.resize((5, 50))
        with nodes[2].open("w.npy") as late:
            assert late.shape == (5, 50) and late.array.sum() == 250
        assert np.load(nodes[2] / "w.npy").shape == (5, 50)
        assert w.shape == (5, 50)
        assert w.remap().sum() == 250


def test_tensors_are_shared(nodes: dsmfs.Cluster) -> None:
    header = b'{"w": {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4000]}}      '
    with open(nodes[0] / "m.safetensors", "wb") as f:
        f.write(len(header).to_bytes(8, "little") + header + bytes(4000))
    with nodes[0].open("m.safetensors") as m, nodes[1].open("m.safetensors") as there:
        m.tensors["w"] = 3
        m.publish()
        there.acquire()
        assert there.tensors["w"].sum() == 3000
        m.tensors["w"] += 1
        assert (m.tensors["w"] == 4).all() and list(m.tensors) == ["w"] and "(1000,)" in repr(m.tensors)
        with pytest.raises(KeyError):
            m.tensors["v"] = 3


def test_complex_elements_add_up(nodes: dsmfs.Cluster) -> None:
    with nodes[0].create("w.npy", 100, "c16", merge="sum") as a, nodes[1].open("w.npy") as b:
        a.array += 1 + 2j
        b.array += 10 - 1j
        a.publish()
        b.sync()
        assert (np.load(nodes[2] / "w.npy", mmap_mode="r") == 11 + 1j).all()
        with pytest.raises(dsmfs.OperationError, match="merge=max: this file cannot have it") as e:
            a.configure(merge="max")
        assert e.value.errno == errno.EINVAL and a.settings["merge"] == "sum"
        a.configure(merge="last")
    with nodes[0].create("c.safetensors", tensors={"b": (3, "c8"), "a": ((), "c8")}, merge="sum") as a:
        with nodes[1].open("c.safetensors") as b:
            b.tensors["b"] += 1j
            a.tensors["b"] += 1
            a.publish()
            b.sync()
            assert (b.tensors["b"] == 1 + 1j).all()
        with pytest.raises(dsmfs.OperationError, match="merge=min: this file cannot have it"):
            a.configure(merge="min")


def test_the_rule_of_a_directory_does_not_fit_complex_elements(nodes: dsmfs.Cluster) -> None:
    os.mkdir(nodes[0] / "d")
    os.setxattr(nodes[0] / "d", "user.dsm.merge", b"min")
    with pytest.raises(dsmfs.Error, match="have no order"):
        nodes[0].create("d/w.npy", 100, "c16")
    assert os.listdir(nodes[0] / "d") == []


def test_bfloat16(nodes: dsmfs.Cluster) -> None:
    with nodes[0].create("w.npy", (4, 3), "bfloat16", merge="sum") as a, nodes[1].open("w.npy") as b:
        assert a.settings["dtype"] == "bf16"
        plain = np.load(nodes[2] / "w.npy", mmap_mode="r")
        assert plain.shape == (4, 3) and plain.dtype.itemsize == 2
        a.array.view(np.uint16)[:] = 0x3F80  # 1.0
        b.array.view(np.uint16)[:] = 0x4000  # 2.0
        a.publish()
        b.sync()
        assert (b.array.view(np.uint16) == 0x4040).all()  # 3.0
        assert bytes(np.load(nodes[2] / "w.npy", mmap_mode="r")[0, 0]) == b"\x40\x40"


def test_errors_are_those_of_the_system_too(nodes: dsmfs.Cluster, program: Program) -> None:
    os.mkdir(nodes[0] / "d")
    with pytest.raises(FileNotFoundError):
        nodes[0].open("nothing.npy")
    with pytest.raises(FileNotFoundError):
        dsmfs.create(nodes[0] / "no/such/w.npy", 3, "f4")
    with pytest.raises(IsADirectoryError) as e:
        nodes[0].open("d")
    assert isinstance(e.value, dsmfs.Error) and e.value.filename == nodes[0] / "d"
    with pytest.raises(dsmfs.NotMountedError):
        dsmfs.open("/etc/passwd")
    nodes[0].create("secret.npy", 3, "f4", permissions=0o600).close()
    nodes[0].create("public.npy", 3, "f4", permissions=0o644).close()
    code = """
import os, sys, dsmfs
dsmfs.open(f"{sys.argv[1]}/public.npy", "r").close()  # imports what only root may read
os.setgroups([]); os.setgid(65534); os.setuid(65534)
for name, mode in (("secret.npy", "r"), ("public.npy", "r+")):
    try:
        dsmfs.open(f"{sys.argv[1]}/{name}", mode)
    except PermissionError as e:
        assert isinstance(e, dsmfs.AccessError), e
        print("refused", name, mode)
w = dsmfs.open(f"{sys.argv[1]}/public.npy", "r")
w.acquire(); w.sync(); w.wait(w.version, 5)
print(w.array.tolist())
try:
    w.accumulate(w.array, dsmfs.group(f"{sys.argv[1]}/job", 1))
except (dsmfs.AccessError, dsmfs.PlaneUnavailableError):
    print("refused")
"""
    Path(nodes[0] / "job").touch()
    os.chmod(nodes[0] / "job", 0o666)
    os.chmod(nodes.directory, 0o755)
    if os.environ["DSMFS_PLANE"] == "memory":  # others may connect, but need a way to the socket
        os.chmod(Path(Path(nodes[1] / ".dsm/attach").read_text()).parents[1], 0o711)
    out = program(code, nodes[1].path).stdout
    assert out == "refused secret.npy r\nrefused public.npy r+\n[0.0, 0.0, 0.0]\nrefused\n"


def test_a_closed_area(nodes: dsmfs.Cluster) -> None:
    with nodes[0].create("w.npy", 3, "f4", interval=0) as w:
        array = w.array
        array[0] = 8
    assert w.closed and "closed" in repr(w) and "closed" in w._repr_html_()
    with nodes[1].open("w.npy", "r") as r:
        assert r.array[0] == 8, "close publishes"
    assert array[0] == 8
    for use in (w.publish, w.sync, w.acquire, lambda: w.stats, lambda: w.version, lambda: w.array, w.tensor):
        with pytest.raises((dsmfs.ClosedError, ImportError)):
            use()
    with pytest.raises(dsmfs.ClosedError), w:
        pass
    del array


def test_what_is_stored_through_older_views_after_close_is_published(nodes: dsmfs.Cluster) -> None:
    w = nodes[0].create("w.npy", 3, "f4", interval=0.01)
    view = w.array[1:]
    w.close()
    view[0] = 5
    end = time.monotonic() + LIMIT
    with nodes[1].open("w.npy", "r") as r:
        while r.array[1] != 5:
            assert time.monotonic() < end, "the store is never seen on the other node"
            time.sleep(0.01)


def test_an_area_that_was_renamed_or_replaced(nodes: dsmfs.Cluster) -> None:
    with nodes[0].create("w.npy", 3, "f4", interval=0) as w:
        os.rename(nodes[0] / "w.npy", nodes[0] / "v.npy")
        nodes[0].create("w.npy", 3, "f4", interval=0).close()
        w.array[:] = 5
        w.publish()
        w.acquire()
        assert (np.load(nodes[1] / "v.npy", mmap_mode="r") == 5).all()
        assert (np.load(nodes[1] / "w.npy", mmap_mode="r") == 0).all()
        os.unlink(nodes[0] / "v.npy")
        w.array[:] = 6
        w.sync()


def test_one_warning_says_why_there_is_no_memory_plane(nodes: dsmfs.Cluster, program: Program) -> None:
    code = """
import os, sys, warnings, dsmfs
path, socket = sys.argv[1:]
os.environ["DSMFS_PLANE"] = "auto"
warnings.simplefilter("always")
with warnings.catch_warnings(record=True) as said:
    dsmfs.create(path, 3, "f4", plane="page-cache").close()
    assert not said, "page-cache was asked for"
    os.environ["DSMFS_ATTACH"] = socket
    for _ in range(3):
        with dsmfs.open(path) as w:
            assert w.plane == "page-cache"
            w.array += 1
            w.sync()
    try:
        dsmfs.open(path, plane="memory")
    except dsmfs.PlaneUnavailableError as e:
        assert "nobody answers" in str(e)
[w] = said
assert w.category is dsmfs.PlaneWarning and "nobody answers" in str(w.message) and w.filename == "<string>", w
print("ok")
"""
    assert program(code, nodes[0] / "w.npy", "/nonexistent/socket").stdout == "ok\n"


def test_pictures_for_notebooks(nodes: dsmfs.Cluster) -> None:
    with nodes[0].create("<w>.npy", (3, 4), "f4", merge="sum") as w:
        page = w._repr_html_()
        assert "&lt;w&gt;.npy" in page and "<w>" not in page and "sum" in page and "(3, 4)" in page
        assert "(3, 4) float32 'r+' relaxed" in repr(w)
        assert np.asarray(w) is w.array
        assert np.array(w) is not w.array
        assert np.asarray(w, "f8").dtype == np.float64
        assert math.isfinite(w.staleness)
        figures = w.stats
        assert figures["plane"] == w.plane and len(figures) > 1


def test_arithmetic_in_place_is_done_in_the_shared_memory(nodes: dsmfs.Cluster) -> None:
    with nodes[0].create("w.npy", 3, "f4", interval=0) as w, nodes[1].open("w.npy", "r") as r:
        area = w
        w += np.array([1, 2, 3], "f4")
        w *= 4
        w -= 2
        w /= 2
        assert w is area
        w.publish()
        r.acquire()
        assert r.array.tolist() == [1, 3, 5]
        w %= np.float32(4)
        w **= 2
        w //= np.array([1, 2, 1], "f4")
        assert w is area and w.array.tolist() == [1, 4, 1]
        with pytest.raises(ValueError, match="broadcast"):
            w += np.ones(4, "f4")
    with nodes[0].create("bits.npy", 3, "u1", interval=0) as w:
        area = w
        w |= np.array([7, 6, 5], "u1")
        w &= 6
        w ^= np.array([1, 1, 1], "u1")
        w <<= 2
        w >>= np.array([1, 1, 1], "u1")
        assert w is area and w.array.tolist() == [14, 14, 10]
    with pytest.raises(dsmfs.ClosedError):
        w += 1
