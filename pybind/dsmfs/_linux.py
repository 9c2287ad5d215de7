"""System calls that Python has no function for."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import platform
import time

MADV_DONTNEED = 4
MADV_DONTFORK = 10
MADV_DOFORK = 11

_SYS_USERFAULTFD = {"x86_64": 323, "aarch64": 282, "riscv64": 282}
_UFFD_USER_MODE_ONLY = 1
_USERFAULTFD_IOC_NEW = 0xAA00
_MREMAP_MAYMOVE, _MREMAP_FIXED, _MREMAP_DONTUNMAP = 1, 2, 4
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_RENAME_NOREPLACE = 1
_AT_FDCWD = -100
_MNT_DETACH = 2
_SYS_FUTEX_WAITV = 449  # on every machine
_SYS_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98}
_FUTEX_WAKE, _FUTEX_32 = 1, 2

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
_libc.mremap.restype = ctypes.c_void_p
_libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.renameat2.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
_libc.syscall.restype = ctypes.c_long


class _Futex(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    )


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_int64))


def futex_wait(addresses: tuple[int, int], values: tuple[int, int], seconds: float) -> bool:
    """Sleep while two words of shared memory have these values, at most for some time; tell whether somebody woke it or a word differs."""
    words = (_Futex * 2)(*(_Futex(v, a, _FUTEX_32, 0) for a, v in zip(addresses, values, strict=True)))
    end = time.monotonic_ns() + int(seconds * 1e9)
    until = _Time(end // 10**9, end % 10**9)
    clock = ctypes.c_int(time.CLOCK_MONOTONIC)
    done = _libc.syscall(ctypes.c_long(_SYS_FUTEX_WAITV), ctypes.byref(words), 2, 0, ctypes.byref(until), clock)
    code = 0 if done >= 0 else ctypes.get_errno()
    if code not in (0, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT):
        time.sleep(min(seconds, 0.001))  # before Linux 5.16, or a sandbox forbids it
        return True
    return code in (0, errno.EAGAIN)


def futex_wake(address: int) -> None:
    """Wake all that sleep because of a word."""
    number = _SYS_FUTEX.get(platform.machine())
    if number is not None:
        _libc.syscall(ctypes.c_long(number), ctypes.c_void_p(address), _FUTEX_WAKE, 2**31 - 1, None, None, 0)


def _fail(what: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, f"{what}: {os.strerror(code)}")


def userfaultfd() -> int:
    """Return a new userfaultfd.

    Without privilege, and where ``/dev/userfaultfd`` is not open to this user, it is one for faults in user mode
    only. That is all that tracking of stores needs; a system call that touches a page which is not there yet then fails with EFAULT.

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
    if fd >= 0:
        return fd
    if ctypes.get_errno() == errno.EPERM:
        with contextlib.suppress(OSError):
            return _by_device(flags)
        fd = int(_libc.syscall(ctypes.c_long(number), ctypes.c_int(flags | _UFFD_USER_MODE_ONLY)))
    if fd < 0:
        raise _fail("userfaultfd")
    return fd


def _by_device(flags: int) -> int:
    device = os.open("/dev/userfaultfd", os.O_RDWR | os.O_CLOEXEC)
    try:
        return fcntl.ioctl(device, _USERFAULTFD_IOC_NEW, flags)
    finally:
        os.close(device)


def _map(address: int, length: int, protection: int, flags: int, fd: int) -> None:
    if _libc.mmap(address, length, protection, flags | _MAP_FIXED, fd, 0) != address:
        raise _fail("mmap")


def map_shared(fd: int, length: int) -> int:
    """Map the start of a file for reading; return the address. Unlike :class:`mmap.mmap` it keeps no descriptor."""
    return _address("mmap", _libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0))


def map_over(address: int, length: int, writable: bool, fd: int) -> None:
    """Map the start of a shared file over what is mapped at `address`, in one step."""
    _map(address, length, mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0), mmap.MAP_SHARED, fd)


def map_zeroes(address: int, length: int) -> None:
    """Map memory of this process alone over what is mapped at `address`."""
    _map(address, length, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
    advise(address, length, MADV_DONTFORK)


def seal_off(address: int, length: int) -> None:
    """Replace what is mapped at `address` by memory that any access of is SIGSEGV."""
    _map(address, length, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE, -1)


def _address(what: str, result: int | None) -> int:
    if result is None or result == ctypes.c_void_p(-1).value:
        raise _fail(what)
    return result


def reserve(length: int) -> int:
    """Take addresses of which any access is SIGSEGV; return the first."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    return _address("mmap", _libc.mmap(None, length, 0, flags, -1, 0))


def move(address: int, length: int, to: int) -> None:
    """Move a mapping over what is mapped elsewhere, in one step, and leave one of the same file in its place."""
    flags = _MREMAP_MAYMOVE | _MREMAP_FIXED | _MREMAP_DONTUNMAP
    _address("mremap", _libc.mremap(address, length, length, flags, to))


def unmap(address: int, length: int) -> None:
    """munmap(2)."""
    if _libc.munmap(address, length) != 0:
        raise _fail("munmap")


def absent(address: int, pages: int) -> int:
    """Count the pages from `address` on, up to `pages`, that are not in the file that is mapped there: mincore(2)."""
    there = ctypes.create_string_buffer(pages)
    if _libc.mincore(address, pages * mmap.PAGESIZE, there) != 0:
        raise _fail("mincore")
    return next((i for i, x in enumerate(there.raw) if x & 1), pages)


def advise(address: int, length: int, advice: int) -> None:
    """madvise(2)."""
    if _libc.madvise(address, length, advice) != 0:
        raise _fail("madvise")


def rename_new(old: str, new: str) -> None:
    """Rename a file; FileExistsError if there is something at `new`."""
    if _libc.renameat2(_AT_FDCWD, os.fsencode(old), _AT_FDCWD, os.fsencode(new), _RENAME_NOREPLACE) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), new)
