"""What happens in the user's process once Lightning's Trainer is imported: each mode hangs itself into it.

A mode is told of every Trainer that is built and of every ``fit``. In mode ``run`` nothing of ours may break the user's
training: an error is one line on standard error. In the others the training is there to be measured only, so an error
of ours ends the script, with its reason in the result file.

A script that was measured ends as by Ctrl-C: ``Over`` unwinds it, so that its ``with`` and ``finally`` blocks and its
exit handlers put things in order. One that catches it gets it again from the next thing that it does with a Trainer,
and is ended by force where it does not come to its end in ``UNWINDING_S``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import random
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, Protocol

from lightning_perf import seams
from lightning_perf.trials.job import JOB_VARIABLE, OUTPUTS, RESULT_FILE, Job, Result, note, read_job, warn

MODES = {
    "run": "lightning_perf.trials.run_mode:RunMode",
    "trial": "lightning_perf.trials.trial_mode:TrialMode",
    "data": "lightning_perf.trials.data_mode:DataMode",
    "ceiling": "lightning_perf.trials.data_mode:CeilingMode",
}
"""Where each mode stands (``module:class``); imported when it is needed."""

FAILED = 70
"""Exit code of a process whose training was measured and failed; ``EX_SOFTWARE`` of sysexits.h."""


UNWINDING_S = 10.0
"""What a script may take to put things in order when it was measured."""

LATER = ("validate", "test", "predict")
"""What a script does with a Trainer after ``fit`` is no part of a measurement; what it saves is led away."""


class Over(SystemExit):
    """The measurement is over, and so is the script."""


class InsideMode(Protocol):
    """One mode, in the user's process. It is made once, with the job, before the first Trainer."""

    def __init__(self, job: Job) -> None: ...

    def change_arguments(self, arguments: dict[str, Any], namespace: str) -> dict[str, Any]:
        """Before ``Trainer.__init__``: the keyword arguments to use instead of the user's.

        Args:
            arguments: What the user's code gave; not to be changed in place.
            namespace: ``lightning.pytorch`` or ``pytorch_lightning``.
        """

    def built(self, trainer: Any, namespace: str) -> None:
        """After ``Trainer.__init__``."""

    def fit(self, trainer: Any, fit: Callable[[], Any]) -> Any:
        """Instead of ``trainer.fit(...)``; calls ``fit``, which is Lightning's own with the user's arguments."""


def enter(module: ModuleType) -> None:
    """Wraps the Trainer of a module that was imported just now.

    Args:
        module: ``lightning.pytorch.trainer.trainer`` or ``pytorch_lightning.trainer.trainer``.
    """
    job = read_job(os.environ[JOB_VARIABLE])
    if job.seed is not None:
        seed_all(job.seed)  # a model built from here on starts from the same weights in every arm
    namespace = module.__name__.removesuffix(".trainer.trainer")
    guest = Guest(job, namespace)
    trainer_class = module.Trainer
    trainer_class.__init__ = guest.around_init(trainer_class.__init__)
    trainer_class.fit = guest.around_fit(trainer_class.fit)
    if job.mode != "run":
        seams.lead_loggers_away(str(Path(job.folder) / OUTPUTS), namespace)
        for name in LATER:
            setattr(trainer_class, name, unless_over(getattr(trainer_class, name)))


class Guest:
    """Calls the mode around the Trainer's own methods, and answers for its errors."""

    def __init__(self, job: Job, namespace: str) -> None:
        self.job = job
        self.namespace = namespace
        self._mode: InsideMode | None = None
        self._is_off = False
        self._depth = 0

    @property
    def mode(self) -> InsideMode:
        if self._mode is None:
            home, _, name = MODES[self.job.mode].partition(":")
            self._mode = getattr(importlib.import_module(home), name)(self.job)
        return self._mode

    def around_init(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def init(trainer: Any, *args: Any, **kwargs: Any) -> None:
            leave_again()
            if self._is_off or self._depth or args:  # Lightning refuses positional arguments itself
                original(trainer, *args, **kwargs)
                return
            self._depth += 1
            try:
                changed = self._guarded(lambda: self.mode.change_arguments(dict(kwargs), self.namespace), kwargs)
                try:
                    original(trainer, **changed)
                except Exception as error:  # raised again, or told while the arguments stay as they were
                    if changed == kwargs:
                        raise
                    told = f"Trainer refuses the treatment's arguments: {describe(error)}"
                    if self.job.mode != "run":
                        fail(self.job, told, error)
                    warn(told)
                    original(trainer, **kwargs)
                note(self.job, "trainer")
                self._guarded(lambda: self.mode.built(trainer, self.namespace), None)
            finally:
                self._depth -= 1

        return init

    def around_fit(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def fit(trainer: Any, *args: Any, **kwargs: Any) -> Any:
            leave_again()
            if self._is_off or self._depth:
                return original(trainer, *args, **kwargs)
            note(self.job, "fit")
            self._depth += 1
            try:
                return self.mode.fit(trainer, lambda: original(trainer, *args, **kwargs))
            finally:
                self._depth -= 1

        return fit

    def _guarded(self, function: Callable[[], Any], otherwise: Any) -> Any:
        try:
            return function()
        except Exception as error:  # noqa: BLE001 - reported; in mode run the user's training goes on
            self._is_off = self.job.mode == "run"
            if self.job.mode != "run":
                fail(self.job, describe(error), error)
            warn(f"not added to this Trainer: {describe(error)}")
            return otherwise


def describe(error: BaseException) -> str:
    """An error in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:500] if text else type(error).__name__


def fail(job: Job, reason: str, error: BaseException | None = None) -> NoReturn:
    """Writes a failed result, unless one was written already, and ends the script.

    Raises:
        Over: Always.
    """
    if error is not None:
        traceback.print_exception(error)
    if not (Path(job.folder) / RESULT_FILE).exists():
        Result(status="failed", reason=reason).write(job.folder)
    leave(FAILED)


_code: int | None = None  # of a script that is over


def leave(code: int) -> NoReturn:
    """Ends the script.

    Raises:
        Over: Always.
    """
    global _code
    if _code is None:
        _code = code
        force = threading.Timer(UNWINDING_S, end_process, [code])
        force.daemon = True
        force.start()
    if threading.current_thread() is not threading.main_thread():
        end_process(code)  # the exception would end this thread alone
    raise Over(code)


def leave_again() -> None:
    """For a script that has caught ``Over`` and goes on."""
    if _code is not None:
        leave(_code)


def end_if_over() -> None:
    """The last thing that a script that is over does."""
    if _code is not None:
        end_process(_code)


def unless_over(original: Callable[..., Any]) -> Callable[..., Any]:
    """A method of the Trainer that a script can no longer use once it is over."""

    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        leave_again()
        return original(*args, **kwargs)

    return method


def end_process(code: int) -> None:
    """Ends this process at once, without running the rest of the user's script or its exit handlers."""
    processes = sys.modules.get("multiprocessing")
    if processes is not None:
        for child in processes.active_children():  # loader workers: left alone, they look for us only every 5 s
            child.terminate()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def seed_all(seed: int) -> None:
    """Seeds Python's, numpy's and torch's generators.

    Not by Lightning's ``seed_everything``: that also sets environment variables that change what workers do.
    """
    random.seed(seed)
    import torch

    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
