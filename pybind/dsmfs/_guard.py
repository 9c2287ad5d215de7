"""Runs ``dsmfs dev`` for a program, and cleans up whatever becomes of the program.

usage: _guard.py OWNER BINARY DIR keep|remove ARGUMENT...

Runs ``BINARY dev --orders ARGUMENT... DIR`` and passes on what it prints, and to it the lines of standard input. It ends it when that
ends or has an empty line, and when the program ends, of which OWNER is a pidfd: forks of the program may hold standard input open.
What does not end in time is killed, and what is then still mounted below
DIR is unmounted; with `remove` DIR goes too. The exit code is that of dsmfs. Only the standard library, so that it starts quickly.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import signal
import subprocess
import sys

_PR_SET_PDEATHSIG = 1
_MNT_DETACH = 2
_LEAVE, _HURRY = 60.0, 10.0  # seconds to end when told once, and when told again
_KILLED = 5  # seconds for what was killed to be gone

_libc = ctypes.CDLL(None, use_errno=True)


def main(owner: int, binary: str, directory: str, then: str, arguments: list[str]) -> int:
    """Run the cluster until it is to end."""
    for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(s, lambda *_: None)  # only wakes poll
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    dev = subprocess.Popen(
        [binary, "dev", "--orders", *arguments, directory],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        preexec_fn=_die_with_parent,
        start_new_session=True,
    )
    try:
        nodes = _until_the_end(dev, (owner, wake))
    finally:
        for how, limit in ((signal.SIGTERM, _LEAVE), (signal.SIGTERM, _HURRY), (signal.SIGKILL, _HURRY)):
            if dev.poll() is None:
                dev.send_signal(how)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    dev.wait(limit)
    for pid in nodes:
        _end_node(pid, directory)
    for point in _mounted_below(directory):
        _libc.umount2(os.fsencode(point), _MNT_DETACH)
    if then == "remove":
        with contextlib.suppress(OSError):  # somebody has put something there
            for name in os.listdir(directory):
                os.rmdir(os.path.join(directory, name))
            os.rmdir(directory)
    return dev.returncode if dev.returncode is not None and dev.returncode >= 0 else 1


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _until_the_end(dev: subprocess.Popen[bytes], ends: tuple[int, ...]) -> list[int]:
    """Pass on output until dsmfs or standard input ends, or one of `ends` is readable; return the pids of the nodes."""
    assert dev.stdout is not None and dev.stdin is not None
    out = dev.stdout.fileno()
    ended = os.pidfd_open(dev.pid)
    poll = select.poll()
    for fd in (0, out, ended, *ends):
        poll.register(fd, select.POLLIN)
    said = b""
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if out in ready:
            data = os.read(out, 4096)
            said += data
            with contextlib.suppress(BrokenPipeError):
                os.write(1, data)
            if not data:
                poll.unregister(out)
        elif ready == {0} and (order := os.read(0, 4096).rstrip(b"\n")):
            with contextlib.suppress(BrokenPipeError):
                os.write(dev.stdin.fileno(), order + b"\n")
        elif ready:
            return [int(p) for p in re.findall(rb"pid (\d+)", said)]


def _end_node(pid: int, directory: str) -> None:
    """Kill a node that has outlived dsmfs dev, if `pid` is still that node."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        node = os.pidfd_open(pid)
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                if os.fsencode(directory) not in f.read():
                    return
            signal.pidfd_send_signal(node, signal.SIGKILL)
            ended = select.poll()
            ended.register(node, select.POLLIN)
            ended.poll(1000 * _KILLED)
        finally:
            os.close(node)


def _mounted_below(directory: str) -> list[str]:
    found = []
    with open("/proc/self/mountinfo", encoding="latin-1") as f:
        for line in f:
            fields = line.split(" ")
            point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), fields[4])
            point = point.encode("latin-1").decode("utf-8", "surrogateescape")
            if point.startswith(directory.rstrip("/") + "/") and " fuse.dsmfs " in line:
                found.append(point)
    return found


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5:]))
