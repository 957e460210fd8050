"""Hooks that have nothing left to do are passed over, and are there again after the run."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from lightning.pytorch import Callback

from lightning_perf import PerfDoctor
from lightning_perf.probes.model import N_WATCHED_STEPS

from .conftest import Make
from .models import Manual, Tiny, loader

GRADIENT_HOOKS = ("on_before_backward", "on_after_backward", "on_before_zero_grad")
N_STEPS = N_WATCHED_STEPS + 4


class HooksInUse(Callback):
    """Notes after each batch which of the doctor's gradient hooks Lightning would call."""

    def __init__(self, doctor: PerfDoctor) -> None:
        self.doctor = doctor
        self.seen: list[list[bool]] = []
        self.pickled = b""

    def on_train_batch_end(self, *_: Any) -> None:
        self.seen.append([callable(getattr(self.doctor, hook)) for hook in GRADIENT_HOOKS])
        self.pickled = pickle.dumps(self.doctor)


class Counting(PerfDoctor):
    """A user's own subclass."""

    n_backward = 0

    def on_before_backward(self, *arguments: Any) -> None:
        self.n_backward += 1
        super().on_before_backward(*arguments)


class Fails(Tiny):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx == N_STEPS - 1:
            raise ValueError("planted")
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("model", [Tiny, Manual])
def test_gradient_hooks_are_passed_over_when_gradients_were_watched_long_enough(make_trainer: Make, model: Any) -> None:
    doctor = PerfDoctor(reports=())
    hooks = HooksInUse(doctor)
    make_trainer(hooks, doctor).fit(model(), loader(N_STEPS))

    assert all(hooks.seen[0])
    assert not any(hooks.seen[-1])
    assert not set(GRADIENT_HOOKS) & set(vars(doctor))
    assert callable(pickle.loads(hooks.pickled).on_before_backward)


def test_gradient_hooks_are_there_again_when_training_raised(make_trainer: Make) -> None:
    doctor = PerfDoctor(reports=())
    with pytest.raises(ValueError, match="planted"):
        make_trainer(doctor).fit(Fails(), loader(N_STEPS))

    assert not set(GRADIENT_HOOKS) & set(vars(doctor))


def test_a_subclass_sees_every_backward_when_it_has_the_hook_itself(make_trainer: Make) -> None:
    doctor = Counting(reports=())
    make_trainer(doctor).fit(Tiny(), loader(N_STEPS))

    assert doctor.n_backward == N_STEPS


class BatchEnds(Callback):
    """Notes at each batch whether Lightning calls the doctor at its end, and how many the doctor has counted."""

    def __init__(self, doctor: PerfDoctor) -> None:
        self.doctor = doctor
        self.is_called: list[bool] = []
        self.counted: list[int] = []
        self.pickled = b""

    def on_train_batch_start(self, *_: Any) -> None:
        assert self.doctor._loop is not None
        self.is_called.append(callable(self.doctor.on_train_batch_end))
        self.counted.append(self.doctor._loop.main.n_steps)
        self.pickled = pickle.dumps(self.doctor)


class WithHook(Tiny):
    """A module that has the hook itself."""

    def on_train_batch_end(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize("model", [Tiny, Manual, WithHook])
def test_batch_ends_are_counted_when_lightning_passes_over_them(make_trainer: Make, model: Any) -> None:
    doctor = PerfDoctor(reports=(), schedule=None)
    watch = BatchEnds(doctor)
    make_trainer(doctor, watch, max_epochs=2).fit(model(), loader(40))

    assert watch.is_called[0]
    assert not all(watch.is_called) or model is WithHook
    assert watch.counted == list(range(80))
    assert doctor.session is not None
    assert doctor.session.run.n_steps == 80
    assert "on_train_batch_end" not in vars(doctor)
    assert callable(pickle.loads(watch.pickled).on_train_batch_end)


def test_a_subclass_sees_every_batch_end_when_it_has_the_hook_itself(make_trainer: Make) -> None:
    ends = []

    class Own(PerfDoctor):
        def on_train_batch_end(self, *arguments: Any) -> None:
            ends.append(1)
            super().on_train_batch_end(*arguments)

    make_trainer(Own(reports=(), schedule=None)).fit(Tiny(), loader(40))
    assert len(ends) == 40


class Holder(Callback):
    """A user's callback that hands its hooks on to a doctor of its own."""

    def __init__(self, doctor: PerfDoctor) -> None:
        self.doctor = doctor

    def setup(self, *arguments: Any, **named: Any) -> None:
        self.doctor.setup(*arguments, **named)

    def teardown(self, *arguments: Any, **named: Any) -> None:
        self.doctor.teardown(*arguments, **named)

    def on_train_start(self, *arguments: Any) -> None:
        self.doctor.on_train_start(*arguments)

    def on_train_batch_start(self, *arguments: Any) -> None:
        self.doctor.on_train_batch_start(*arguments)

    def on_train_batch_end(self, *arguments: Any) -> None:
        self.doctor.on_train_batch_end(*arguments)


def test_every_hook_is_there_when_another_callback_hands_its_own_on(make_trainer: Make) -> None:
    doctor = PerfDoctor(reports=(), schedule=None)
    make_trainer(Holder(doctor)).fit(Tiny(), loader(40))
    assert doctor.session is not None
    assert doctor.session.run.n_steps == 40


@pytest.mark.parametrize("is_first", [True, False])
def test_step_is_counted_when_another_callback_fails_at_its_end(make_trainer: Make, is_first: bool) -> None:
    doctor = PerfDoctor(reports=(), schedule=None, memory=False, arithmetic=False, module_depth=0)

    class Raises(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 30:
                assert not callable(doctor.on_train_batch_end)
                raise ValueError("planted")

    callbacks = (doctor, Raises()) if is_first else (Raises(), doctor)
    with pytest.raises(ValueError, match="planted"):
        make_trainer(*callbacks).fit(Tiny(), loader(40))
    assert doctor.session is not None
    assert doctor.session.run.n_steps == 31


def test_batch_ends_are_told_again_when_nobody_else_tells_of_them(make_trainer: Make) -> None:
    doctor = PerfDoctor(reports=(), schedule=None, memory=False, arithmetic=False, module_depth=0)
    callable_at: list[bool] = []

    class TakesProfilerAway(Callback):
        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            callable_at.append(callable(doctor.on_train_batch_end))
            if len(callable_at) == 20:
                trainer.profiler = trainer.profiler._inner

    make_trainer(doctor, TakesProfilerAway()).fit(Tiny(), loader(40))
    assert not callable_at[19]
    assert all(callable_at[20:])
    assert doctor.session is not None
    assert doctor.session.run.n_steps == 40


def test_state_key_is_the_classs_own_name_unless_it_says_another() -> None:
    class Renamed(PerfDoctor):
        state_key = "mine"

    class Further(Renamed):
        pass

    class Plain(PerfDoctor):
        pass

    assert PerfDoctor(reports=()).state_key == "PerfDoctor"
    assert Further(reports=()).state_key == "mine"
    assert Plain(reports=()).state_key.endswith("Plain")
