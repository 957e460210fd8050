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
