"""Trainings that end early: exceptions in each hook, interrupts, exits."""

from __future__ import annotations

import signal
import sys
from typing import Any

import torch
from lightning.pytorch import Callback

from trainer.models import Tiny

from .loops import Deep, varied
from .registry import Run, kind

HOOKS = (
    "setup",
    "on_fit_start",
    "on_sanity_check_start",
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_train_batch_end",
    "on_validation_batch_end",
    "on_validation_end",
    "on_train_epoch_end",
    "on_train_end",
    "on_fit_end",
    "teardown",
)


class FailsIn(Callback):
    """Raises in one hook, at one call."""

    def __init__(self, hook: str, error: BaseException, n_calls: int = 1) -> None:
        self.error, self.n_left = error, n_calls
        setattr(self, hook, self._fail)

    def _fail(self, *_: Any, **__: Any) -> None:
        self.n_left -= 1
        if self.n_left == 0:
            raise self.error


def _in_each_hook(run: Run, is_before: bool) -> None:
    for hook in HOOKS:
        fails = FailsIn(hook, ValueError(f"in {hook}"), 3 if "batch_" in hook else 1)
        order: dict[str, Any] = {"before": [fails]} if is_before else {}
        trainer = run.trainer(*(() if is_before else (fails,)), max_epochs=2, **order)
        run.attempt(trainer.fit, Deep(), varied(4), varied(3))


@kind("callback-after-raises-in-each-hook", core=True)
def raises_after(run: Run) -> None:
    _in_each_hook(run, is_before=False)


@kind("callback-before-raises-in-each-hook", core=True)
def raises_before(run: Run) -> None:
    _in_each_hook(run, is_before=True)


class FailsInStep(Deep):
    """Raises in a training step."""

    def __init__(self, error: BaseException, step: int = 21, where: str = "training_step") -> None:
        super().__init__()
        self.error, self.step, self.where = error, step, where

    def _fail(self, where: str) -> None:
        if self.where == where and self.global_step >= self.step:
            raise self.error

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self._fail("training_step")
        return loss

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._fail("validation_step")
        super().validation_step(batch, batch_idx)

    def backward(self, loss: Any, *args: Any, **kwargs: Any) -> None:
        self._fail("backward")
        super().backward(loss, *args, **kwargs)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self._fail("optimizer_step")
        super().optimizer_step(*args, **kwargs)

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self._fail("transfer")
        return batch


@kind("module-raises", core=True)
def module_raises(run: Run) -> None:
    for where in ("training_step", "validation_step", "backward", "optimizer_step", "transfer"):
        for step in (3, 10):
            model = FailsInStep(ValueError(f"in {where}"), step, where)
            run.attempt(run.trainer().fit, model, varied(), varied(2))


@kind("step-raises-uncaught")
def step_raises(run: Run) -> None:
    run.trainer().fit(FailsInStep(RuntimeError("at step 21")), varied())


@kind("out-of-memory-error")
def out_of_memory(run: Run) -> None:
    run.trainer().fit(FailsInStep(torch.OutOfMemoryError("out of memory: tried to allocate 5 GiB")), varied())


@kind("system-exit", core=True)
def system_exit(run: Run) -> None:
    for step in (1, 11, 21):
        run.attempt(run.trainer().fit, FailsInStep(SystemExit(3), step), varied())


@kind("system-exit-in-each-hook")
def system_exit_hooks(run: Run) -> None:
    for hook in HOOKS:
        run.attempt(run.trainer(FailsIn(hook, SystemExit(4))).fit, Deep(), varied(3), varied(2))
        run.attempt(run.trainer(before=[FailsIn(hook, SystemExit(4))]).fit, Deep(), varied(3), varied(2))


@kind("exit-in-a-hook-uncaught")
def exits(run: Run) -> None:
    class Exits(Callback):
        def on_train_epoch_end(self, *_: Any) -> None:
            sys.exit("enough")

    run.trainer(Exits()).fit(Deep(), varied())


@kind("keyboard-interrupt", core=True)
def keyboard_interrupt(run: Run) -> None:
    for step in (0, 10, 20):
        run.attempt(run.trainer().fit, FailsInStep(KeyboardInterrupt(), step), varied())


@kind("real-sigint")
def sigint(run: Run) -> None:
    class Presses(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if self.global_step == 12:
                signal.raise_signal(signal.SIGINT)
            return super().training_step(batch, batch_idx)

    run.attempt(run.trainer().fit, Presses(), varied())


@kind("should-stop")
def should_stop(run: Run) -> None:
    class Stops(Deep):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.trainer.should_stop = self.global_step >= 17
            return super().training_step(batch, batch_idx)

    run.trainer(max_epochs=5).fit(Stops(), varied(), varied(2))


@kind("on-exception-raises", core=True)
def on_exception_raises(run: Run) -> None:
    for error in (ValueError("first"), SystemExit(3), KeyboardInterrupt()):
        for is_before in (True, False):
            fails = FailsIn("on_exception", RuntimeError("in on_exception"))
            order: dict[str, Any] = {"before": [fails]} if is_before else {}
            trainer = run.trainer(*(() if is_before else (fails,)), **order)
            run.attempt(trainer.fit, FailsInStep(error), varied())


@kind("on-exception-counted")
def on_exception_counted(run: Run) -> None:
    class Notes(Callback):
        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            run.note(type(exception).__name__, str(exception), type(exception.__context__).__name__)

    run.attempt(run.trainer(Notes()).fit, FailsInStep(ValueError("first")), varied())


@kind("stop-iteration-and-generator-exit")
def odd_exceptions(run: Run) -> None:
    for error in (StopIteration("odd"), GeneratorExit("odd"), AssertionError(), BaseException("base")):
        run.attempt(run.trainer().fit, FailsInStep(error, 12), varied())


@kind("fit-again-after-failure")
def again(run: Run) -> None:
    trainer = run.trainer()
    run.attempt(trainer.fit, FailsInStep(ValueError("first"), 5), varied())
    run.attempt(trainer.fit, Deep(), varied())
