"""Everything is restored although none of the hooks that end a run is called; profilers stay the user's own objects."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import pickle
import platform
import threading
import warnings
import weakref
from typing import Any

import pytest
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.profilers import AdvancedProfiler, PassThroughProfiler, Profiler, SimpleProfiler

from lightning_perf import PerfDoctor
from lightning_perf.probes.host_lines.stacks import StackReader
from lightning_perf.seams import Undos, change_attribute, complete, tap_profiler

from .conftest import Make, assert_nothing_left
from .models import Tiny, loader


def _assert_run_is_over(trainer: Any, doctor: PerfDoctor, profiler: Any) -> None:
    for thread in threading.enumerate():
        if thread.name == "lightning-perf host lines":  # may be reading the stack of the run that has just ended
            thread.join(10.0)
    assert_nothing_left(trainer, profiler)
    assert doctor._run is None
    assert not [one for one in threading.enumerate() if one.name.startswith("lightning-perf")]


class Fails(Tiny):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        raise ValueError("planted by the model")


class RaisesInOnException(Callback):
    def on_exception(self, *_: Any) -> None:
        raise KeyError("planted in on_exception")


@pytest.mark.parametrize("is_first", [True, False])
def test_everything_is_restored_when_another_callback_raises_in_on_exception(
    make_trainer: Make, is_first: bool
) -> None:
    doctor = PerfDoctor(reports=())
    callbacks = (RaisesInOnException(), doctor) if is_first else (doctor, RaisesInOnException())
    trainer = make_trainer(*callbacks)
    profiler = trainer.profiler
    with pytest.raises(KeyError) as error:  # kept during the check: its traceback references the frames of the run
        trainer.fit(Fails(), loader())
    _assert_run_is_over(trainer, doctor, profiler)
    assert error.value is not None
    assert doctor.session is not None
    assert doctor.session.run.status == "failed"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_forked_child_writes_and_restores_nothing_when_it_leaves_through_the_trainer(make_trainer: Make) -> None:
    class Forks(Callback):
        """Forks a child that raises SystemExit through the Trainer's loops."""

        in_child, child = False, 0

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 2:
                self.child = os.fork()
                self.in_child = self.child == 0
            if self.in_child:
                raise SystemExit(0)

    forks, doctor = Forks(), PerfDoctor(reports=())
    trainer = make_trainer(doctor, forks)
    code = 0
    try:
        trainer.fit(Tiny(), loader())
    except SystemExit:
        if not forks.in_child:
            raise
        code = 7 if doctor._run is None else 3  # None: the child has ended the parent's run
    if forks.in_child:
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(forks.child, 0)[1]) == 3
    assert doctor.session.run.status == "finished"


class RemovesCallbacks(Callback):
    """Remove PerfDoctor from the Trainer in one of its hooks."""

    def __init__(self, hook: str, replacement: list[Callback] | None) -> None:
        self.replacement = replacement
        setattr(self, hook, self._remove)

    def _remove(self, trainer: Any, *_: Any, **__: Any) -> None:
        if self.replacement is None:
            trainer.callbacks.clear()
        else:
            trainer.callbacks = self.replacement


@pytest.mark.parametrize("replacement", [None, [Callback()]])
@pytest.mark.parametrize("hook", ["on_fit_start", "on_train_batch_end", "on_train_end"])
def test_everything_is_restored_when_callbacks_are_removed_during_the_run(
    make_trainer: Make, hook: str, replacement: Any
) -> None:
    doctor = PerfDoctor(reports=())
    trainer = make_trainer(doctor, RemovesCallbacks(hook, replacement))
    profiler = trainer.profiler
    trainer.fit(Tiny(), loader())
    _assert_run_is_over(trainer, doctor, profiler)


def test_everything_is_restored_when_a_stack_is_read_while_the_run_ends(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_reading, is_over = threading.Event(), threading.Event()
    read = StackReader.read

    def held(self: StackReader, frames: Any) -> Any:
        is_reading.set()
        is_over.wait(10.0)
        return read(self, frames)

    class EndsWhileRead(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 7:
                assert is_reading.wait(10.0)
                self.trainer.callbacks.clear()
            return super().training_step(batch, batch_idx)

    monkeypatch.setattr(StackReader, "read", held)
    doctor = PerfDoctor(reports=())
    trainer = make_trainer(doctor)
    profiler = trainer.profiler
    trainer.fit(EndsWhileRead(), loader())
    assert doctor._run is None  # what was read holds no frame of the run
    is_over.set()
    _assert_run_is_over(trainer, doctor, profiler)


def test_everything_is_restored_when_callbacks_are_removed_and_the_run_fails(make_trainer: Make) -> None:
    doctor = PerfDoctor(reports=())
    trainer = make_trainer(doctor, RemovesCallbacks("on_train_start", None))
    profiler = trainer.profiler
    with contextlib.suppress(ValueError):  # the error and its traceback are gone after this
        trainer.fit(Fails(), loader())
    _assert_run_is_over(trainer, doctor, profiler)


def test_module_is_released_when_callbacks_are_removed_and_the_run_fails(make_trainer: Make) -> None:
    doctor = PerfDoctor(reports=())
    module = Fails()
    released = weakref.ref(module)
    trainer = make_trainer(doctor, RemovesCallbacks("on_train_start", None))
    with contextlib.suppress(ValueError):
        trainer.fit(module, loader())
    del module, trainer
    gc.collect()
    assert released() is None


class UsesProfiler(Tiny):
    """Uses the Trainer's profiler in each step, as user code may."""

    def __init__(self, kind: type[Profiler]) -> None:
        super().__init__()
        self.kind = kind

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        profiler: Any = self.trainer.profiler
        assert type(profiler) is self.kind
        with profiler.profile("mine") as name:
            assert name == "mine"
        with profiler.profile("[LightningModule]UsesProfiler.on_after_backward") as name:
            assert name == "[LightningModule]UsesProfiler.on_after_backward"
        with pytest.raises(ZeroDivisionError), profiler.profile("raises"):
            raise ZeroDivisionError
        profiler.start("by hand")
        profiler.stop("by hand")
        profiler.mark = batch_idx
        assert vars(profiler)["mark"] == batch_idx
        if self.kind is not AdvancedProfiler:  # which holds a cProfile.Profile
            for one in (copy.deepcopy(profiler), pickle.loads(pickle.dumps(profiler))):
                assert type(one) is self.kind
                with one.profile("copied") as name:
                    assert name == "copied"
                assert not any(type(v).__module__.startswith("lightning_perf") for v in vars(one).values())
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("kind", [PassThroughProfiler, SimpleProfiler, AdvancedProfiler])
def test_profiler_behaves_like_the_users_when_it_is_measured(make_trainer: Make, kind: Any) -> None:
    profiler = kind()
    before = {name: vars(profiler).get(name) for name in ("profile", "start", "stop")}
    doctor = PerfDoctor(reports=())
    make_trainer(doctor, profiler=profiler).fit(UsesProfiler(kind), loader(4))
    assert {name: vars(profiler).get(name) for name in before} == before
    assert doctor.session is not None
    assert doctor.session.probes_off == ()
    if kind is SimpleProfiler:
        counts = {name: len(times) for name, times in profiler.recorded_durations.items()}
        assert (counts["mine"], counts["by hand"], counts["raises"]) == (4, 4, 4)
        assert "copied" not in counts


class InterruptedAtItsEnd:
    """A span at whose end a signal handler raises."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        raise SystemExit


def test_users_profiler_ends_its_action_when_a_span_is_interrupted_at_its_end() -> None:
    profiler = SimpleProfiler()
    trainer = Trainer(profiler=profiler, logger=False, accelerator="cpu")
    undos = Undos()
    tap_profiler(trainer, lambda _: InterruptedAtItsEnd(), undos)
    with pytest.raises(SystemExit), profiler.profile("mine"):
        pass
    assert profiler.current_actions == {}
    assert len(profiler.recorded_durations["mine"]) == 1
    undos.close()


def test_attribute_is_restored_when_two_changes_are_undone_in_the_order_they_were_made() -> None:
    class Owner:
        value = 0

    owner = Owner()
    first, second = Undos(), Undos()
    change_attribute(owner, "value", 1, first)
    change_attribute(owner, "value", 2, second)
    first.close()
    assert owner.value == 2
    second.close()
    assert "value" not in vars(owner)


def test_every_undo_runs_when_one_raises_and_another_is_interrupted() -> None:
    done: list[str] = []
    undos = Undos()
    undos.note(lambda: done.append("first"))

    def interrupted_once() -> None:
        done.append("interrupted")
        if done.count("interrupted") == 1:
            raise SystemExit

    def fails() -> None:
        raise OSError("planted")

    undos.note(interrupted_once)
    undos.note(fails)
    with pytest.raises(SystemExit):
        complete(undos.close)
    assert done == ["interrupted", "interrupted", "first"]
    undos.close()
    assert len(done) == 3


def _warn() -> None:
    warnings.warn("of the user's code", stacklevel=1)


def test_warning_is_shown_once_when_a_measured_run_lies_between(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "_uname_cache", None)  # as in a process that has not asked yet
    shown = []
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = lambda message, *_, **__: shown.append(str(message))
        _warn()
        make_trainer(PerfDoctor()).fit(Tiny(), loader())
        _warn()
    assert shown.count("of the user's code") == 1
