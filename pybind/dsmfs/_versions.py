"""Versions of areas."""

from __future__ import annotations

_LOGICAL_BITS = 12


def version_time(version: int) -> float:
    """Return when a version was made.

    Parameters
    ----------
    version
        A hybrid logical clock: the upper 52 bits are microseconds since 1970, the lower 12 count
        events within one.

    Returns
    -------
    float
        Seconds since 1970, as of `time.time`, by the clock of the node that made it.
        0.0 for version 0, which is before every publish.
    """
    return (version >> _LOGICAL_BITS) / 1e6
