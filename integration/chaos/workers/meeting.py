"""A group of which each node has one member: barriers, and a counter."""

import contextlib
import os
from typing import Any

import dsmfs

from integration.chaos.workers.worker import Refused, Worker

SIZE = 3  # nodes


class Meeting(Worker):
    """One member."""

    group: dsmfs.Group | None = None

    def setup(self) -> None:
        with open(self.path("meeting"), "xb"), contextlib.suppress(OSError):  # not known yet to all versions
            os.setxattr(self.path("meeting"), "user.dsm.replicas", b"2")

    def joined(self) -> dsmfs.Group:
        """Return the membership; who has none waits for one."""
        if self.group is None:
            try:
                self.group = dsmfs.group(self.path("meeting"), SIZE, timeout=10)
            except (OSError, dsmfs.Error) as e:
                raise Refused(f"join: {e}") from e
        return self.group

    def step(self) -> None:
        if self.random.randrange(2):
            self.op("count", self.count_one)
        else:
            self.op("barrier", self.meet)

    def count_one(self) -> int:
        """Return the counter after one more."""
        return self.joined().counter("c").add(1)

    def meet(self) -> dict[str, Any]:
        """Return the number of the barrier, and in s who was there."""
        meeting = self.joined().barrier(timeout=20)
        return {"v": meeting.number, "s": list(meeting.members)}

    def reset(self) -> None:
        group, self.group = self.group, None
        if group is not None:
            with contextlib.suppress(OSError, dsmfs.Error):
                group.leave()
