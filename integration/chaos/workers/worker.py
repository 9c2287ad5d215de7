"""What all workloads share."""

import errno
import json
import random
import select
import sys
import time
from collections.abc import Callable
from typing import Any

# What an operation may say for certain: it has had no effect.
REFUSED = {errno.EEXIST, errno.ENOENT, errno.ENOSPC, errno.EAGAIN, errno.EACCES, errno.EBUSY, errno.EDEADLK}


class Refused(Exception):
    """The operation has had no effect, whatever went wrong."""


class Worker:
    """What all workloads share. A workload has at least setup and step."""

    def __init__(self, argv: list[str]) -> None:
        self.mount, self.number = argv[0], int(argv[1])
        self.random = random.Random(f"{argv[2]} {argv[1]}")
        self.node, self.pause = argv[3], float(argv[4])
        self.count = 0
        self.clear = True

    def path(self, *names: str) -> str:
        """Return the full path of a name on the mount."""
        return "/".join([self.mount, *names])

    def op(self, kind: str, do: Callable[[], Any], a: str = "", b: str = "", n: int = 0) -> Any:
        """Do one operation and record it; what do() returns is an integer, or a dict of more."""
        self.count += 1
        head = {"i": self.count, "op": kind, "a": a, "b": b, "n": n, "t": time.monotonic_ns()}
        print(json.dumps(head), flush=True)
        tail: dict[str, Any] = {"i": self.count, "r": "ok"}
        value = None
        try:
            value = do()
            tail.update(value if isinstance(value, dict) else {"v": value or 0})
        except Refused as e:
            tail.update(r="refused", e=str(e))
        except OSError as e:
            tail.update(r="refused" if e.errno in REFUSED else "unknown", e=errno.errorcode.get(e.errno or 0, str(e)))
        except Exception as e:
            tail.update(r="unknown", e=f"{type(e).__name__}: {e}")
        tail["t"] = time.monotonic_ns()
        print(json.dumps(tail), flush=True)
        self.clear = tail["r"] != "unknown"
        return value if tail["r"] == "ok" else None

    def setup(self) -> None:
        """Make what the workload works on."""

    def step(self) -> None:
        """Do an operation, or some."""
        raise NotImplementedError

    def reset(self) -> None:
        """Give up descriptors and mappings after an operation of which the outcome is unknown."""

    def publish(self) -> None:
        """Publish what programs of this node that are gone have stored."""

    def final(self) -> None:
        """Read everything."""

    def work(self) -> None:
        """Work until standard input ends."""
        while not select.select([sys.stdin], [], [], self.pause if self.clear else 0.3)[0]:
            self.clear = True
            try:
                self.step()
            except OSError:
                self.clear = False
            if not self.clear:
                self.reset()
