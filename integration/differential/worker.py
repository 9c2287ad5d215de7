"""One program of the test of shared arrays: it does what a line on its standard input asks.

usage: worker.py MOUNT SEED plane

Of an array with merge=sum it adds to elements as programs do, by loading, adding into
a temporary and storing back, through whatever it has: areas that are open, older views of areas
that are closed, plain mappings of the file. It keeps count of what it added.
"""

import json
import random
import sys
from typing import Any

import dsmfs
import numpy as np
import numpy.typing as npt

MOUNT, SEED, PLANE = sys.argv[1], int(sys.argv[2]), sys.argv[3]
PATH = f"{MOUNT}/shared.npy"
ELEMENTS = 5000
SLOTS = 3

rng = random.Random(SEED)
added = np.zeros(ELEMENTS, np.int64)
areas: dict[int, Any] = {}  # that may store
views: dict[int, npt.NDArray[Any]] = {}  # of areas that may be closed
journal: list[str] = []  # what was done, for a failure


def opened() -> Any:
    if PLANE == "mapping":
        return np.load(PATH, mmap_mode="r+")
    return dsmfs.open(PATH, "r+", plane=PLANE)


def array(area: Any) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = area if PLANE == "mapping" else area.array
    return found


def add(a: npt.NDArray[Any], by: str) -> None:
    lo = rng.randrange(ELEMENTS)
    hi = min(ELEMENTS, lo + 1 + rng.randrange(rng.choice([3, 900, ELEMENTS])))
    value = rng.randrange(-1000, 1000)
    new = a[lo:hi] + value
    # The time between a load and a store is what the promise is about.
    for _ in range(rng.randrange(3)):
        new = new + 0
    a[lo:hi] = new
    added[lo:hi] += value
    journal.append(f"add {value} to {lo}..{hi} by {by}")


def sync(area: Any) -> None:
    if PLANE == "mapping":
        area.flush()
    else:
        area.sync()


def step() -> None:
    n = rng.randrange(SLOTS)
    area = areas.get(n)
    if area is None:
        areas[n] = opened()
        journal.append(f"open {n}")
        return
    choice = rng.randrange(20)
    journal.append(f"{choice} with {n}")
    match choice:
        case 0 | 1 | 2 | 3 | 4 | 5 | 6:
            add(array(area), f"area {n}")
        case 7 | 8 | 9 | 10:
            sync(area)
        case 11:
            views[n] = array(area)
        case 12 | 13 if n in views and views[n].flags.writeable:
            add(views[n], f"view {n}")
        case 14:
            views.pop(n, None)
        case 15 if PLANE != "mapping":
            area.close()
            del areas[n]
        case 15:
            del areas[n]
        case 16 if PLANE != "mapping":
            area.publish()
        case 17 if PLANE != "mapping":
            repr(area), area.version, area.staleness, area.stats
        case _:
            array(area).sum()


def look() -> None:
    """Read as a program that comes and goes."""
    match rng.randrange(5):
        case 0:
            np.load(PATH)
        case 1:
            with dsmfs.open(PATH) as area:
                int(area.array.sum())
        case 2:
            with dsmfs.open(PATH, plane="page-cache") as area:
                repr(area), area.version, area.staleness
        case 3:
            np.load(PATH, mmap_mode="r").sum()
        case _:
            with open(PATH, "rb") as f:
                f.read()


def answer(line: str) -> Any:
    match line.split():
        case ["work", count]:
            for _ in range(int(count)):
                step()
        case ["look", count]:
            for _ in range(int(count)):
                look()
        case ["sync"]:
            for n in range(SLOTS):
                if n in areas:
                    sync(areas[n])
                if n in views and PLANE == "mapping":
                    sync(views[n])
        case ["added"]:
            return added.tolist()
        case ["journal"]:
            return journal
        case ["read"]:
            return np.load(PATH).tolist()
        case ["create", merge]:
            dsmfs.create(PATH, ELEMENTS, "i8", merge=merge).close()
        case words:
            raise ValueError(words)
    return None


for request in sys.stdin:
    try:
        print("ok", json.dumps(answer(request), separators=(",", ":")), flush=True)
    except Exception as e:
        print("err", type(e).__name__, str(e).replace("\n", " "), flush=True)
