"""How old memory may be, on real mounts."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable

import dsmfs
import numpy as np
import pytest


def grows(value: Callable[[], float]) -> bool:
    """Tell whether a value becomes larger by itself."""
    before, end = value(), time.monotonic() + 60
    while time.monotonic() < end:
        if value() > before:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("plane", ["memory", "page-cache"])
def test_memory_is_kept_within_its_bound(mounts: dsmfs.Cluster, plane: str) -> None:
    with (
        mounts[0].create("w.npy", 8, "i8", staleness=0.25) as w,
        mounts[1].open("w.npy", "r", plane=plane) as r,
    ):
        assert w.settings["staleness"] == r.settings["staleness"] == "250ms"
        assert math.isfinite(r.staleness)
        assert grows(r._open().known)  # nobody has asked for it
        w.array[:] = 3
        version = w.publish()
        r.wait(version, 60)
        assert np.load(mounts[1] / "w.npy").tolist() == [3] * 8
        stats = r.stats
        assert any(name.startswith("read_staleness_") for name in stats) and isinstance(stats["staleness_ms"], int)
        w.configure(staleness="none")
        assert r.settings["staleness"] == "none"


def test_a_file_with_another_bound_is_another(mounts: dsmfs.Cluster) -> None:
    mounts[0].create("w.npy", 3, "f4", staleness="1s").close()
    mounts[1].create("w.npy", 3, "f4", staleness=1, exist_ok=True).close()
    with pytest.raises(dsmfs.FormatError, match="staleness=1s"):
        mounts[1].create("w.npy", 3, "f4", staleness="none", exist_ok=True)
    os.setxattr(mounts[0] / "w.npy", "user.dsm.staleness", b"2000")
    assert os.getxattr(mounts[1] / "w.npy", "user.dsm.staleness") == b"2s"
