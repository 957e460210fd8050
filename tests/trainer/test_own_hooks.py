"""Other code can call the callback's hooks, and steps are counted whoever calls them."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from lightning.pytorch import Callback

from lightning_perf import PerfDoctor

from .conftest import Make
from .models import Manual, Tiny, loader

N_STEPS = 40


class CallsHooks(Callback):
    """A user callback that calls PerfDoctor's hooks itself at every batch."""

    def __init__(self, doctor: PerfDoctor) -> None:
        self.doctor = doctor
        self.pickled = b""

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.doctor.on_before_backward(trainer, pl_module, None)
        self.doctor.on_after_backward(trainer, pl_module)
        self.doctor.on_before_zero_grad(trainer, pl_module, trainer.optimizers[0])
        self.pickled = pickle.dumps(self.doctor)

    def on_train_batch_end(self, *arguments: Any) -> None:
        self.doctor.on_train_batch_end(*arguments)


@pytest.mark.parametrize("model", [Tiny, Manual])
def test_hooks_can_be_called_when_nothing_is_left_for_them_to_do(make_trainer: Make, model: Any) -> None:
    doctor = PerfDoctor(reports=(), schedule=None)
    calls = CallsHooks(doctor)
    make_trainer(doctor, calls).fit(model(), loader(N_STEPS))
    assert doctor.session is not None
    assert doctor.session.run.n_steps == N_STEPS
    assert callable(pickle.loads(calls.pickled).on_train_batch_end)


class Counting(PerfDoctor):
    """A user's own subclass."""

    n_backward = n_ends = 0

    def on_before_backward(self, *arguments: Any) -> None:
        self.n_backward += 1
        super().on_before_backward(*arguments)

    def on_train_batch_end(self, *arguments: Any) -> None:
        self.n_ends += 1
        super().on_train_batch_end(*arguments)


def test_subclass_sees_every_step_when_it_has_hooks_of_its_own(make_trainer: Make) -> None:
    doctor = Counting(reports=(), schedule=None)
    make_trainer(doctor).fit(Tiny(), loader(N_STEPS))
    assert (doctor.n_backward, doctor.n_ends) == (N_STEPS, N_STEPS)


def test_steps_are_counted_when_a_subclass_keeps_batch_ends_to_itself(make_trainer: Make) -> None:
    class Keeps(PerfDoctor):
        def on_train_batch_end(self, *_: Any) -> None:
            pass

    doctor = Keeps(reports=(), schedule=None)
    make_trainer(doctor).fit(Tiny(), loader(N_STEPS))
    assert doctor.session is not None
    assert doctor.session.run.n_steps >= N_STEPS - 1


class Holder(Callback):
    """A user callback that forwards its hooks to its own PerfDoctor."""

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


def test_steps_are_counted_when_another_callback_passes_its_hooks_on(make_trainer: Make) -> None:
    doctor = PerfDoctor(reports=(), schedule=None)
    make_trainer(Holder(doctor)).fit(Tiny(), loader(N_STEPS))
    assert doctor.session is not None
    assert doctor.session.run.n_steps == N_STEPS


@pytest.mark.parametrize("is_first", [True, False])
def test_step_is_counted_when_another_callback_fails_at_its_end(make_trainer: Make, is_first: bool) -> None:
    doctor = PerfDoctor(reports=(), schedule=None, memory=False, arithmetic=False, module_depth=0)

    class Raises(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 30:
                raise ValueError("planted")

    callbacks = (doctor, Raises()) if is_first else (Raises(), doctor)
    with pytest.raises(ValueError, match="planted"):
        make_trainer(*callbacks).fit(Tiny(), loader(N_STEPS))
    assert doctor.session is not None
    assert doctor.session.run.n_steps == 31


def test_state_key_is_the_class_name_unless_overridden() -> None:
    class Renamed(PerfDoctor):
        state_key = "mine"

    class Further(Renamed):
        pass

    class Plain(PerfDoctor):
        pass

    assert PerfDoctor(reports=()).state_key == "PerfDoctor"
    assert Further(reports=()).state_key == "mine"
    assert Plain(reports=()).state_key.endswith("Plain")
