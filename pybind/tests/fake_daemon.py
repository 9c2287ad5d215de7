"""The daemon's side of docs/attach.md over one memfd, for tests of the client without mounts."""

from __future__ import annotations

import array
import contextlib
import errno
import mmap
import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from dsmfs._wire import HEADER, MAX_PAYLOAD, Op, Reply, pack, unpack

from .fake_demand import Home, Served
from .fake_heads import Heads

TRACKS, DEMAND, COMPARES = 1, 5, 2  # what ATTACH says of the userfaultfd
LASTS = 32  # and that the attachment outlives the daemon
NONSENSE = b"this is no packet"


@dataclass
class Request:
    """What a client asked, and what came with it."""

    message: Reply
    kinds: list[str]  # what the descriptors are, as /proc has it


@dataclass
class Area:
    """A file: its memory, and the newest version."""

    memory: int
    size: int
    version: int = 0
    settings: list[str] = field(default_factory=list)
    number: int = 7
    home: Home | None = None  # of an area of which only a part is here
    served: list[Served] = field(default_factory=list)

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """Have the home not answer meanwhile."""
        self._home_is(False)
        try:
            yield
        finally:
            self._home_is(True)

    def _home_is(self, up: bool) -> None:
        assert self.home is not None
        self.home.up = up
        for s in self.served:
            s.home_is(up)


class FakeDaemon:
    """Answers clients at `path` until it is closed.

    `refuse` makes it answer an op with an errno and a text. WAIT for a version that is not there is answered
    when :meth:`publish` makes it, or ETIMEDOUT. It dies when it is asked an op in `dies_at`, or has done one in `dies_after`, before
    it answers. It answers nonsense to one in `nonsense_at`.

    With `before` it follows a daemon that has died, and has its listening socket and its areas. With `heads` it has header pages.
    """

    def __init__(
        self,
        path: str,
        wants: int = TRACKS,
        before: FakeDaemon | None = None,
        heads: bool = False,
        dies_at: set[Op] | None = None,
        nonsense_at: set[Op] | None = None,
        refuse: dict[Op, tuple[int, str]] | None = None,
    ) -> None:
        self.path = path
        self.wants = wants
        self.dies_at = dies_at or set()
        self.dies_after: set[Op] = set()
        self.nonsense_at = nonsense_at or set()
        self.resumes_as: int | None = None  # another number of the area, which is wrong
        self.heads = Heads() if heads else None
        self.areas: dict[str, Area] = {}
        self.unnamed: dict[int, Area] = {}  # by attachment
        self.requests: list[Request] = []
        self.refuse = refuse or {}
        self.changed = threading.Condition()
        self.closed = False
        self._attached: dict[int, Area] = {}
        self.accepted: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._last = True  # nobody has its areas but it
        self._stop, self._stopped = os.pipe()
        if before is None:
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._listener.bind(path)
            self._listener.listen()
            self._listener.setblocking(False)
        else:
            self._listener, self.areas, self.unnamed = before._listener, before.areas, before.unnamed
            before._last = False
        self._start(self._accept)

    def make(self, path: str, content: bytes) -> Area:
        """Make an area."""
        memory = os.memfd_create("fake", os.MFD_CLOEXEC)
        os.ftruncate(memory, len(content))
        os.pwrite(memory, content, 0)
        self.areas[path] = Area(memory, len(content))
        return self.areas[path]

    def make_absent(self, path: str, content: bytes, limit: float = 0.05) -> Area:
        """Make an area of which nothing is here yet. Its programs must be other processes: who waits for a page may have the GIL."""
        area = self.make(path, b"")
        area.size = len(content)
        os.ftruncate(area.memory, area.size)
        area.home = Home(bytearray(content), limit)
        return area

    def end_serving(self) -> None:
        """End as a daemon does that serves faults."""
        self.hang_up()
        for a in self.areas.values():
            while a.served:
                a.served.pop().end()

    def publish(self, area: Area) -> int:
        """Give an area a new version, made now."""
        with self.changed:
            area.version = max(area.version + 1, int(time.time() * 1e6) << 12)
            if self.heads is not None:
                self.heads.tell(area.number, area.version)
            self.changed.notify_all()
            return area.version

    def asked(self, op: Op) -> list[Request]:
        """Return the requests of a kind."""
        with self.changed:
            return [r for r in self.requests if r.message.op == op]

    def await_asked(self, op: Op, count: int) -> None:
        """Wait until there were so many requests of a kind."""
        with self.changed:
            done = self.changed.wait_for(lambda: sum(r.message.op == op for r in self.requests) >= count, 30)
        assert done, f"{op.name} was not asked {count} times"

    def hang_up(self) -> None:
        """End all connections, as the end of a daemon does."""
        for c in self.accepted:
            with contextlib.suppress(OSError):
                c.shutdown(socket.SHUT_RDWR)

    def die(self) -> None:
        """End as a daemon does that is killed: its listening socket stays open, and another may follow."""
        os.write(self._stopped, b"x")
        if self.heads is not None:
            self.heads.die()
        self.hang_up()
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def await_death(self) -> None:
        """Wait until it has died."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.closed, 30)

    def give_up(self) -> None:
        """Close the listening socket, as when no daemon follows any more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def close(self) -> None:
        """End."""
        self.die()
        for t in self._threads:
            t.join(30)
            assert not t.is_alive()
        for c in self.accepted:
            c.close()
        os.close(self._stop)
        os.close(self._stopped)
        if self.heads is not None:
            self.heads.close()
        if not self._last:
            return
        self.give_up()
        self.end_serving()
        for a in [*self.areas.values(), *self.unnamed.values()]:
            os.close(a.memory)

    def _start(self, target: object, *args: object) -> None:
        t = threading.Thread(target=target, args=args)  # type: ignore[arg-type]
        self._threads.append(t)
        t.start()

    def _accept(self) -> None:
        ready = select.poll()
        ready.register(self._listener, select.POLLIN)
        ready.register(self._stop, select.POLLIN)
        while True:
            if any(fd == self._stop for fd, _ in ready.poll()):
                return
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            client.setblocking(True)
            self.accepted.append(client)
            self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        while True:
            try:
                packet, ancillary, _, _ = client.recvmsg(HEADER.size + MAX_PAYLOAD, 1024, socket.MSG_CMSG_CLOEXEC)
            except OSError:
                return
            if not packet:
                return
            fds = array.array("i")
            for _, _, data in ancillary:
                fds.frombytes(data)
            message = unpack(packet, [])
            with self.changed:
                self.requests.append(Request(message, [os.readlink(f"/proc/self/fd/{fd}") for fd in fds]))
                self.changed.notify_all()
            if message.op in self.dies_at:
                self.die()
                for fd in fds:
                    os.close(fd)
                return
            if message.op in self.nonsense_at:
                client.send(NONSENSE)
            self._start(self._answer, client, message, fds.tolist())

    def _answer(self, client: socket.socket, m: Reply, fds: list[int]) -> None:
        op = Op(m.op)
        fd = None
        args: tuple[int, ...] = ()
        payload, error = b"", 0
        attachment = m.attachment
        try:
            if op in self.refuse:
                error, text = self.refuse[op]
                raise OSError(error, text)
            if op is Op.ATTACH:
                area = self._area(m.payload.decode())
                fd = area.memory
                if m.args[0] == 1 and area.home is None:
                    fd = os.open(f"/proc/self/fd/{area.memory}", os.O_RDONLY | os.O_CLOEXEC)
                attachment = len(self._attached) + 1
                self._attached[attachment] = area
                args = (area.size, area.number, m.args[0], self.wants if area.home is None else DEMAND)
            elif op is Op.RESUME:
                access, number, memory, _ = m.args
                known = [*self.areas.values(), *self.unnamed.values()]
                found = [a for a in known if a.number == number and os.fstat(a.memory).st_ino == memory]
                if not found:
                    raise OSError(errno.ESTALE, "there is no such attachment")
                attachment = len(self._attached) + 100  # as no other daemon has it
                self._attached[attachment] = found[0]
                self.unnamed = {attachment if a is found[0] else k: a for k, a in self.unnamed.items()}
                args = (found[0].size, self.resumes_as or number, access, self.wants)
            elif op is Op.CREATE:
                path, *settings, _ = m.payload.decode().split("\n")
                if path in self.areas:
                    raise OSError(errno.EEXIST, "there is one")
                self.make(path, bytes(m.args[0])).settings = settings
                args = (m.args[0], 7)
            elif op is Op.PREPARE:
                path, *settings, _ = m.payload.decode().split("\n")
                if path in self.areas:
                    raise OSError(errno.EEXIST, "there is one")
                area = self.make("", bytes(m.args[0]))
                area.settings = settings
                fd = area.memory
                attachment = len(self._attached) + 1
                self.unnamed[attachment] = self.areas.pop("")
                self._attached[attachment] = area
                args = (area.size, area.number, 3, self.wants)
            elif op is Op.NAME:
                path = m.payload.decode()
                if path in self.areas:
                    raise OSError(errno.EEXIST, "there is one")
                self.areas[path] = self.unnamed.pop(m.attachment)
                args = (self.publish(self.areas[path]),)
            elif op is Op.TRACK:
                area = self._attached[m.attachment]
                if area.home is not None:
                    address, length, offset, _ = m.args
                    area.served.append(Served(fds.pop(), address, length, offset, area.memory, area.home))
                args = (1 if self.wants == TRACKS else 3,)
            elif op is Op.RESIZE:
                area = self._attached[m.attachment]
                area.size = m.args[0]
                os.ftruncate(area.memory, area.size)
                if area.home is not None:
                    area.home.content = area.home.content[: area.size].ljust(area.size, b"\0")
                args = (area.size,)
            elif op is Op.STATS:
                version = self._attached[m.attachment].version
                payload = f"version {version}\npublish_seconds 0.5\ntracking wp-async\n".encode()
                if version:
                    payload += b"staleness_ms 250\n"
            elif op is Op.WAIT:
                args = (self._wait(self._attached[m.attachment], m.args[0], m.args[1]),)
            elif op is Op.JOIN:
                args = (0, m.args[0], 1, 0)
            elif op in (Op.WATCH, Op.EXPECT) and self.heads is None:
                raise OSError(errno.EINVAL, "as a daemon without header pages says")
            elif op is Op.WATCH and self.heads is not None:
                fd = self.heads.fd
                args = self.heads.line(self._attached[m.attachment].number, self._attached[m.attachment].version)
            elif op in (Op.PUBLISH, Op.SYNC):
                args = (self.publish(self._attached[m.attachment]),)
            elif op is Op.ACQUIRE:
                args = (self._attached[m.attachment].version,)
        except OSError as e:
            error, payload = e.errno or errno.EIO, (e.strerror or "").encode()
        for x in fds:
            os.close(x)
        if op in self.dies_after:
            self.die()
        rights = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        with contextlib.suppress(OSError):  # it has gone
            client.sendmsg([pack(op, m.tag, attachment, args, payload, error)], rights)
        if op is Op.ATTACH and fd is not None and fd != area.memory:
            os.close(fd)

    def _area(self, path: str) -> Area:
        if path not in self.areas:
            raise OSError(errno.ENOENT, f"{path}: no such area")
        return self.areas[path]

    def _wait(self, area: Area, version: int, milliseconds: int) -> int:
        with self.changed:
            limit = milliseconds / 1000 or 30
            there = self.changed.wait_for(lambda: self.closed or area.version >= version, limit)
        if not there:
            raise OSError(errno.ETIMEDOUT, f"version {version} did not come")
        return area.version


def page_of(address: int) -> str:
    """Return the VmFlags of the mapping of this process that an address is in."""
    inside = False
    with open("/proc/self/smaps", encoding="ascii") as f:
        for line in f:
            first = line.split(" ")[0]
            if "-" in first and not first.endswith(":"):
                low, high = (int(x, 16) for x in first.split("-"))
                inside = low <= address < high
            elif inside and line.startswith("VmFlags:"):
                return line
    raise AssertionError(f"nothing is mapped at {address:#x}")


assert mmap.PAGESIZE == 4096, "the protocol's pages"
