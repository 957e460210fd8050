"""PerfDoctor in loops without a Trainer: Fabric's and plain ones.

`LoopRun` calls the hooks of PerfDoctor in the order of a Trainer, with a stand-in for it, so that probes, diagnosis and
reports are the same.
"""

from __future__ import annotations

import logging
import sys
import traceback
import weakref
from collections.abc import Iterable, Iterator
from types import CodeType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from lightning_perf import seams
from lightning_perf.errors import ConfigError
from lightning_perf.interrupts import raise_if_from_signal
from lightning_perf.loop_trainer import NO_TRAINER, LoopTrainer, missing_without_trainer, shown_loader
from lightning_perf.probes.hang.watch import HangWatch
from lightning_perf.probes.host_lines.sampler import LineSampler
from lightning_perf.probes.timeline.loop import LoopTimer, ValidationSpan
from lightning_perf.probes.timeline.user_phases import UserPhases
from lightning_perf.records import TrainerSettings

FETCH, VALIDATION_FETCH = "[_TrainingEpochLoop].train_dataloader_next", "[_EvaluationLoop].val_next"
"""Names of actions, as a Trainer passes them to its profiler."""

_END: Any = object()

if TYPE_CHECKING:
    from lightning_perf.probes.probe_set import ProbeSet
    from lightning_perf.run import DoctorRun

_log = logging.getLogger("lightning_perf")


class LoopRun:
    """One run of a loop without a Trainer."""

    def __init__(self, doctor: Any, trainer: LoopTrainer, code: CodeType) -> None:
        self._doctor, self._trainer, self._module = doctor, trainer, trainer.module
        doctor.setup(trainer, trainer.module, "fit")
        self._run = doctor._run
        # Instead of atexit, which keeps functions that were unregistered.
        self._at_exit = weakref.finalize(trainer, self._end_at_exit)
        probes = doctor._probes
        self._loop, self._phases = probes.loop, probes.find(UserPhases)
        self._functions: set[CodeType] = set()  # that loop over steps
        self._loops = [found.loops for kind in (LineSampler, HangWatch) if (found := probes.find(kind)) is not None]
        self._loops.append(self._functions)
        self._profile = trainer.profiler.profile
        self._own = f"[Callback]{doctor.state_key}."
        self._step_start, self._step_end = f"{self._own}on_train_batch_start", f"{self._own}on_train_batch_end"
        self._step_before = 0  # how often optimizers had stepped when the step began
        self._index = 0  # of the step in its epoch
        self._n_batches: int | None = None  # of the last whole epoch
        self._has_begun = self._is_in_epoch = self._is_outside = self.is_in_step = self.is_in_loop = False
        if self._loop is not None:
            self._loop.missing.pop("validation", None)
            probes.context.missing.update(missing_without_trainer(trainer))
        if self._phases is not None:
            self._phases.on_optimizer = self._begin
        self.add_loop_function(code)

    def add_loop_function(self, code: CodeType) -> None:
        """Add a function that loops over steps."""
        for loops in self._loops:
            loops.add(code)

    @property
    def is_over(self) -> bool:
        """Whether it was closed, or another run of the callback has begun."""
        return self._doctor._run is not self._run

    def watch(self, thing: Any) -> None:
        """Watch one more module, optimizer or scheduler."""
        if self._phases is not None:
            self._doctor._probes.call(UserPhases.name, self._phases.watch, thing)

    def is_validation(self, loader: Any) -> bool:
        """Return whether a loop that begins now validates: within another one, or with models in evaluation mode.

        The mode of models says nothing of the loader that was trained on: ``train()`` may be called in each step, and
        models from a file are in evaluation mode, in which some are trained.
        """
        modules = [each for each in self._trainer.watched if isinstance(each, nn.Module)]
        is_evaluating = self._has_begun and bool(modules) and not any(each.training for each in modules)
        is_other_loader = shown_loader(loader) is not self._trainer.train_dataloader
        return self.is_in_step or not torch.is_grad_enabled() or (is_evaluating and is_other_loader)

    # -- loops --------------------------------------------------------------------------------------------------------

    def train(self, loader: Any) -> Iterator[Any]:
        """Yield the batches of an epoch, each as a step."""
        self._epoch_begins(loader)
        self.is_in_loop = True
        iterating = self._trainer.fit_loop.epoch_loop.on_run_start  # timed
        iterator = iterating(iter, loader) if self._trainer.current_epoch else iter(loader)
        profile, doctor, trainer, module = self._profile, self._doctor, self._trainer, self._module
        try:
            while doctor._run is self._run:
                if self._index == self._n_batches:  # the fetch that ends the workers
                    batch = iterating(next, iterator, _END)
                else:
                    with profile(FETCH):
                        batch = next(iterator, _END)
                if batch is _END:
                    break
                self.is_in_step, self._step_before = True, trainer.global_step
                with profile(self._step_start):
                    doctor.on_train_batch_start(trainer, module, batch, self._index)
                given, batch = [batch], None  # only the user's code holds the batch
                yield given.pop()
                self.step_ends()
            else:  # closed within the loop: PerfDoctor only passes batches on
                yield from iterator
                return
        except BaseException:  # the user has left the loop, or the loader raised
            self.left()
            raise
        finally:
            self.is_in_loop = False
        self._n_batches = self._index
        self._epoch_ends()

    def validate(self, loader: Any) -> Iterator[Any]:
        """Yield the batches of a validation."""
        loop, phases = self._loop, self._phases
        if loop is None or phases is None:
            yield from loader
            return
        phases.forward_ends()
        self._trainer.val_dataloaders = shown_loader(loader)
        self._hook("on_validation_start")
        with ValidationSpan(loop):
            iterator = iter(loader)
            phases.is_validating = True
            try:
                while True:
                    with self._profile(VALIDATION_FETCH):
                        batch = next(iterator, _END)
                    if batch is _END:
                        return
                    self._hook("on_validation_batch_start", batch, 0)
                    given, batch = [batch], None
                    yield given.pop()
                    phases.forward_ends()
                    self._hook("on_validation_batch_end", None, None, 0)
            finally:
                phases.forward_ends()
                phases.is_validating = False

    # -- steps --------------------------------------------------------------------------------------------------------

    def step_begins(self, batch: Any) -> None:
        """Begin a step that fetched no batch through PerfDoctor."""
        self._epoch_begins(None)
        with self._profile(FETCH):  # ends the time of the last step
            pass
        self.is_in_step, self._step_before = True, self._trainer.global_step
        with self._profile(self._step_start):
            self._doctor.on_train_batch_start(self._trainer, self._module, batch, self._index)

    def step_ends(self) -> None:
        """End a step."""
        self.is_in_step = False
        if self._doctor._run is not self._run:
            return
        if self._phases is not None and self._phases.forward is not None:
            self._phases.forward_ends()
        with self._profile(self._step_end):
            self._doctor.on_train_batch_end(self._trainer, self._module, None, None, self._index)
        self._index += 1
        if not self._has_begun:
            self._begin()

    def left(self) -> None:
        """Handle that the user's code left the loop early: the step counts if an optimizer stepped in it.

        Python calls this while closing a generator, where an interrupt would get lost: the epoch is reported later.
        """
        if self.is_over:
            return
        if self.is_in_step and self._trainer.global_step > self._step_before:
            self.step_ends()
        self.is_in_step = False
        if self._loop is not None:
            self._doctor._probes.call("steps", self._leave, self._loop)

    def _leave(self, loop: LoopTimer) -> None:
        if self._phases is not None:
            self._phases.forward = None
        if loop.timeline.stack:
            loop.timeline.unwind()
        loop.epoch_ends()

    # -- the run ------------------------------------------------------------------------------------------------------

    def _epoch_begins(self, loader: Any) -> None:
        is_outside = loader is None
        if self._is_in_epoch and not (is_outside and self._is_outside):
            self._epoch_ends()  # the user left the last loop early
        if self._is_in_epoch:
            return
        self._is_in_epoch, self._is_outside, self._index = True, is_outside, 0
        if loader is not None:
            self._trainer.train_dataloader = shown_loader(loader)
        if any(isinstance(each, Optimizer) for each in self._trainer.watched):
            self._begin()

    def _begin(self) -> None:
        """Read the settings, once the optimizers are known."""
        if self._has_begun:
            return
        self._has_begun = True
        self._hook("on_train_start")
        context = self._doctor._probes.context
        if context is not None:
            known = context.settings.trainer
            flags = [name for name in TrainerSettings.__struct_fields__ if getattr(known, name) is None]
            context.missing.update({f"settings.trainer.{name}": NO_TRAINER for name in flags})

    def _epoch_ends(self) -> None:
        if self._is_in_epoch:
            self._is_in_epoch = False
            self._hook("on_train_epoch_end")
            self._trainer.current_epoch += 1

    def _hook(self, name: str, *args: Any) -> None:
        if not self.is_over:
            with self._profile(f"{self._own}{name}"):
                getattr(self._doctor, name)(self._trainer, self._module, *args)

    def forget(self) -> None:
        """Cancel the report at the end of Python, and release what it needs."""
        self._at_exit.detach()

    def close(self, error: BaseException | None, is_exiting: bool = False) -> None:
        """End the run; ``error`` is what ended it."""
        self.forget()
        if self.is_over:
            return
        if error is not None:
            self._hook("on_exception", error)
            return
        self._epoch_ends()
        if not is_exiting:
            self._hook("on_train_end")
        self._hook("teardown", "fit")

    def _end_at_exit(self) -> None:
        if self._run is None or self._run.is_forked:  # a child that the user's code forked
            return
        self.close(self._last_error(), is_exiting=True)

    def _last_error(self) -> BaseException | None:
        """Return the uncaught error that ended Python; at a prompt, after which Python goes on, one of the loops."""
        error: BaseException | None = getattr(sys, "last_value", None)
        if error is None or not hasattr(sys, "ps1"):
            return error
        codes = {frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)}
        return None if codes.isdisjoint(self._functions) else error


class Steps:
    """The batches of a loader, each as a step; what ``PerfDoctor.steps`` returns."""

    def __init__(self, loader: Iterable[Any], doctor: UserLoop, code: CodeType, validation: bool | None) -> None:
        self._loader, self._doctor, self._code, self._validation = loader, doctor, code, validation

    def __iter__(self) -> Iterator[Any]:
        run = self._doctor._user_run(self._code)  # another one if the run of the last loop was closed
        if run is None:
            return iter(self._loader)
        run.add_loop_function(sys._getframe(1).f_code)  # ``steps`` may have been called in another function
        return self._batches(run)

    def _batches(self, run: LoopRun) -> Iterator[Any]:
        is_validation = run.is_validation(self._loader) if self._validation is None else self._validation
        yield from run.validate(self._loader) if is_validation else run.train(self._loader)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]


class Step:
    """One step as a context; what ``PerfDoctor.step`` returns."""

    def __init__(self, run: LoopRun | None, batch: Any) -> None:
        self._run, self._batch = run, batch

    def __enter__(self) -> None:
        run, batch, self._batch = self._run, self._batch, None
        if run is not None and (run.is_over or run.is_in_loop or run.is_in_step):
            self._run = None  # within the step of a loop
        elif run is not None:
            run.step_begins(batch)

    def __exit__(self, *exception: Any) -> None:
        if self._run is not None and exception[0] is None:
            self._run.step_ends()
        elif self._run is not None:
            self._run.left()


class UserLoop:
    """PerfDoctor's methods for loops without a Trainer."""

    _run: DoctorRun | None
    _probes: ProbeSet
    _loop_run: LoopRun | None = None
    _fabric: Any = None
    _watched: tuple[weakref.ref[Any], ...] = ()
    _is_unmeasured = False  # until `close`: by another rank, or after an error

    def steps(self, loader: Iterable[Any], *, validation: bool | None = None) -> Steps:
        """Measure a loop without a Trainer: ``for batch in doctor.steps(loader)``.

        Each loop is an epoch, after which PerfDoctor reports. Call ``close`` after the last one.

        Args:
            loader: A DataLoader, or anything else that yields batches.
            validation: Whether the loop validates. None: it does within another loop, without gradients, and if the
                watched models are in evaluation mode and the last training loop had another loader.
        """
        return Steps(loader, self, sys._getframe(1).f_code, validation)

    def step(self, batch: Any = None) -> Step:
        """Measure one step of a loop without a Trainer: ``with doctor.step():``; within ``steps`` it does nothing.

        Args:
            batch: Gives the number of samples; None if unknown.
        """
        return Step(self._user_run(sys._getframe(1).f_code), batch)

    def watch(self, *things: Any) -> None:
        """Name the models, optimizers and schedulers of a loop without a Trainer; ``Fabric(callbacks=…)`` does too.

        Raises:
            ConfigError: One of them is something else.
        """
        for thing in things:
            if not isinstance(thing, (nn.Module, Optimizer)) and not hasattr(thing, "get_last_lr"):
                raise ConfigError(f"watch({type(thing).__name__}): expected models, optimizers or schedulers")
        run = self._loop_run
        for thing in things:
            if any(known() is thing for known in self._watched):
                continue
            self._watched = (*self._watched, weakref.ref(thing))
            if run is not None and not run.is_over:
                run.watch(thing)

    def close(self) -> None:
        """End a run of ``steps``: diagnose, report and restore everything. Does nothing if there is none."""
        run, self._loop_run, self._is_unmeasured = self._loop_run, None, False
        if run is not None:
            run.close(sys.exc_info()[1])

    def on_after_setup(self, fabric: Any, module: Any) -> None:
        """Watch a model that Fabric has set up."""
        self._fabric = weakref.ref(fabric)
        # PerfDoctor's other hooks take a Trainer, which ``fabric.call`` does not pass.
        seams.replace_callback(fabric, self, SimpleNamespace(on_after_setup=self.on_after_setup))
        self.watch(module)

    def _user_run(self, code: CodeType) -> LoopRun | None:
        """Return the run of the user's loop, begun if necessary; None where nothing is measured."""
        run = self._loop_run
        if run is not None and not run.is_over:
            run.add_loop_function(code)
            return run
        if self._is_unmeasured or (self._run is not None and run is None):  # a Trainer's
            return None
        if run is not None:
            run.forget()
        try:
            watched = [thing for known in self._watched if (thing := known()) is not None]
            trainer = LoopTrainer(self, watched, self._fabric() if self._fabric is not None else None)
            if not trainer.is_global_zero:  # ranks may loop differently, so no call may wait for another rank
                self._is_unmeasured = True
                return None
            self._loop_run = LoopRun(self, trainer, code)
        except Exception as error:  # noqa: BLE001 - reported; the training goes on unmeasured
            raise_if_from_signal(error)
            self._is_unmeasured = True
            if self._run is not None:
                self._run.restore()
                self._run.reports.close()
            _log.warning("PerfDoctor does not measure this loop (%s: %s).", type(error).__name__, error)
        return self._loop_run
