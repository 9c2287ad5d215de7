"""Stores half of a version into a file for each line of input, in one way, and ends without a publish when there are no more. The answer is ``ok``.

The arguments are the way and the path.
"""

import os
import sys
from typing import Any

import numpy as np

HOW, PATH = sys.argv[1:3]
held: Any = None

for _ in sys.stdin:
    if HOW == "write":
        held = os.open(PATH, os.O_RDWR)
        os.pwrite(held, b"\x07" * 4096, 0)
    elif HOW == "memmap":  # NumPy closes the descriptor at once
        held = np.memmap(PATH, "u1", "r+")
        held[:4096] = 7
    else:
        import dsmfs

        held = dsmfs.open(PATH, "r+", dtype="u1", plane=HOW)
        held.array[:4096] = 7
    print("ok", flush=True)
os._exit(0)
