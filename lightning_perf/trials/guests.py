"""Puts callbacks into a Trainer that was built without them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from lightning_perf import seams
from lightning_perf.hooks import DoctorHooks
from lightning_perf.trials.callbacks import callback_class
from lightning_perf.trials.treater import TreaterHooks


def add_callback(trainer: Any, callback: Any, is_first: bool = False) -> None:
    """Adds a callback; in front of all, or after all but those that save checkpoints, which Lightning keeps last.

    Args:
        trainer: The Trainer.
        callback: The callback, of the Trainer's namespace.
        is_first: Whether it goes to the front.
    """
    callbacks = trainer.callbacks
    ends = [index for index, one in enumerate(callbacks) if seams.is_checkpoint_callback(one)]
    callbacks.insert(0 if is_first else min(ends, default=len(callbacks)), callback)


def add_doctor(trainer: Any, namespace: str, arguments: dict[str, Any]) -> Any:
    """Adds PerfDoctor unless the Trainer has one: the user's own is kept as it is.

    Returns:
        The doctor that the Trainer now has.
    """
    theirs = next((one for one in trainer.callbacks if isinstance(one, DoctorHooks)), None)
    if theirs is not None:
        return theirs
    home = "lightning_perf.pytorch_lightning" if namespace == "pytorch_lightning" else "lightning_perf.doctor"
    doctor = importlib.import_module(home).PerfDoctor(**arguments)
    add_callback(trainer, doctor)
    return doctor


def make_applier(specs: Sequence[str], refused: Callable[[BaseException], None] | None = None) -> Any | None:
    """What applies treatments; None where there are none.

    Args:
        specs: As given.
        refused: Told of a training loader that has to stay as it is; None to end the training there.
    """
    if not specs:
        return None
    from lightning_perf.treatments.applier import Applier
    from lightning_perf.treatments.specs import parse_all

    return Applier(parse_all(specs), refused)


def add_treater(trainer: Any, namespace: str, applier: Any, fail: Callable[[BaseException], None]) -> None:
    """Adds what applies treatments, in front of all: whatever looks at the settings sees them treated."""
    add_callback(trainer, callback_class(TreaterHooks, namespace)(applier, fail), is_first=True)
