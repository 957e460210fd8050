"""Tell errors of PerfDoctor's own code from those that a signal handler raised while that code ran."""

from __future__ import annotations

import signal
import traceback
from types import CodeType


def raise_if_from_signal(error: BaseException) -> None:
    """Raise an error again that a signal handler in Python raised: it is meant for the training, not for a probe.

    Torch's handler raises this way where a loader worker was killed, in whatever code happens to run.
    """
    handlers = _handlers()
    if any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__)):
        raise error


def _handlers() -> set[CodeType]:
    found = set()
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        code = getattr(getattr(handler, "__func__", handler), "__code__", None)
        if isinstance(code, CodeType):
            found.add(code)
    return found
