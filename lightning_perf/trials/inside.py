"""Entry point in the user's process: wraps Lightning's Trainer for the job's mode (``modes``).

In mode ``run`` an error of lightning-perf is one line on stderr, and the user's training continues. In other modes the
script only runs to be measured, so an error ends it, with the reason in the result file.

A measured script ends as by Ctrl-C: the exception ``Over`` unwinds it, so that its ``with`` and ``finally`` blocks and
its exit handlers run. If a script catches it, the next use of a Trainer raises it again, and the process is killed
after ``UNWINDING_S``.
"""

import contextlib
import functools
import inspect
import os
import random
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from lightning_perf import seams
from lightning_perf.interrupts import raise_if_from_signal
from lightning_perf.trials.job import JOB_VARIABLE, OUTPUTS, RESULT_FILE, Job, Result, note, read_job, warn

if TYPE_CHECKING:
    from lightning_perf.trials.modes import RunMode, TrialMode

FAILED = 70
"""Exit code of a process whose training was measured and failed; ``EX_SOFTWARE`` of sysexits.h."""

UNWINDING_S = 10.0
"""Time that a measured script has for its exit handlers."""

LATER = ("validate", "test", "predict")
"""Methods of a Trainer that a measured script may not call once it is over."""


class Over(SystemExit):
    """Ends a measured script."""


def enter(module: ModuleType) -> None:
    """Wrap the Trainer of ``lightning.pytorch.trainer.trainer`` or ``pytorch_lightning.trainer.trainer``."""
    job = read_job(os.environ[JOB_VARIABLE])
    if job.seed is not None:
        seed_all(job.seed)  # a model built from here on starts from the same weights in every arm
    namespace = module.__name__.removesuffix(".trainer.trainer")
    wrapper, trainer_class = TrainerWrapper(job, namespace), module.Trainer
    trainer_class.__init__ = wrapper.around_init(trainer_class.__init__)
    trainer_class.fit = wrapper.around_fit(trainer_class.fit)
    if job.mode != "run":
        seams.redirect_loggers(str(Path(job.folder) / OUTPUTS), namespace)
        for name in LATER:
            setattr(trainer_class, name, ending_if_over(getattr(trainer_class, name)))


class TrainerWrapper:
    """Calls the job's mode around the Trainer's methods, and handles its errors."""

    def __init__(self, job: Job, namespace: str, mode: "TrialMode | None" = None) -> None:
        self.job = job
        self.namespace = namespace
        self._mode: RunMode | TrialMode | None = mode
        self._is_off = False
        self._depth = 0

    @property
    def mode(self) -> "RunMode | TrialMode":
        if self._mode is None:
            from lightning_perf.trials.modes import MODES

            self._mode = MODES[self.job.mode](self.job)
        return self._mode

    def around_init(self, original: Callable[..., None]) -> Callable[..., None]:
        _, *names = inspect.signature(original).parameters

        @functools.wraps(original)
        def init(trainer: Any, *args: Any, **kwargs: Any) -> None:
            leave_if_over()
            if self._is_off:
                original(trainer, *args, **kwargs)
                return
            kwargs.update(zip(names, args, strict=False))  # Lightning takes them so, although it declares keywords only
            if self._depth:
                self.mode.build_inner(original, trainer, kwargs, self.namespace)
                return
            self._depth += 1
            try:
                changed = self._guarded(lambda: self.mode.change_arguments(dict(kwargs), self.namespace), kwargs)
                try:
                    original(trainer, **changed)
                except Exception as error:  # raised again, or reported
                    raise_if_from_signal(error)
                    if changed == kwargs or not self.job.specs:
                        raise
                    self.mode.cannot_treat(error, "Trainer rejects the treatments' arguments, so none is applied")
                    self.mode.applier.apply_nothing()
                    original(trainer, **kwargs)
                note(self.job, "trainer")
                self._guarded(lambda: self.mode.built(trainer, self.namespace), None)
            finally:
                self._depth -= 1

        return init

    def around_fit(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def fit(trainer: Any, *args: Any, **kwargs: Any) -> Any:
            leave_if_over()
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
            return otherwise if self._is_off else function()
        except Exception as error:  # noqa: BLE001 - reported; in mode run the user's training goes on
            if self.job.mode != "run":
                fail(self.job, describe(error), error)
            raise_if_from_signal(error)
            self._is_off = True
            warn(f"not added to this Trainer: {describe(error)}")
            return otherwise


def describe(error: BaseException) -> str:
    """Return the type and the message of an error in one line of at most 500 characters."""
    text = " ".join(str(error).split())
    if "Original Traceback" in text:  # of a loader's worker: its last line is the error itself
        text = str(error).rstrip().rpartition("\n")[2].partition(": ")[2] or text
    return f"{type(error).__name__}: {text}"[:500] if text else type(error).__name__


def fail(job: Job, reason: str, error: BaseException | None = None) -> NoReturn:
    """Write a failed result, unless there is a result already, and end the script by raising ``Over``."""
    if error is not None:
        traceback.print_exception(error)
    if not (Path(job.folder) / RESULT_FILE).exists():
        Result(status="failed", reason=reason).write(job.folder)
    note(job, "over")
    leave(FAILED)


_code: int | None = None  # of a script that is over
keeps_process = False
"""Whether the process continues after the measured training (``in_process``)."""


def leave(code: int) -> NoReturn:
    """End the script by raising ``Over``."""
    global _code
    if keeps_process:
        raise Over(code)
    if _code is None:
        _code = code
        force = threading.Timer(UNWINDING_S, end_process, [code])
        force.daemon = True
        force.start()
    if threading.current_thread() is not threading.main_thread():
        end_process(code)  # the exception would end this thread alone
    raise Over(code)


def leave_if_over() -> None:
    """End a script that has caught ``Over`` and continued."""
    if _code is not None:
        leave(_code)


def end_if_over() -> None:
    """End the process of a script that is over; called after all exit handlers."""
    if _code is not None:
        end_process(_code)


def ending_if_over(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method of the Trainer, so that a script that is over ends there."""

    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        leave_if_over()
        return original(*args, **kwargs)

    return method


def end_process(code: int) -> None:
    """End this process at once, without running the rest of the user's script or its exit handlers."""
    processes = sys.modules.get("multiprocessing")
    if processes is not None:
        for child in processes.active_children():  # loader workers, which would only notice within 5 s
            child.terminate()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def seed_all(seed: int) -> None:
    """Seed Python's, numpy's and torch's generators.

    Lightning's ``seed_everything`` also sets environment variables that change what workers do.
    """
    random.seed(seed)
    import torch

    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
