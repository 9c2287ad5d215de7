"""A whole cluster on this machine, for tests and notebooks."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, overload

from ._binary import find_binary
from ._errors import NodeError
from ._filesystem import Filesystem
from ._html import html_table

_LONGEST = 2**31 - 1  # milliseconds that poll takes
_STOP_LIMIT = 120.0  # seconds; the guard kills what it must before


class Cluster(Sequence[Filesystem]):
    """Nodes of one cluster, each with a mount, in processes of this machine: see :func:`cluster`.

    A sequence of the nodes' :class:`Filesystem`. :meth:`kill` and :meth:`add` rehearse failures.

    Attributes
    ----------
    directory : str
        The mounts are in it: ``node1``, ``node2``, ...
    """

    def __init__(self, nodes: int, directory: str | None, memory: int | str | None, timeout: float) -> None:
        binary = find_binary()
        self.directory = os.path.realpath(tempfile.mkdtemp(prefix="dsmfs-py-") if directory is None else directory)
        then = "remove" if directory is None else "keep"
        self._nodes: list[Filesystem] = []
        self._printed = b""
        flags = ["--nodes", str(nodes)]
        if memory is not None:
            flags += ["--memory", str(memory)]
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close
        guard = Path(__file__).with_name("_guard.py")
        self._owner = os.getpid()
        owner = os.pidfd_open(self._owner)
        try:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", str(guard), str(owner), binary, self.directory, then, *flags],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                pass_fds=[owner],
                start_new_session=True,  # Ctrl-C is for the program
            )
        finally:
            os.close(owner)
        # The guard sees the end of this process, whatever ends it. The finalizer is for
        # objects that are dropped while the process lives.
        self._stop = weakref.finalize(self, _stop, self._guard, self._owner)
        self._stop.atexit = False
        try:
            self._await_ready(nodes, timeout)
        except BaseException:
            with contextlib.suppress(NodeError):
                self.close()
            raise

    def _line(self, what: str, timeout: float) -> str:
        """Wait for the next line that dsmfs prints."""
        assert self._guard.stdout is not None
        out, end = self._guard.stdout.fileno(), time.monotonic() + timeout
        ready = select.poll()  # not select, which knows descriptors below 1024 only
        ready.register(out, select.POLLIN)
        while b"\n" not in self._printed:
            if not ready.poll(min(1000 * max(0.0, end - time.monotonic()), _LONGEST)):
                raise NodeError(f"{what} within {timeout:g} s\n{self._said()}")
            data = os.read(out, 4096)
            if not data:
                self._guard.wait()
                raise NodeError(self._said(), self._guard.returncode)
            self._printed += data
        line, _, self._printed = self._printed.partition(b"\n")
        return line.decode()

    def _await_ready(self, nodes: int, timeout: float) -> None:
        while not self._line(f"{nodes} nodes were not ready", timeout).startswith("ready"):
            pass
        self._nodes = [Filesystem(os.path.join(self.directory, f"node{i + 1}")) for i in range(nodes)]

    def _order(self, order: str, what: str, timeout: float) -> str:
        if not self._stop.alive:
            raise NodeError("the cluster has ended")
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # _line says why
            self._guard.stdin.write(f"{order}\n".encode())
            self._guard.stdin.flush()
        line = self._line(what, timeout)
        if line.startswith("refused: "):
            raise NodeError(line.removeprefix("refused: "))
        return line

    def kill(self, index: int) -> None:
        """End a node at once, as the loss of its machine would: it leaves nobody a word, and what only it had is gone.

        Its mount goes too, and the node is none of the sequence any more. The others take it for dead after a few seconds.

        Parameters
        ----------
        index
            Of the node in the sequence.
        """
        node = self._nodes[index]
        self._order(f"kill {os.path.basename(node.path)}", f"{node!r} did not end", _STOP_LIMIT)
        self._nodes.remove(node)

    def add(self, timeout: float = 120.0) -> Filesystem:
        """Start one more node, which is the last of the sequence then.

        Parameters
        ----------
        timeout
            Seconds until it must be ready.

        Raises
        ------
        NodeError
            It did not start; the text is what the daemon said.
        """
        line = self._order("add", "the node was not ready", timeout)
        self._nodes.append(Filesystem(os.path.join(self.directory, line.split()[0])))
        return self._nodes[-1]

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode("utf-8", "replace").strip()

    def close(self) -> None:
        """End all nodes, unmount, remove what was made. More calls do nothing.

        Raises
        ------
        NodeError
            A node had ended before or did not end cleanly. Nothing is left running or mounted all the same.
        """
        if self._stop.detach() is None or os.getpid() != self._owner:  # a forked process has nothing to end
            return
        code = _stop(self._guard, os.getpid())
        said = self._said()
        self._errors.close()
        if code != 0:
            raise NodeError(said or f"dsmfs dev ended with {code}", code)

    @overload
    def __getitem__(self, index: int) -> Filesystem: ...

    @overload
    def __getitem__(self, index: slice) -> list[Filesystem]: ...

    def __getitem__(self, index: int | slice) -> Filesystem | list[Filesystem]:
        return self._nodes[index]

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Filesystem]:
        return iter(self._nodes)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except NodeError:
            if error is None:
                raise

    def __repr__(self) -> str:
        return f"<dsmfs.Cluster of {len(self)} in {self.directory!r}>"

    def _repr_html_(self) -> str:
        rows: dict[str, object] = {os.path.basename(n.path): n.path for n in self._nodes}
        return html_table(f"cluster of {len(self)}", rows)


def _stop(guard: subprocess.Popen[bytes], owner: int) -> int:
    """End the guard, and with it the cluster; return the exit code."""
    if os.getpid() != owner:  # a fork of the program
        return 0
    assert guard.stdin is not None and guard.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        guard.stdin.write(b"\n")  # forks of the program may hold the pipe open
        guard.stdin.close()
    try:
        code = guard.wait(_STOP_LIMIT)
    except subprocess.TimeoutExpired:
        guard.kill()
        code = guard.wait()
    guard.stdout.close()
    return code


def cluster(
    nodes: int = 3,
    directory: str | None = None,
    *,
    memory: int | str | None = None,
    timeout: float = 120.0,
) -> Cluster:
    """Start a cluster on this machine: real nodes, each with a mount.

    It ends with its context, with :meth:`Cluster.close`, when it is dropped, or when this process ends in whatever
    way, SIGKILL too. It needs root and ``/dev/fuse``.

    Parameters
    ----------
    nodes
        How many.
    directory
        For the mounts; without one, a temporary directory.
    memory
        Of each node for areas: bytes, or text such as ``256MiB``. Without it, an equal part of what one would take.
    timeout
        Seconds until all nodes must be ready.

    Returns
    -------
    Cluster
        A sequence of :class:`Filesystem`.

    Raises
    ------
    NodeError
        It did not start; the text is what the daemons said.
    NotFoundError
        There is no ``dsmfs`` program.
    """
    return Cluster(nodes, directory, memory, timeout)
