"""Run a Python function for a trial's job in this process, as ``runner.run_supervised`` runs a command in its own."""

import contextlib
import copy
import gc
import importlib
import logging
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from lightning_perf.errors import TrialError
from lightning_perf.history.store import VARIABLE
from lightning_perf.interrupts import raise_if_from_signal
from lightning_perf.trials import inside
from lightning_perf.trials.job import Job, Result, note, read_events, read_result
from lightning_perf.trials.modes import TrialMode
from lightning_perf.trials.runner import LEFT_BEHIND, Ended, read_tail

_NAMESPACES = ("lightning.pytorch", "pytorch_lightning")
_APPLIED_LATER = {"OMP_NUM_THREADS"}
"""Variables of treatments that may be missing, because ``Threads.set_up`` changes the running process as well."""


_OBJECTS = ("callbacks", "logger", "plugins", "profiler", "strategy")
"""Arguments of ``Trainer`` that are objects of the user, who may give them to other Trainers too."""


class _Mode(TrialMode):
    """A trial in a process that also holds other memory, and starts none for other ranks."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._before: list[tuple[Any, dict[str, Any]]] = []

    def change_arguments(self, arguments: dict[str, Any], namespace: str) -> dict[str, Any]:
        for given in map(arguments.get, _OBJECTS):
            for one in given if isinstance(given, (list, tuple)) else [given]:
                if isinstance(getattr(one, "__dict__", None), dict):
                    values = vars(one).items()
                    kept = {name: copy.copy(each) if type(each) in (dict, list) else each for name, each in values}
                    self._before.append((one, kept))
        return super().change_arguments(arguments, namespace)

    def restore(self) -> None:
        """Give the user's objects the attributes that they had before the run, such as folders and best scores."""
        for one, kept in reversed(self._before):
            vars(one).clear()
            vars(one).update(kept)

    def built(self, trainer: Any, namespace: str) -> None:
        if trainer.num_devices * trainer.num_nodes > 1:
            raise TrialError("a function is measured on one device only; measure a command instead")
        super().built(trainer, namespace)

    def finish(self, result: Result) -> None:
        super().finish(msgspec.structs.replace(result, peak_host_bytes=None))  # of all runs in this process


class InProcess:
    """Runs a function that builds a Trainer and calls its ``fit``; called with the arguments of ``run_supervised``.

    The run ends after enough steps by an exception that unwinds the function. Afterwards, Trainers, the callbacks and
    loggers that they were given, random generators, standard output and the handler of Ctrl-C are restored. Limits of
    time and memory do not apply: enforcing them would end the process.
    """

    def __init__(self, train: Callable[[], Any]) -> None:
        self._train = train
        self._is_interrupted = False

    def __call__(
        self,
        command: Sequence[str],
        job: Job,
        time_limit_s: float | None = None,
        memory_limit_bytes: int | None = None,
        environment: dict[str, str] | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> Ended:
        """Run the function with a job.

        Raises:
            KeyboardInterrupt: After Ctrl-C, when the training has ended.
        """
        folder, started = Path(job.folder), time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        for name in LEFT_BEHIND:
            (folder / name).unlink(missing_ok=True)
        missing = sorted({*(environment or {})} - _APPLIED_LATER)
        reason = f"{missing[0]} must be set before a process starts; measure a command instead" if missing else ""
        if not reason:
            with (folder / "log.txt").open("w", encoding="utf-8") as log, self._interruptible(), _quiet(log):
                reason = self._run(job)
            gc.collect()  # the model of this run, before the next one is built
            if self._is_interrupted:
                raise KeyboardInterrupt
        return Ended(
            code=0,
            reason=reason,
            wall_s=time.monotonic() - started,
            result=read_result(folder),
            events=frozenset(read_events(folder)),
            log=read_tail(folder / "log.txt"),
        )

    def _run(self, job: Job) -> str:
        """Run the function; return why it failed outside of ``fit``."""
        note(job, "python")
        note(job, "lightning")
        try:
            with _same_random_numbers(), _without_history(), _wrapped_trainers(job):
                inside.seed_all(job.seed or 0)
                self._train()
        except inside.Over:
            pass
        except KeyboardInterrupt:
            self._is_interrupted = True
        except (Exception, SystemExit) as error:  # noqa: BLE001 - reported as the result of this arm
            raise_if_from_signal(error)
            traceback.print_exception(error)
            return inside.describe(error)
        return ""

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Note Ctrl-C, which Lightning turns into ``SystemExit`` while it disables further ones."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.getsignal(signal.SIGINT)

        def interrupt(number: int, frame: Any) -> None:
            self._is_interrupted = True
            raise KeyboardInterrupt

        signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _wrapped_trainers(job: Job) -> Iterator[None]:
    """Wrap the Trainer of each namespace that is imported."""
    if not any(name in sys.modules for name in _NAMESPACES):
        importlib.import_module(_NAMESPACES[0])
    with contextlib.ExitStack() as undo:
        undo.callback(setattr, inside, "keeps_process", inside.keeps_process)
        inside.keeps_process = True
        mode = _Mode(job)
        undo.callback(mode.restore)
        for namespace in _NAMESPACES:
            if namespace in sys.modules:
                wrapper = inside.TrainerWrapper(job, namespace, mode)
                trainer = importlib.import_module(namespace).Trainer
                undo.callback(setattr, trainer, "__init__", trainer.__init__)
                undo.callback(setattr, trainer, "fit", trainer.fit)
                trainer.__init__ = wrapper.around_init(trainer.__init__)
                trainer.fit = wrapper.around_fit(trainer.fit)
        yield


@contextlib.contextmanager
def _quiet(log: Any) -> Iterator[None]:
    """Write the function's output to a log, without Lightning's messages about each Trainer."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.INFO))
    try:
        with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def _without_history() -> Iterator[None]:
    """Keep these short runs out of the history, with which later runs are compared."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "off"
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)
        os.environ.update({} if before is None else {VARIABLE: before})


@contextlib.contextmanager
def _same_random_numbers() -> Iterator[None]:
    """Restore the generators of Python, numpy and torch."""
    import torch

    numpy: Any = sys.modules.get("numpy")
    python, array = random.getstate(), numpy.random.get_state() if numpy is not None else None
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(array)
