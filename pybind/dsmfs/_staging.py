"""Memory in which the members of a group hand elements over to the daemon."""

from __future__ import annotations

import fcntl
import mmap
import os

MAPPED_FROM = 128 * 1024
"""From so many bytes on the daemon maps the memory; it reads what is less, which costs less then."""


class Staging:
    """A memfd, and this process's mapping of it.

    Parameters
    ----------
    size
        In bytes.

    Attributes
    ----------
    mapped : bool
        Whether the daemon may map it, and then needs it until the round is over. The seal promises that no touch of it is SIGBUS.
    """

    def __init__(self, size: int) -> None:
        self.fd = os.memfd_create("dsmfs-accumulate", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, size)
            self.mapped = size >= MAPPED_FROM
            if self.mapped:
                fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            self.memory = mmap.mmap(self.fd, size)
        except BaseException:
            os.close(self.fd)
            self.fd = -1
            raise

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class Stagings:
    """Those of a member. They are kept for the next call: making one takes as long as filling it.

    What the daemon may have mapped is used again when the round is over, and kept for one round more.
    """

    def __init__(self) -> None:
        self._spare: Staging | None = None
        self._free: list[Staging] = []
        self._used: list[Staging] = []

    def take(self, size: int) -> Staging:
        """Return one that nobody uses, for :meth:`give` when the daemon has answered. Whoever is interrupted before drops it."""
        if size < MAPPED_FROM:
            spare, self._spare = self._spare, None
            return spare if spare is not None and len(spare.memory) >= size else Staging(size)
        fitting = [s for s in self._free if len(s.memory) >= size]
        if not fitting:
            return Staging(size)
        least = min(fitting, key=lambda s: len(s.memory))
        self._free.remove(least)
        return least

    def give(self, staging: Staging) -> None:
        """Take note that the daemon has, or uses, what is in it."""
        if staging.mapped:
            self._used.append(staging)
        else:
            self._spare = staging

    def over(self) -> None:
        """Use again what was used in the round that is over."""
        self._free, self._used = self._used, []

    def drop(self) -> None:
        """Forget what the daemon may still use: how the round ends is not known."""
        self._free, self._used = [], []
