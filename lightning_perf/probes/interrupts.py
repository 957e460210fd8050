"""Tell errors of PerfDoctor's own code from those that a signal handler raised while that code ran."""

from __future__ import annotations

import signal
import traceback
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

from . import plain


def raise_if_from_signal(error: BaseException) -> None:
    """Raise an error again that a signal handler in Python raised: it is meant for the training, not for a probe.

    Torch's handler raises this way where a loader worker was killed, in whatever code happens to run.
    """
    handlers = _handlers()
    if any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__)):
        raise error


def _handlers() -> set[CodeType]:
    handlers = map(signal.getsignal, signal.valid_signals())
    return {code for code in map(_code_of, handlers) if code is not None}


def _code_of(handler: Any) -> CodeType | None:
    """Return the code that runs for a handler in Python; Lightning's handler of SIGTERM is a callable object."""
    while type(handler) is partial:
        handler = handler.func
    if type(handler) is MethodType:
        handler = handler.__func__
    if type(handler) is not FunctionType:
        handler = plain.class_attribute(type(handler), "__call__")
    return handler.__code__ if type(handler) is FunctionType else None
