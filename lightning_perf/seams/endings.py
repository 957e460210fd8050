"""Detect the end of a Trainer's run, whichever hooks it calls."""

import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from lightning_perf import interrupts

from .undo import Undos


def tap_end_of_run(end: Callable[[], None], undos: Undos) -> None:
    """Call ``end`` once the Trainer's entry point (``fit``, ``validate``, …) returns or raises, or Python ends.

    Lightning calls no hook of a callback that was removed from ``trainer.callbacks`` meanwhile, or that comes after one
    whose ``on_exception`` raised. The frame of the entry point has the only reference to a bound method of the Trainer:
    when that is freed, the run is over. Code that keeps an exception also keeps its frames, and so delays ``end``.

    ``end`` is called in whichever thread frees the frame, and must not raise. Does nothing if the entry point is not
    among the callers.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_call_and_handle_interrupt":
        frame = frame.f_back
    entry: Any = None if frame is None else frame.f_locals.get("trainer_fn")
    if entry is not None:
        # ``detach`` releases ``end`` and everything it references.
        undos.note(weakref.finalize(entry, end).detach)


def is_preempted(trainer: Any, error: BaseException | None = None) -> bool:
    """Return whether the run must end soon: this process got SIGTERM, or Lightning raised its exception for it.

    Lightning ends the ranks that got no signal by the same exception.
    """
    return bool(trainer.received_sigterm) or type(error).__name__ == "SIGTERMException"


def is_on_purpose(trainer: Any, error: BaseException) -> bool:
    """Return whether an exception ends a run that did not fail: Ctrl-C, SIGTERM, or a trial that Optuna prunes."""
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__}
    return isinstance(error, KeyboardInterrupt) or is_preempted(trainer, error) or ("optuna", "TrialPruned") in kinds


def is_tuning() -> bool:
    """Return whether Lightning ends a run that only searched for a learning rate or batch size: called in hooks."""
    return type(sys.exc_info()[1]).__name__ == "_TunerExitException"


def tear_down(trainer: Any) -> None:
    """Restore signal handlers and finish loggers, which Lightning omits if a callback's ``on_exception`` raised."""
    with interrupts.suppress(Exception):
        trainer._teardown()
    for logger in trainer.loggers:
        with interrupts.suppress(Exception):
            logger.finalize("failed")
