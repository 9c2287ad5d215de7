"""Headers: of tensors by name, and of arrays that change their length."""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dsmfs
import numpy as np
import pytest
from dsmfs import _npy
from hypothesis import given
from hypothesis import strategies as st

from .fake_daemon import COMPARES, FakeDaemon


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    d = FakeDaemon(str(tmp_path / "attach"), COMPARES)
    monkeypatch.setenv("DSMFS_ATTACH", d.path)
    yield d
    d.close()


def safetensors(header: Any, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def about(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_tensors_by_name(daemon: FakeDaemon) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "w": about("F32", [2, 3], 0, 24),
        "b": about("BF16", [2], 24, 28),
        "n": about("I64", [], 28, 36),
        "none": about("U8", [0, 5], 36, 36),
        "tiny": about("F8_E4M3", [4], 36, 40),
    }
    data = np.arange(6, dtype="f4").tobytes() + b"\x80?\x00@" + (7).to_bytes(8, "little") + bytes(4)
    area = daemon.make("/m.safetensors", safetensors(header, data))
    with dsmfs.open("/m.safetensors") as m:
        assert list(m.tensors) == ["w", "b", "n", "none", "tiny"]
        w = m.tensors["w"]
        assert np.array_equal(w, [[0, 1, 2], [3, 4, 5]]) and m.tensors["n"] == 7 and m.tensors["none"].shape == (0, 5)
        assert m.tensors["b"].itemsize == 2 and m.tensors["tiny"].nbytes == 4
        assert m.array.dtype == np.uint8 and m.array.tobytes() == data
        w[1, 2] = 99
        start = area.size - len(data)
        assert os.pread(area.memory, 4, start + 20) == np.float32(99).tobytes(), "they are the memory itself"
        with pytest.raises(dsmfs.FormatError, match="safetensors"):
            m.resize(3)
    with pytest.raises(ValueError):
        w[0, 0] = 1
    with dsmfs.open("/m.safetensors", "r") as m:
        assert not m.tensors["w"].flags.writeable
    with dsmfs.open("/m.safetensors", dtype="u1", offset=8) as m:
        assert m.tensors == {} and bytes(m.array[:1]) == b"{"


@pytest.mark.parametrize(
    "content",
    [
        b"\0\0\0",
        (1 << 40).to_bytes(8, "little") + b"{}",
        safetensors(b"{", b""),
        safetensors(b"[1]", b""),
        safetensors(b'{"w": 1}', b""),
        safetensors({"w": about("F31", [1], 0, 4)}, bytes(4)),
        safetensors({"w": about("F32", [1], 0, 8)}, bytes(8)),
        safetensors({"w": about("F32", [2], 0, 8)}, bytes(4)),
        safetensors({"w": about("F32", [-1], 4, 0)}, bytes(4)),
        safetensors({"w": about("F32", [1], -4, 0)}, bytes(4)),
        safetensors(b'{"w": ' + 100_000 * b"[", b""),
    ],
)
def test_a_damaged_header_of_tensors(daemon: FakeDaemon, content: bytes) -> None:
    daemon.make("/m.safetensors", content)
    with pytest.raises(dsmfs.FormatError, match="safetensors"):
        dsmfs.open("/m.safetensors")


def test_an_area_grows_and_shrinks(daemon: FakeDaemon) -> None:
    with dsmfs.create("/w.npy", (2, 3), "f4") as w, dsmfs.open("/w.npy") as other:
        w.array[:] = 1
        old = w.array
        w.resize((1000, 3))
        assert w.shape == (1000, 3) and w.array[:2].sum() == 6 and w.array[2:].sum() == 0
        w.array[0, 0] = 5
        assert old[0, 0] == 5 and other.array[0, 0] == 5 and other.array.shape == (2, 3), "the memory is the same"
        assert other.shape == (1000, 3) and other.remap()[0, 0] == 5 and other.array.shape == (1000, 3)
        with dsmfs.open("/w.npy") as late:
            assert late.shape == (1000, 3)
        w.resize((1, 3))
        assert daemon.areas["/w.npy"].size == 128 + 12
        assert np.array_equal(np.asarray(w), [[5, 1, 1]])
        for wrong in ((1, 4), (3,), (), (-1, 3)):
            with pytest.raises(ValueError):
                w.resize(wrong)
    with dsmfs.open("/w.npy", "r") as reader, pytest.raises(dsmfs.AccessError):
        reader.resize((2, 3))


def test_an_area_that_is_cut_while_it_is_attached(daemon: FakeDaemon) -> None:
    area = daemon.make("/raw", bytes(range(100)))
    os.ftruncate(area.memory, 60)  # the daemon tells the size of before
    with dsmfs.open("/raw", dtype="u1") as w:
        assert w.array.shape == (60,) and w.array[59] == 59
    os.ftruncate(area.memory, 0)
    with pytest.raises(dsmfs.FormatError, match="empty"):
        dsmfs.open("/raw", dtype="u1")


def test_fortran_order_grows_at_the_end(daemon: FakeDaemon) -> None:
    with dsmfs.create("/w.npy", (2, 3), "f4", order="F") as w:
        w.array[:] = [[1, 2, 3], [4, 5, 6]]
        w.resize((2, 5))
        assert np.array_equal(w.array, [[1, 2, 3, 0, 0], [4, 5, 6, 0, 0]])
        with pytest.raises(ValueError, match="dimension 1"):
            w.resize((3, 3))


def test_a_file_without_a_header_is_resized(daemon: FakeDaemon) -> None:
    daemon.make("/raw", bytes(range(16)))
    with dsmfs.open("/raw", dtype="u1", offset=4) as w:
        w.resize(5000)
        assert daemon.areas["/raw"].size == 5004 and w.array[0] == 4 and w.shape == (5000,)
        w.resize(0)
    with dsmfs.open("/raw", dtype="u1") as w, pytest.raises(ValueError, match="nothing"):
        w.resize(0)


@given(st.integers(1, 10**12), st.sampled_from(["f4", "<V2", "?", "U3"]), st.integers(0, 300))
def test_a_header_has_the_length_that_is_asked_for(rows: int, dtype: str, spare: int) -> None:
    kind = _npy.element_type(dtype)
    least = len(_npy.header(kind, (rows, 3), False)) + spare
    head = _npy.header(kind, (rows, 3), False, least)
    assert len(head) == least and _npy.read_header(head) == (kind, (rows, 3), False, least)
    with pytest.raises(dsmfs.FormatError, match="room"):
        _npy.header(kind, (rows, 3), False, 60)


def test_threads_read_headers_at_once() -> None:
    head = _npy.header(np.dtype("i8"), (130, 300), False)
    threshold = gc.get_threshold()

    def let_others(phase: str, info: dict[str, int]) -> None:
        time.sleep(0)  # where the parser of Python does not expect it

    def read(_: int) -> bool:
        return all(_npy.read_header(head) == (np.dtype("i8"), (130, 300), False, len(head)) for _ in range(1000))

    gc.callbacks.append(let_others)
    gc.set_threshold(5)
    try:
        with ThreadPoolExecutor(3) as pool:
            assert all(pool.map(read, range(3)))
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(let_others)
