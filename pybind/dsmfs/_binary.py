"""Where the ``dsmfs`` program is, and running it."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

from ._errors import NodeError, NotFoundError


def find_binary() -> str:
    """Return the path of the ``dsmfs`` program.

    That is, the first that there is: ``$DSMFS_BINARY``, what came in the wheel, ``dsmfs`` in ``$PATH``.

    Raises
    ------
    NotFoundError
        There is none, or not where ``$DSMFS_BINARY`` says.
    """
    named = os.environ.get("DSMFS_BINARY")
    if named:
        if not os.access(named, os.X_OK):
            raise NotFoundError(errno.ENOENT, "$DSMFS_BINARY is no program", named)
        return os.path.abspath(named)
    for directory in _script_directories():
        path = directory / "dsmfs"
        if os.access(path, os.X_OK):
            return str(path)
    found = shutil.which("dsmfs")
    if found is None:
        raise NotFoundError(
            errno.ENOENT, "no dsmfs program: not in this package, $PATH or $DSMFS_BINARY; 'make build' makes bin/dsmfs"
        )
    return found


def _script_directories() -> Iterator[Path]:
    """Where pip puts programs: of this Python, and of the user."""
    yield Path(sysconfig.get_path("scripts"))
    yield Path(sysconfig.get_path("scripts", "posix_user"))


def run_binary(arguments: Sequence[str], timeout: float) -> str:
    """Run a verb of ``dsmfs`` and return what it printed.

    Parameters
    ----------
    arguments
        The verb and its flags.
    timeout
        Seconds.

    Raises
    ------
    NodeError
        It failed; `code` is its exit code, the text what it said.
    """
    command = [find_binary(), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired as e:
        raise NodeError(f"dsmfs {arguments[0]} did not end within {timeout:g} s") from e
    if done.returncode != 0:
        raise NodeError(done.stderr.strip() or f"dsmfs {arguments[0]} failed", done.returncode)
    return done.stdout
