"""Turn the SIGBUS for a page that does not come into an exception.

A page of an area on demand may take longer to come than the daemon allows. The daemon then marks the page in this
process, and a thread that touches it gets SIGBUS, at a load or a store somewhere in a loop of NumPy. That loop is C code which
cannot handle it, so the handler is Python code called through ctypes. Here that is safe, because the signal does not come at just any time: the thread is
accessing area memory, which nobody does in the middle of malloc or while taking a lock of the interpreter.

The loop cannot be left; it must run to its end. So the handler

1. traces the thread, as a debugger would, with a function that raises the exception at the next step of its Python code:
   before a result is stored anywhere, and before a handler or ``finally`` of that code runs;
2. moves the page aside, still registered with the daemon, and maps zeroes over it, so that the loop goes on. The following pages are
   probably absent too, and each would take its time to fail. So from the second fault of an operation on, more pages are moved
   aside at once, and replaced by a mapping of an empty file, where each touch is an immediate SIGBUS.

Before it raises, the tracing function removes the mark from the page and moves the page back over the zeroes, in one step. So nobody finds a mapping of the
area there that is not served, which would create a page of zeroes for all programs of the node; and a new try asks again. If the
daemon is gone nobody would answer, so the empty file stays.

Guarantees and limits:

* A thread that runs Python code around the operation gets the exception between two steps of that code. As with KeyboardInterrupt that can be after the end of
  a ``try`` block whose last part is the operation (``return np.dot(a, b)``): CPython from 3.11 on has no step there. Loads and stores of elements do have
  one, because their arrays have a class of their own, see DemandArray. Python code that the operation itself calls runs to its end.
* A thread without Python code, of a pool of BLAS or OpenMP, cannot raise. It goes on in the same way, and the exception is raised in the thread that may
  be waiting for it, at its next call or turn of a loop: in the only other thread, or in all threads whose code at that moment is not the
  standard library's. If there is none, the process ends as it would without this module.
* The handler takes the GIL. NumPy and torch release it in their loops. Code that keeps it while its own pool touches an area hangs.
* Another thread that touches the same page between the fault and the exception may see the zeroes, and what it stores
  there is lost.
* If a thread is traced or profiled by ``sys.settrace``, that ends when the exception is raised, because CPython stops tracing then.
* The signal is one handler's. Who installs another has it until the next area is opened, or an array of one that was there is used for the first time since it
  was opened, or since the process was forked. That is late enough for a worker of torch, which installs one when it starts.
* An interrupt (^C) that came while the thread waited is reported as ignored; the exception is raised all the same.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import functools
import mmap
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from . import _linux
from ._errors import DisconnectedError, FaultError, OperationError
from ._wire import Connection

_PAGE = mmap.PAGESIZE
_GROWTH, _MOST = 8, 1 << 18  # how much more is moved aside with each fault of an operation, and pages at most
_SA_SIGINFO = 4


@dataclass(eq=False)
class _Piece:
    """A part of a mapping over which something else is, or will be, mapped.

    `side` is the address that it is moved to, 0 if the daemon is gone. Whatever of this is done is done in an order in which it can be
    interrupted anywhere, and done again.
    """

    address: int
    length: int
    side: int
    moved: bool = False


class Region:
    """A mapping whose faults become exceptions.

    Parameters
    ----------
    address, length
        Of the mapping, in bytes; whole pages.
    path
        Of the area, for error texts.
    size
        Returns the bytes that the area has now.
    connection
        To the daemon that serves the mapping, open for as long as it is mapped.
    """

    def __init__(self, address: int, length: int, path: str, size: Callable[[], int], connection: Connection) -> None:
        self.address, self.length, self.path, self.connection = address, length, path, connection
        self._size = size
        # Reentrant: a signal handler of the program may touch the area in the middle of put_back.
        self._lock = threading.RLock()  # guards _aside, its pieces, and what is mapped
        self._aside: list[_Piece] = []

    def holds(self, address: int) -> bool:
        """Tell whether an address is in the mapping."""
        return self.address <= address < self.address + self.length

    def piece_at(self, page: int, pages: int) -> _Piece:
        """Return what to move aside so that a page can be covered: the page, and up to `pages` - 1 absent ones after it."""
        with self._lock:
            for piece in self._aside:
                if piece.address <= page < piece.address + piece.length:
                    return piece
            end = min([p.address for p in self._aside if p.address > page], default=self.address + self.length)
            length = _PAGE * max(1, _linux.absent(page, min(pages, (end - page) // _PAGE)))
            piece = _Piece(page, length, 0 if self.connection.ended() else _linux.reserve(length))
            self._aside.append(piece)
            return piece

    def cover(self, piece: _Piece, page: int) -> None:
        """Map zeroes over a page of a piece, and make the rest of the piece fail at once."""
        with self._lock:
            if piece not in self._aside:
                return  # put back by another thread that fails: asked for again
            if not piece.moved:
                if piece.side:
                    self._move_aside(piece)
                if piece.length > _PAGE:
                    _linux.map_over(piece.address, piece.length, True, _nothing())
                piece.moved = True
            if page < piece.address + piece.length:
                _linux.map_zeroes(page, _PAGE)

    def _move_aside(self, piece: _Piece) -> None:
        try:
            _linux.move(piece.address, piece.length, piece.side)
        except OSError as e:  # of more than one mapping, for what was put back may have stayed one of its own
            if e.errno != errno.EFAULT or piece.length == _PAGE:
                raise
            _linux.unmap(piece.side + _PAGE, piece.length - _PAGE)
            piece.length = _PAGE
            _linux.move(piece.address, _PAGE, piece.side)

    def put_back(self, piece: _Piece) -> None:
        """Let the daemon serve a piece again, or, if it is gone, make the piece SIGBUS."""
        with self._lock:
            if piece not in self._aside:
                return
            if piece.moved and piece.side:
                # In this order: of a daemon that ends later, everything absent is marked again.
                _linux.advise(piece.side, piece.length, _linux.MADV_DONTNEED)
            if piece.moved and piece.side and not self.connection.ended():
                _linux.move(piece.side, piece.length, piece.address)
            elif piece.moved:
                _linux.map_over(piece.address, piece.length, True, _nothing())
            self._aside.remove(piece)
            if piece.side:
                _linux.unmap(piece.side, piece.length)

    def error(self, page: int) -> OperationError:
        """Return what a fault at a page is."""
        offset = page - self.address
        if self.connection.ended():
            text = f"the daemon has ended, and what was touched at byte {offset} was not here"
            return DisconnectedError(errno.ENOTCONN, text, self.path)
        if offset >= self._size():
            return OperationError(errno.ENXIO, f"touched at byte {offset}: the area has shrunk", self.path)
        found = FaultError(errno.ETIMEDOUT, f"what was touched at byte {offset} did not come in time", self.path)
        found.offset = offset
        return found

    def again_in_child(self, connection: Connection) -> None:
        """The mapping was replaced in a forked child, which has no other thread."""
        global unsure
        unsure = True
        self._lock = threading.RLock()
        self._aside = []
        self.connection = connection


class _Failure:
    """An operation that goes on for nothing, until it is settled.

    Whatever becomes of who was to settle it: when it is forgotten, as by an interpreter that stops tracing, it settles itself.
    """

    def __init__(self, error: OperationError) -> None:
        self.error = error
        self._settled = False
        self._pieces: list[tuple[Region, _Piece]] = []

    def step_over(self, region: Region, page: int) -> None:
        """Let the thread go on after a page."""
        piece = region.piece_at(page, min(_GROWTH ** len(self._pieces), _MOST))
        if all(p is not piece for _, p in self._pieces):
            self._pieces.append((region, piece))
        region.cover(piece, page)
        if self._settled:  # meanwhile, by another thread
            self.settle()

    def settle(self) -> OperationError:
        """Let everything be served again, also for workers; return what to raise."""
        for failure in (self, *_workers):
            failure._put_back()
            with contextlib.suppress(ValueError):
                _workers.remove(failure)
        return self.error

    def _put_back(self) -> None:
        self._settled = True
        while True:
            try:
                for region, piece in tuple(self._pieces):
                    region.put_back(piece)
                return
            except OperationError as e:  # a worker's, raised here
                self.error = e

    def __del__(self) -> None:
        self.settle()


_regions: tuple[Region, ...] = ()  # replaced, never changed: the handler reads it without a lock
_installed: list[Any] = []  # what must not be freed
unsure = False  # whether to call take before the next access: areas were opened, or the process forked, since
_failures: weakref.WeakValueDictionary[int, _Failure] = weakref.WeakValueDictionary()  # by thread
_workers: list[_Failure] = []  # that of all threads without Python code, if there is one


@functools.cache
def _nothing() -> int:
    """Return a file of length 0: touching a mapping of it is SIGBUS."""
    return os.memfd_create("nothing", os.MFD_CLOEXEC)


def watch(region: Region) -> None:
    """Turn SIGBUS in a region into exceptions from now on. Callers of this and of :func:`forget` exclude each other."""
    global _regions, unsure
    _nothing()
    take()
    _regions = (*_regions, region)
    unsure = True


def forget(region: Region) -> None:
    """Undo :func:`watch`, when nobody has the memory any more."""
    global _regions
    _regions = tuple(r for r in _regions if r is not region)


def _on_fault(number: int, info: Any, _context: int | None) -> None:
    """Handle SIGBUS of this thread, which is at the instruction that touches."""
    about = info.contents
    address = about.address or 0
    region = next((r for r in _regions if r.holds(address)), None) if about.code > 0 else None
    if region is None:
        _chain(number, about.code)
        return
    page = address - address % _PAGE
    try:
        below = sys._getframe().f_back
        failure = _failures.get(threading.get_ident()) if below else next(iter(_workers), None)
        if failure is None:
            error = region.error(page)
            if below is None and _busy():
                return  # to come here again when that thread knows what it fails with
            failure = _trace(below, error) if below else _interrupt(error)
        if failure is None:
            _chain(number, about.code)
            return
        # Last: if this is interrupted before, the instruction comes here again.
        failure.step_over(region, page)
    except OperationError:
        return  # a worker's, raised here: the instruction does it again, and then it is this thread's own
    except OSError:  # nothing can be mapped any more
        _chain(number, about.code)


def _trace(frame: FrameType, error: OperationError) -> _Failure:
    """Make this thread raise an error at the next step of its Python code, whose top frame is `frame`."""
    failure = _Failure(error)
    me = threading.get_ident()
    _failures[me] = failure
    before = frame.f_trace, frame.f_trace_opcodes, sys.gettrace()
    to_settle = weakref.ref(failure)

    def step(at: FrameType, _event: str, _arg: object, /) -> Any:
        # What the operation itself calls goes on: from a finalizer no exception comes through.
        failed = to_settle()  # which would go with the tracing
        if at is not frame or failed is None:
            return None
        frame.f_trace, frame.f_trace_opcodes = before[0], before[1]
        sys.settrace(before[2])
        _failures.pop(me, None)
        try:
            raise failed.settle()
        finally:
            del failed  # it has the error, whose traceback has this frame

    # Only the interpreter has the failure, by a partial: if an interrupt ends the step before it begins, that ends the tracing, and
    # the partial with it. The step itself lives on in the traceback.
    traced: Any = functools.partial(step)
    traced.failure = failure
    frame.f_trace_opcodes = True
    frame.f_trace = traced
    sys.settrace(traced)
    return failure


def _interrupt(error: OperationError) -> _Failure | None:
    """Raise an error in the threads that may be waiting for this one, which runs no Python code."""
    failure = _Failure(error)
    failing = dict(_failures)  # these raise in any case
    me = threading.get_ident()
    waiting = {i: f for i, f in sys._current_frames().items() if i not in failing and i != me}
    if len(waiting) + len(failing) > 1:
        waiting = {i: f for i, f in waiting.items() if not _of_the_library(f)}
    if not waiting and not failing:
        return None
    _workers.append(failure)
    for thread in waiting:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_settling(failure)))
    return failure


def _settling(failure: _Failure) -> type[OperationError]:
    """Return a class of the failure's error whose making settles it: the interpreter makes it in the thread that it interrupts."""
    error = failure.error

    def init(self: OperationError) -> None:
        failure.settle()
        OSError.__init__(self, *error.args, error.filename)
        self.__dict__.update(error.__dict__)

    kind = type(error)
    return type(kind.__name__, (kind,), {"__init__": init, "__module__": kind.__module__, "__doc__": kind.__doc__})


def _busy() -> bool:
    """Tell whether another thread is in this module: it must not be interrupted in that."""
    me = threading.get_ident()
    for thread, top in sys._current_frames().items():
        frame: FrameType | None = top if thread != me else None
        while frame is not None:
            if frame.f_globals is globals():
                return True
            frame = frame.f_back
    return False


def _of_the_library(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in sys.stdlib_module_names


class _Info(ctypes.Structure):
    """siginfo_t, as 64-bit Linux has it."""

    _fields_ = (
        ("number", ctypes.c_int),
        ("errno", ctypes.c_int),
        ("code", ctypes.c_int),
        ("address", ctypes.c_void_p),
    )


class _Action(ctypes.Structure):
    """The struct sigaction of libc, not of the kernel."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


_libc = ctypes.CDLL(None, use_errno=True)
_formers: list[_Action] = []  # who had the signal before, the last one at the end


def take() -> None:
    """Have the signal, also if somebody has taken it since: each worker of a DataLoader of torch does when it starts.

    What is no area's goes on to who had it. None of them has it twice, for the last one may leave it to us in turn.
    """
    global unsure
    unsure = False
    if not _installed:
        # With use_errno a fault in the middle of C code leaves its errno alone.
        kind = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.POINTER(_Info), ctypes.c_void_p, use_errno=True)
        _installed.append(kind(_on_fault))
    action, former = _Action(handler=ctypes.cast(_installed[0], ctypes.c_void_p), flags=_SA_SIGINFO), _Action()
    if _libc.sigaction(signal.SIGBUS, ctypes.byref(action), ctypes.byref(former)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"sigaction: {os.strerror(code)}")
    if former.handler != action.handler:
        if not _formers:
            # Without an interpreter there is nobody to handle it.
            atexit.register(_chain, signal.SIGBUS, 1)
        _formers.append(former)


def _chain(number: int, code: int) -> None:
    """Leave a signal to its former handler: the instruction causes it again, or, if it was sent, it is sent again."""
    former = _formers.pop() if len(_formers) > 1 else _formers[0]
    _libc.sigaction(number, ctypes.byref(former), None)
    if code <= 0:
        signal.raise_signal(number)
