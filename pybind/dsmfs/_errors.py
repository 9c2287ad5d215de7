"""What goes wrong, in one hierarchy below :class:`Error`.

What the system reports is also the built-in exception that belongs to its
errno: ``except PermissionError`` catches :class:`AccessError`.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class Error(Exception):
    """Every exception that this package raises on purpose."""


class OperationError(Error, OSError):
    """The daemon or the kernel refused; ``errno`` and ``strerror`` say why."""

    _meeting = 0  #: of a group: the number of the round that is over all the same; 0: none is


class NotFoundError(OperationError, FileNotFoundError):
    """There is no such area, or no such directory."""


class ExistsError(OperationError, FileExistsError):
    """The area is there already."""


class AccessError(OperationError, PermissionError):
    """Owner, group and mode of the area do not allow it."""


class DirectoryError(OperationError, IsADirectoryError):
    """The path is a directory, not an area."""


class TimedOutError(OperationError, TimeoutError):
    """It took longer than allowed. Stores stay and are published later."""


class FaultError(TimedOutError):
    """A page that a load or a store touched did not come from its home in time.

    What the operation read is not its result, and what it stored may be there in part. Doing it again asks again.

    Attributes
    ----------
    offset : int
        Of the page in the file of the area, in bytes.
    """

    offset = -1


class DisconnectedError(OperationError, ConnectionError):
    """The daemon of this node has ended. Attached memory is this process's own from then on."""


class VersionDroppedError(OperationError):
    """A version that this node does not keep any more (ESTALE); the text names the oldest that it keeps."""


class NotFiniteError(OperationError, ArithmeticError):
    """Numbers that are infinite or none at all, and are not published (ERANGE): see `on_nonfinite` of :func:`dsmfs.create`."""


class NotMountedError(OperationError):
    """The path is not in a dsmfs mount."""


class PlaneUnavailableError(OperationError):
    """The memory plane was requested and is not available; the text says why."""


class ClosedError(Error, ValueError):
    """The area was closed."""


class FormatError(Error, ValueError):
    """The area contains something else than was requested, or elements that cannot be merged in this way."""


class NodeError(Error, RuntimeError):
    """A node did not start, or did not end cleanly.

    Attributes
    ----------
    code : int
        Exit code of ``dsmfs``; ``dsmfs help`` lists them.
    """

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


_CLASSES: dict[int, type[OperationError]] = {
    errno.ENOENT: NotFoundError,
    errno.ENOTDIR: NotFoundError,
    errno.EEXIST: ExistsError,
    errno.EACCES: AccessError,
    errno.EPERM: AccessError,
    errno.EROFS: AccessError,
    errno.EISDIR: DirectoryError,
    errno.ETIMEDOUT: TimedOutError,
    errno.ERANGE: NotFiniteError,
    errno.ENOTCONN: DisconnectedError,
    errno.EPIPE: DisconnectedError,
    errno.ECONNRESET: DisconnectedError,
    errno.ECONNREFUSED: DisconnectedError,
    errno.ECONNABORTED: DisconnectedError,
}


#: Texts that are better than the system's for errors about files of a mount.
_WORDS = {
    errno.ENOSPC: "the nodes have not enough memory for it: 'dsmfs status' shows what they have",
    errno.EFBIG: "larger than a file can be",
    errno.ERANGE: "some elements are infinite or not a number, and are not published (on_nonfinite=refuse): store finite ones",
}


def from_errno(code: int, text: str = "", path: str | None = None) -> OperationError:
    """Return the exception for an errno.

    Parameters
    ----------
    code
        An errno.
    text
        What went wrong, for people; without one, what the system says of `code`.
    path
        Of the area.
    """
    cls = _CLASSES.get(code, OperationError)
    text = text.strip() or os.strerror(code)
    return cls(code, text) if path is None else cls(code, text, path)


@contextmanager
def translated(path: str | None = None, doing: str = "") -> Iterator[None]:
    """Turn an OSError of the body into the :class:`Error` for its errno, with the path and operation."""
    try:
        yield
    except OperationError as e:
        if e.filename is None:
            e.filename = path
            if doing and not (e.strerror or "").startswith(f"{doing}: "):  # the daemon may have said it
                e.strerror = f"{doing}: {e.strerror}"
        raise
    except OSError as e:
        text = _WORDS.get(e.errno or 0) or e.strerror or str(e)
        raise from_errno(e.errno or errno.EIO, f"{doing}: {text}" if doing else text, path) from e


def outside() -> int:
    """Return the stacklevel for a warning of the caller about the code that called this package."""
    here, level = os.path.dirname(__file__), 1
    frame = sys._getframe(1)
    while frame.f_back is not None and os.path.dirname(frame.f_code.co_filename) == here:
        frame, level = frame.f_back, level + 1
    return level
