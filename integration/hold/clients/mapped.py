"""Maps a file, with the library of dsmfs run preloaded, while daemons are killed: after a line it says ok and begins, after another it ends, and says how many steps it took."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import select
import sys

path, seed = sys.argv[1] + "/mapped", int(sys.argv[2])
rng = random.Random(seed)
want = bytearray(40 * mmap.PAGESIZE)
file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
os.ftruncate(file, len(want))
memory = mmap.mmap(file, len(want))
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def attached() -> bool:
    """Whether the library has attached the file."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return any("/memfd:" in line and "rw-s" in line for line in maps)


assert attached(), "it is on the page cache"
sys.stdin.readline()
print("ok", flush=True)
steps = forks = 0
while not select.select([sys.stdin], [], [], 0)[0]:
    for _ in range(20):
        i = rng.randrange(len(want))
        assert memory[i] == want[i], (i, memory[i], want[i])
        memory[i] = want[i] = rng.randrange(256)
    steps += 1
    asked = rng.randrange(40)
    if asked < 4:
        memory.flush()
        i = rng.randrange(len(want) - 100)
        assert os.pread(file, 100, i) == want[i : i + 100], "what is stored"
    elif asked == 4:
        other = mmap.mmap(file, mmap.PAGESIZE, offset=mmap.PAGESIZE * rng.randrange(40))
        other.flush()
        other.close()
    elif asked == 5:  # a mapping for reading that becomes one for writing
        p = libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_SHARED, file, 0)
        assert ctypes.string_at(p, mmap.PAGESIZE) == want[: mmap.PAGESIZE]
        assert libc.mprotect(p, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE) == 0, os.strerror(ctypes.get_errno())
        want[7] = rng.randrange(256)
        ctypes.memset(p + 7, want[7], 1)
        assert memory[7] == want[7] and libc.munmap(p, mmap.PAGESIZE) == 0
    elif asked == 6:
        child = os.fork()
        if child == 0:
            os._exit(0 if memory[:] == want else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the memory of a child"
        forks += 1
sys.stdin.readline()
assert memory[:] == want
memory.flush()
assert os.pread(file, len(want), 0) == want, "what is stored"
memory.close()
print(f"ok {steps} steps, {forks} forks", flush=True)
