"""System calls that Python has no function for."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform

MADV_DONTFORK = 10
MADV_DOFORK = 11

_SYS_USERFAULTFD = {"x86_64": 323, "aarch64": 282, "riscv64": 282}
_UFFD_USER_MODE_ONLY = 1
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_RENAME_NOREPLACE = 1
_AT_FDCWD = -100
_MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.renameat2.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
_libc.syscall.restype = ctypes.c_long


def _fail(what: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, f"{what}: {os.strerror(code)}")


def userfaultfd() -> int:
    """Return a new userfaultfd.

    Without privilege it is one for faults in user mode only, which is all that
    tracking of stores needs.

    Raises
    ------
    OSError
        ENOSYS: none in this kernel or for this machine. EPERM: forbidden, as in many containers.
    """
    number = _SYS_USERFAULTFD.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"userfaultfd: its number on {platform.machine()} is not known")
    flags = os.O_CLOEXEC | os.O_NONBLOCK
    fd = int(_libc.syscall(ctypes.c_long(number), ctypes.c_int(flags)))
    if fd < 0 and ctypes.get_errno() == errno.EPERM:
        fd = int(_libc.syscall(ctypes.c_long(number), ctypes.c_int(flags | _UFFD_USER_MODE_ONLY)))
    if fd < 0:
        raise _fail("userfaultfd")
    return fd


def map_over(address: int, length: int, writable: bool, fd: int) -> None:
    """Map the start of a shared file over what is mapped at `address`, in one step."""
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    if _libc.mmap(address, length, protection, mmap.MAP_SHARED | _MAP_FIXED, fd, 0) != address:
        raise _fail("mmap")


def seal_off(address: int, length: int) -> None:
    """Replace what is mapped at `address` by memory that any access of is SIGSEGV."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED | _MAP_NORESERVE
    if _libc.mmap(address, length, 0, flags, -1, 0) != address:
        raise _fail("mmap")


def advise(address: int, length: int, advice: int) -> None:
    """madvise(2)."""
    if _libc.madvise(address, length, advice) != 0:
        raise _fail("madvise")


def rename_new(old: str, new: str) -> None:
    """Rename a file; FileExistsError if there is something at `new`."""
    if _libc.renameat2(_AT_FDCWD, os.fsencode(old), _AT_FDCWD, os.fsencode(new), _RENAME_NOREPLACE) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), new)
