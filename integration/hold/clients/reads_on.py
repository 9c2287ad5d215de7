"""Reads an area that it has stored to before, on one node, while it adds on another one: after each line it adds, and says ok when the reader has that."""

from __future__ import annotations

import sys

import dsmfs

here, there = (mount + "/reads_on.npy" for mount in sys.argv[1:3])
w = dsmfs.create(here, 2000, "i8", merge="sum", interval=0, plane="memory")
r = dsmfs.open(here, "r", plane="memory")
w.array[:] = total = 7
w.close()
other = dsmfs.open(there, plane="memory")
for _ in sys.stdin:
    other.array[:] += 1
    total += 1
    r.wait(other.sync(), 60)
    print("ok" if (r.array == total).all() else f"err {r.array}, want {total}", flush=True)
