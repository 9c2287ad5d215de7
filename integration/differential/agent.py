"""One program of the differential tests: it does what a line on its standard input asks.

usage: agent.py DIRECTORY

A line is a JSON list: the name of an operation and its arguments. Paths are
relative to DIRECTORY. Descriptors and mappings have small numbers, which whoever
asks chooses. The answer is one line: ``ok JSON`` or ``err NAME`` with the name of an errno.
"""

import errno
import fcntl
import json
import mmap
import os
import stat
import sys
from typing import Any

ROOT = sys.argv[1]
PLAIN = len(sys.argv) > 2  # a directory whose filesystem wants O_DIRECT aligned: leave it out

fds: dict[int, int] = {}
maps: dict[int, tuple[mmap.mmap, int]] = {}  # with a descriptor of its file


class Refused(Exception):
    """The operation makes no sense now; both sides must agree on that."""


def path(name: str) -> str:
    return os.path.join(ROOT, name)


def flags(words: str) -> int:
    bits = 0
    for word in words.split(","):
        if word == "O_DIRECT" and PLAIN:
            continue
        bits |= getattr(os, word)
    return bits


def told(s: os.stat_result) -> list[Any]:
    """Return what two filesystems must agree on."""
    if stat.S_ISDIR(s.st_mode):
        return ["dir", s.st_mode & 0o7777]
    if stat.S_ISLNK(s.st_mode):
        return ["link", s.st_size, s.st_nlink]
    return ["file", s.st_size, s.st_nlink, s.st_mode & 0o7777]


def op_open(n: int, name: str, words: str, mode: int) -> None:
    fd = os.open(path(name), flags(words) | os.O_CLOEXEC, mode)
    if PLAIN and "O_DIRECT" in words.split(",") and stat.S_ISDIR(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "a directory")  # as where O_DIRECT is not left out
    if n in fds:
        os.close(fds.pop(n))
    fds[n] = fd


def op_close(n: int) -> None:
    os.close(fds.pop(n))


def op_dup(n: int, m: int) -> None:
    fd = os.dup(fds[n])
    if m in fds:
        os.close(fds.pop(m))
    fds[m] = fd


def op_pread(n: int, off: int, size: int) -> str:
    return os.pread(fds[n], size, off).hex()


def op_preadv(n: int, off: int, size: int) -> str:
    parts = [bytearray(size // 3), bytearray(size - size // 3)]
    got = os.preadv(fds[n], parts, off)
    return b"".join(parts)[:got].hex()


def op_pwrite(n: int, off: int, data: str) -> int:
    return os.pwrite(fds[n], bytes.fromhex(data), off)


def op_pwritev(n: int, off: int, data: str) -> int:
    raw = bytes.fromhex(data)
    return os.pwritev(fds[n], [raw[: len(raw) // 3], raw[len(raw) // 3 :]], off)


def op_read(n: int, size: int) -> str:
    return os.read(fds[n], size).hex()


def op_write(n: int, data: str) -> int:
    return os.write(fds[n], bytes.fromhex(data))


def op_lseek(n: int, off: int, whence: str) -> int:
    if not stat.S_ISREG(os.fstat(fds[n]).st_mode):
        raise Refused  # filesystems differ in what a place in a directory is
    return os.lseek(fds[n], off, getattr(os, whence))


def op_holes(n: int) -> int:
    """Return the first offset in a hole where there is data, -1 if there is none. Where holes are is the filesystem's business."""
    fd = fds[n]
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise Refused
    place, size, at = os.lseek(fd, 0, os.SEEK_CUR), os.fstat(fd).st_size, 0
    try:
        while at < size:
            try:
                data = os.lseek(fd, at, os.SEEK_DATA)
            except OSError as e:
                if e.errno != errno.ENXIO:
                    raise
                data = size
            found = os.pread(fd, data - at, at).lstrip(b"\0")
            if found:
                return data - len(found)
            at = os.lseek(fd, data, os.SEEK_HOLE) if data < size else size
    finally:
        os.lseek(fd, place, os.SEEK_SET)
    return -1


def op_fsync(n: int) -> None:
    os.fsync(fds[n])


def op_fdatasync(n: int) -> None:
    os.fdatasync(fds[n])


def op_ftruncate(n: int, size: int) -> None:
    os.ftruncate(fds[n], size)


def op_truncate(name: str, size: int) -> None:
    os.truncate(path(name), size)


def op_fallocate(n: int, off: int, size: int) -> None:
    os.posix_fallocate(fds[n], off, size)


def op_copy_range(n: int, m: int, off: int, to: int, size: int) -> int:
    return os.copy_file_range(fds[n], fds[m], size, off, to)


def op_sendfile(n: int, m: int, off: int, size: int) -> int:
    return os.sendfile(fds[m], fds[n], off, size)


def op_fstat(n: int) -> list[Any]:
    return told(os.fstat(fds[n]))


def op_stat(name: str) -> list[Any]:
    return told(os.stat(path(name)))


def op_lstat(name: str) -> list[Any]:
    return told(os.lstat(path(name)))


def op_fchmod(n: int, mode: int) -> None:
    os.fchmod(fds[n], mode)


def op_unlink(name: str) -> None:
    os.unlink(path(name))


def op_rename(name: str, to: str) -> None:
    os.rename(path(name), path(to))


def op_link(name: str, to: str) -> None:
    os.link(path(name), path(to))


def op_symlink(target: str, name: str) -> None:
    os.symlink(target, path(name))


def op_readlink(name: str) -> str:
    return os.readlink(path(name))


def op_mkdir(name: str) -> None:
    os.mkdir(path(name))


def op_rmdir(name: str) -> None:
    os.rmdir(path(name))


def op_list(name: str) -> list[str]:
    return sorted(os.listdir(path(name)))


def op_scan(name: str) -> list[list[Any]]:
    with os.scandir(path(name)) as entries:
        return sorted([e.name, told(e.stat(follow_symlinks=False))] for e in entries)


def op_setxattr(name: str, key: str, value: str) -> None:
    os.setxattr(path(name), key, value.encode())


def op_getxattr(name: str, key: str) -> str:
    return os.getxattr(path(name), key).decode()


def op_listxattr(name: str) -> list[str]:
    return sorted(key for key in os.listxattr(path(name)) if not key.startswith(("user.dsm.", "security.")))


def op_load(name: str) -> str:
    with open(path(name), "rb") as f:
        return f.read().hex()


def op_save(name: str, data: str) -> None:
    with open(path(name), "wb") as f:
        f.write(bytes.fromhex(data))


def op_append(name: str, data: str) -> None:
    with open(path(name), "ab") as f:
        f.write(bytes.fromhex(data))


def op_replace(name: str, data: str) -> None:
    """Write a temporary file and rename it over the name, as savers do."""
    temporary = path(name) + ".tmp"
    with open(temporary, "wb") as f:
        f.write(bytes.fromhex(data))
        f.flush()
        os.fsync(f.fileno())
    os.rename(temporary, path(name))


def op_mmap(n: int, fd: int, write: bool) -> None:
    s = os.fstat(fds[fd])
    size = s.st_size
    if size == 0 or not stat.S_ISREG(s.st_mode):
        raise Refused
    keep = os.dup(fds[fd])
    try:
        m = mmap.mmap(fds[fd], size, access=mmap.ACCESS_WRITE if write else mmap.ACCESS_READ)
    except BaseException:
        os.close(keep)
        raise
    if n in maps:
        op_munmap(n)
    maps[n] = (m, keep)


def within(n: int, off: int, size: int) -> mmap.mmap:
    """Return the mapping, for an access that is no SIGBUS."""
    m, fd = maps[n]
    if off + size > min(len(m), os.fstat(fd).st_size):
        raise Refused
    return m


def op_mload(n: int, off: int, size: int) -> str:
    return within(n, off, size)[off : off + size].hex()


def op_mstore(n: int, off: int, data: str) -> None:
    raw = bytes.fromhex(data)
    within(n, off, len(raw))[off : off + len(raw)] = raw


def op_msync(n: int) -> None:
    maps[n][0].flush()


def op_munmap(n: int) -> None:
    m, fd = maps.pop(n)
    m.close()
    os.close(fd)


def op_getfl(n: int) -> int:
    return fcntl.fcntl(fds[n], fcntl.F_GETFL) & (os.O_ACCMODE | os.O_APPEND)


OPERATIONS = {name[3:]: f for name, f in globals().items() if name.startswith("op_")}


def answer(line: str) -> str:
    name, *args = json.loads(line)
    try:
        return "ok " + json.dumps(OPERATIONS[name](*args), separators=(",", ":"))
    except OSError as e:
        return "err " + errno.errorcode.get(e.errno or 0, str(e.errno))
    except Refused:
        return "err refused"
    except KeyError:
        return "err no-such-slot"
    except (TypeError, ValueError) as e:  # Python's own checks, as of a mapping for reading
        return "err " + type(e).__name__


def main() -> None:
    """Serve standard input until it ends."""
    os.umask(0o022)
    for line in sys.stdin:
        print(answer(line), flush=True)


main()
