"""Distinguish errors of PerfDoctor's own code from those that a signal handler raised while that code ran.

Torch's handler of SIGCHLD raises where a loader worker was killed, in whatever code happens to run; users' handlers may
raise to end a training. Such an error is meant for the training, not for the code that it interrupted.
``RaisesWhenFreed`` raises it again where Python would only print it. ``Latch`` is an event that such an error cannot
leave locked.
"""

import contextlib
import ctypes
import inspect
import signal
import threading
import traceback
import weakref
from functools import partial
from itertools import pairwise
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

_RAISED_AGAIN = "_lightning_perf_raised_again"
"""Attribute of errors that were raised again: before Python 3.12 they lose the handler's frames."""

# The third argument is the weak reference that calls it; CPython's function takes only the first two.
_raise_in_thread = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.py_object, ctypes.py_object)(
    ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
)


def is_from_signal(error: BaseException) -> bool:
    """Return whether a signal handler in Python raised this error."""
    if is_raised_again(error):
        return True
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if len(frames) < 2:
        return False  # raised by what the catching function itself called, not by a handler, which has its own frame
    if any(_is_handler_call(frame, caller) for caller, frame in pairwise(frames)):
        return True
    handlers = _handlers()  # for one that no longer has its arguments
    return any(frame.f_code in handlers for frame in frames)


def is_raised_again(error: BaseException) -> bool:
    """Return whether ``RaisesWhenFreed`` raised this error."""
    return hasattr(error, _RAISED_AGAIN)


def raise_if_from_signal(error: BaseException) -> None:
    """Raise an error again if a signal handler raised it."""
    if is_from_signal(error):
        raise error


class RaisesWhenFreed:
    """Raises an error in the current thread when the last reference to this object is dropped.

    Python does not raise errors of callbacks of the garbage collector: it passes them to ``sys.unraisablehook``, and
    prints what that hook raises. If the hook holds this object in a local variable, the error is raised after the hook
    has returned, in the code that the collection interrupted.
    """

    def __init__(self, error: BaseException) -> None:
        # Python expects a class, and makes an instance when it raises it: this class returns the existing error.
        kind = type("RaisedAgain", (type(error),), {"__new__": lambda *_: error})
        # A C function, because the error would be raised in the first Python function that runs.
        setattr(error, _RAISED_AGAIN, weakref.ref(self, partial(_raise_in_thread, threading.get_ident(), kind)))


class Latch:
    """An event that is set once and can be waited for by several threads.

    If a signal handler raises within ``threading.Event.set`` or ``wait``, the event's lock may stay locked: the next
    call waits for ever. Here the lock is taken and released by single calls of C code, which no handler interrupts.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._closed = threading.Lock()  # held until the latch is set
        self._closed.acquire()

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Wake the waiting threads. Can be called again, e.g. after an interrupt."""
        self._is_set = True
        self._open()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is set, at most ``seconds`` (None: without limit); return whether it is."""
        timeout = -1.0 if seconds is None else min(max(0.0, seconds), threading.TIMEOUT_MAX)
        if not self._is_set and self._closed.acquire(timeout=timeout):
            self._open()  # for the next thread that waits
        return self._is_set

    def _open(self) -> None:
        with suppress(RuntimeError):  # it is open
            self._closed.release()


def error_text(error: Exception) -> str:
    """Return the type and message of an error; raise it again if a signal handler raised it."""
    raise_if_from_signal(error)
    return type_and_message(error)


def type_and_message(error: BaseException) -> str:
    """Return the type and message of an error; no message if its class cannot give one."""
    message = ""
    with suppress(Exception):
        message = str(error)
    return f"{type(error).__name__}: {message}"


class suppress(contextlib.suppress):
    """``contextlib.suppress`` that lets errors of signal handlers pass."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        """Suppress an error of the given kinds unless a signal handler raised it."""
        return bool(super().__exit__(kind, error, trace)) and error is not None and not is_from_signal(error)


def _is_handler_call(frame: FrameType, interrupted: FrameType) -> bool:
    """Return whether a frame was called with a signal's number and the frame that it interrupted."""
    code = frame.f_code
    n_named = code.co_argcount
    arguments = [frame.f_locals.get(name) for name in code.co_varnames[:n_named]]
    if code.co_flags & inspect.CO_VARARGS:
        rest = frame.f_locals.get(code.co_varnames[n_named + code.co_kwonlyargcount])
        arguments += rest if type(rest) is tuple else ()
    return any(
        after is interrupted and isinstance(before, int) and before in signal.valid_signals()
        for before, after in pairwise(arguments)
    )


def _handlers() -> set[CodeType]:
    handlers = map(signal.getsignal, signal.valid_signals())
    return {code for handler in handlers if callable(handler) and (code := _code_of(handler)) is not None}


def _code_of(handler: Any) -> CodeType | None:
    """Return the code that runs for a handler in Python; Lightning's handler of SIGTERM is a callable object."""
    while type(handler) is partial:
        handler = handler.func
    if type(handler) is MethodType:
        handler = handler.__func__
    if type(handler) is not FunctionType:
        handler = inspect.getattr_static(type(handler), "__call__", None)
    return handler.__code__ if type(handler) is FunctionType else None
