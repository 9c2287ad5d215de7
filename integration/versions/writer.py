"""Publishes versions of an array whose elements are all of one value in each.

Each line of input is ``FROM TO PLANE``: the array is opened, arrays of all these values are published, and it is closed. The answer is ``ok``.
With ``again`` behind the plane it is opened for each value, and nothing but that it is closed publishes.
"""

import sys

import numpy as np

PATH = sys.argv[1]

for line in sys.stdin:
    start, end, plane, *again = line.split()
    if again and plane == "mapping":
        for n in range(int(start), int(end)):
            a = np.memmap(PATH, "i8", "r+")
            a[:] = n
            del a
    elif again:
        import dsmfs

        for n in range(int(start), int(end)):
            with dsmfs.open(PATH, "r+", dtype="i8", plane=plane) as w:
                w.array[:] = n
    elif plane == "mapping":
        a = np.memmap(PATH, "i8", "r+")
        for n in range(int(start), int(end)):
            a[:] = n
            a.flush()
        del a
    else:
        import dsmfs

        with dsmfs.open(PATH, "r+", dtype="i8", plane=plane) as w:
            for n in range(int(start), int(end)):
                w.array[:] = n
                w.publish()
    print("ok", flush=True)
