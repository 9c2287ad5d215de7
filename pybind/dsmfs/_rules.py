"""The rules of an area: extended attributes ``user.dsm.*`` of its file."""

from __future__ import annotations

import errno
import os
import re
import warnings
from collections.abc import Mapping

from ._errors import FormatError, from_errno, translated

_NAMES = (
    "consistency",
    "merge",
    "dtype",
    "apply",
    "interval",
    "residency",
    "access",
    "locks",
    "placement",
    "staleness",
    "retain",
    "replicas",
    "on_nonfinite",
)
#: What a rule may be, for error texts. A test compares them with the daemon's.
VALUES = {
    "consistency": ("relaxed", "versioned"),
    "merge": ("last", "sum", "mean", "min", "max"),
    "dtype": ("auto", "f64", "f32", "f16", "bf16", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"),
    "apply": ("auto", "arrival", "sync"),
    "residency": ("full", "demand"),
    "access": ("cached", "direct"),
    "locks": ("meet", "plain"),
    "replicas": ("1", "2", "3"),
    "on_nonfinite": ("count", "refuse"),
}
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


class Settings(dict[str, str]):
    """Rules by name. Those of :func:`dsmfs.create` have the names that they have there."""

    def __missing__(self, key: str) -> str:
        if key != "mode":
            raise KeyError(key)
        warnings.warn("settings['mode'] is called 'consistency' now", DeprecationWarning, stacklevel=2)
        return self["consistency"]


def attribute(rule: str) -> str:
    """Return the name of a rule's attribute: only one has another name there."""
    return "user.dsm." + ("mode" if rule == "consistency" else rule)


def read(path: str) -> Settings:
    """Return the rules of the area in a file of a mount, by name.

    Raises
    ------
    OperationError
        The file has none, or is gone.
    """
    with translated(path, "settings"):
        return Settings({rule: os.getxattr(path, attribute(rule)).decode() for rule in _NAMES})


def write(target: str | int, path: str, rules: Mapping[str, str]) -> None:
    """Set rules of a file.

    Parameters
    ----------
    target
        The file: its path, or a descriptor.
    path
        For error texts.
    rules
        By name.

    Raises
    ------
    OperationError
        EINVAL: there is no such value, or not for this file.
    """
    for rule, value in rules.items():
        try:
            os.setxattr(target, attribute(rule), value.encode())
        except OSError as e:
            why = e.strerror
            if e.errno == errno.EINVAL:
                why = _why(rule, value)
            raise from_errno(e.errno or errno.EIO, f"{rule}={value}: {why}", path) from e


def check(rules: Mapping[str, str], path: str) -> None:
    """Fail if a rule is none that any file has.

    Raises
    ------
    OperationError
        EINVAL.
    """
    for rule, value in rules.items():
        if value not in VALUES.get(rule, (value,)):
            raise from_errno(errno.EINVAL, f"{rule}={value}: {_why(rule, value)}", path)


def _why(rule: str, value: str) -> str:
    known = VALUES.get(rule)
    if rule == "interval":
        return "want a time from 0 to 1h, such as 250ms; 0 is never"
    if rule == "staleness":
        return "want none, or a time from 1ms to 1h, such as 250ms; a file of access direct has none"
    if known is None or value in known:
        return "this file cannot have it as it is: the log of the daemon says why"
    return f"want {' or '.join(known)}"


def duration(time: float | str) -> str:
    """Return an interval, or a bound on staleness, as dsmfs takes it; numbers are seconds."""
    if isinstance(time, str):
        return time
    return f"{max(time, 1e-9) if time > 0 else time:.9f}s"  # 0 is never, so what is hardly more is not 0


def seconds(interval: str) -> float | None:
    """Return an interval in seconds; None if it is no time."""
    if interval.isascii() and interval.isdecimal():
        return int(interval) / 1000
    parts = re.findall(r"([0-9]*\.?[0-9]+|[0-9]+\.)(ns|us|µs|ms|s|m|h)", interval)
    if not parts or "".join(map("".join, parts)) != interval:
        return None
    return round(sum(float(n) * _UNITS[unit] for n, unit in parts), 9)


def compare(path: str, there: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Fail if rules that somebody wants are not those of the file.

    Raises
    ------
    FormatError
        One is another.
    """
    for rule, value in wanted.items():
        has = there[rule]
        timed = rule in ("interval", "staleness") and seconds(value) is not None
        same = seconds(has) == seconds(value) if timed else has == value
        if not same:
            raise FormatError(
                f"{path} is there with {rule}={has}, not {value}: leave {rule} out, or change it by configure()"
            )
