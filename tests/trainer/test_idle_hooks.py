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
