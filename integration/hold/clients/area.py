"""Stores to an area of the Python package while daemons are killed: after a line it says ok and begins, after another it ends, and says how many steps it took."""

from __future__ import annotations

import contextlib
import os
import random
import select
import sys
import threading

import dsmfs
import numpy as np

path, seed = sys.argv[1] + "/area.npy", int(sys.argv[2])
rng = random.Random(seed)
want = np.zeros(20_000, "i8")
waited: list[int] = []
ended = threading.Event()


def waits(r: dsmfs.Area) -> None:
    """Wait for each version."""
    while not ended.is_set():
        waited.append(r.wait(r.version + 1))


w = dsmfs.create(path, len(want), "i8", interval=0, plane="memory")
r = dsmfs.open(path, "r", plane="memory")
added = dsmfs.create(sys.argv[1] + "/sum.npy", 100, "i8", merge="sum", interval=0, plane="memory")
total = np.zeros(100, "i8")
v = dsmfs.create(sys.argv[1] + "/versions.npy", 20_000, "i8", consistency="versioned", plane="memory")
shown = dsmfs.open(v.path, "r", plane="memory")
begin, sees = w.array.ctypes.data, shown.array.ctypes.data
waiter = threading.Thread(target=waits, args=(r,), daemon=True)
waiter.start()
sys.stdin.readline()
print("ok", flush=True)
steps = forks = 0
while not select.select([sys.stdin], [], [], 0)[0]:
    for _ in range(20):
        i = rng.randrange(len(want))
        assert w.array[i] == want[i], (i, w.array[i], want[i])
        w.array[i] = want[i] = rng.randrange(1, 4)
    steps += 1
    added.array[steps % 100] += 1
    total[steps % 100] += 1
    asked = rng.randrange(12)
    if asked == 0:
        w.publish()
        added.sync()
    elif asked == 1:
        w.wait(w.sync(), 60)
    elif asked == 2:
        assert r.acquire() > 0 and w.stats["plane"] == "memory" and w.staleness >= 0
    elif asked == 3:
        with contextlib.suppress(dsmfs.TimedOutError):
            r.wait(1 << 63, 0.01)
    elif asked == 4 and steps % 10 == 0:
        name = f"{sys.argv[1]}/new{steps}.npy"
        with dsmfs.create(name, 10, "i8", plane="memory") as new:
            new.array[:] = steps
        assert np.load(name).tolist() == [steps] * 10
    elif asked == 5:
        v.array[:] = steps
        shown.wait(v.publish(), 60)
        v.array[9] = -1  # of the next version
        assert (shown.array == steps).all() and v.array[9] == -1
    elif asked == 6 and steps % 3 == 0:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if np.array_equal(w.array, want) and w.publish() > 0 else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "a child"
        forks += 1
sys.stdin.readline()
ended.set()
w.array[0] = want[0] = 5
w.publish()
w.array[0] = want[0] = 6
w.publish()
waiter.join()
assert shown.array.ctypes.data == sees and shown.stats["plane"] == "memory"
assert w.array.ctypes.data == begin and np.array_equal(w.array, want)
assert np.array_equal(np.load(path), want), "what is stored"
added.sync()
assert np.array_equal(added.array, total) and np.array_equal(np.load(added.path), total), "the sums"
r.acquire()
assert np.array_equal(r.array, want) and waited == sorted(set(waited))
w.close()
r.close()
print(f"ok {steps} steps, {len(waited)} versions, {forks} forks", flush=True)
