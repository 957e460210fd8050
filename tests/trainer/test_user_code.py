"""The code of the user's batches, datasets, modules and contexts runs as often with PerfDoctor as without."""

from __future__ import annotations

import copy
import pickle
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx.traceback
from lightning.pytorch import LightningModule
from torch import nn
from torch.autograd.graph import disable_saved_tensors_hooks, saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset

from lightning_perf import PerfDoctor

Make = Callable[..., Any]
N_STEPS = 14


class Lazy:
    """A batch that is computed when it is asked for, with a random number in it."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    @property
    def shape(self) -> torch.Size:
        torch.rand(1)
        return self.rows.shape

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index] + torch.rand(1)

    def __len__(self) -> int:
        torch.rand(1)
        return len(self.rows)


class LazyDict(dict[str, torch.Tensor]):
    def __getitem__(self, key: str) -> torch.Tensor:
        return super().__getitem__(key) + torch.rand(1)

    def items(self) -> Any:
        torch.rand(1)
        return super().items()

    values = items


class LazyTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        torch.rand(1)
        return super().__torch_function__(func, types, args, kwargs or {})


class Rows(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        torch.rand(1)
        return 2 * N_STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index))


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        self.losses: list[float] = []

    def rows(self, batch: Any) -> torch.Tensor:
        return batch

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = (self.net(self.rows(batch)) + torch.rand(1)).square().mean()
        self.losses.append(float(loss))
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def losses_of(make: Make, model: Model, *callbacks: Any, collate: Any = None, dataset: Any = None) -> list[float]:
    torch.manual_seed(5)
    loader = DataLoader(Rows() if dataset is None else dataset, batch_size=2, collate_fn=collate)
    make(*callbacks, max_epochs=1).fit(model, loader)
    return model.losses


def same_with_us(make: Make, model: type[Model], **arguments: Any) -> PerfDoctor:
    doctor = PerfDoctor(reports=(), schedule=None)
    assert losses_of(make, model(), doctor, **arguments) == losses_of(make, model(), **arguments)
    assert doctor.session is not None
    assert doctor.session.probes_off == ()
    assert doctor.session.run.n_steps == N_STEPS
    return doctor


def lazy(rows: list[torch.Tensor]) -> Lazy:
    return Lazy(torch.stack(rows))


def lazy_dict(rows: list[torch.Tensor]) -> LazyDict:
    return LazyDict(x=torch.stack(rows))


def lazy_tensor(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(rows).as_subclass(LazyTensor)


class OfLazy(Model):
    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        return batch

    def rows(self, batch: Any) -> torch.Tensor:
        return batch["x"] if isinstance(batch, dict) else batch[0]


class OfTensor(Model):
    def rows(self, batch: Any) -> torch.Tensor:
        return batch.as_subclass(torch.Tensor)


@pytest.mark.parametrize(("collate", "model"), [(lazy, OfLazy), (lazy_dict, OfLazy), (lazy_tensor, OfTensor)])
def test_losses_are_the_same_when_reading_a_batch_draws_random_numbers(
    make_trainer: Make, collate: Any, model: type[Model]
) -> None:
    same_with_us(make_trainer, model, collate=collate)


def test_losses_are_the_same_when_a_datasets_length_draws_random_numbers(make_trainer: Make) -> None:
    same_with_us(make_trainer, Model)


def test_step_runs_when_it_disables_hooks_on_saved_tensors(make_trainer: Make) -> None:
    class Disabling(Model):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            with disable_saved_tensors_hooks("none here"):
                return super().training_step(batch, batch_idx)

    doctor = same_with_us(make_trainer, Disabling)
    assert "disabled" in doctor.session.memory.breakdown.activations_basis


def test_users_hooks_see_every_saved_tensor_when_they_are_around_the_training(make_trainer: Make) -> None:
    def n_packed(*callbacks: Any) -> int:
        packed: list[None] = []
        with saved_tensors_hooks(lambda tensor: packed.append(None) or tensor, lambda tensor: tensor):
            losses_of(make_trainer, Model(), *callbacks)
        return len(packed)

    assert n_packed(PerfDoctor(reports=(), schedule=None)) == n_packed() > 0


def test_autograd_function_gets_the_parameter_that_it_saved(make_trainer: Make) -> None:
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x, weight)
            return x * weight

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
            x, weight = ctx.saved_tensors
            return gradients[0] * weight, (gradients[0] * x).sum() * weight.main_scale

    class Scaled(Model):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))
            self.weight.main_scale = 1.0

        def rows(self, batch: Any) -> torch.Tensor:
            return Scale.apply(batch, self.weight)

    doctor = same_with_us(make_trainer, Scaled)
    assert "Scale" in doctor.session.memory.breakdown.activations_basis


def test_users_dispatch_mode_sees_the_same_operators(make_trainer: Make) -> None:
    class Counting(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.n: dict[str, int] = {}

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.n[str(func)] = self.n.get(str(func), 0) + 1
            return func(*args, **(kwargs or {}))

    def operators(*callbacks: Any) -> dict[str, int]:
        with Counting() as counting:
            losses_of(make_trainer, Model(), *callbacks)
        return counting.n

    assert operators(PerfDoctor(reports=(), schedule=None)) == operators()


def test_modules_have_no_more_hooks_when_a_step_is_sampled(make_trainer: Make) -> None:
    class Counts(Model):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            copied = copy.deepcopy(self.net)
            for part in (*self.net.modules(), *copied.modules()):
                assert not part._forward_hooks
                assert not part._forward_pre_hooks
            return super().training_step(batch, batch_idx)

    same_with_us(make_trainer, Counts)


def test_error_of_a_signal_handler_reaches_the_training_when_a_probe_runs(make_trainer: Make) -> None:
    class Interrupting(Model):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            pass

    def handler(*_: Any) -> None:
        raise TimeoutError("the time is up")

    doctor = PerfDoctor(reports=(), schedule=None)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        trainer = make_trainer(doctor, max_epochs=1)
        original = doctor.on_train_batch_start

        def interrupted(*args: Any) -> None:
            loop = doctor._probes.loop
            assert loop is not None
            loop.batch_begins = lambda batch: signal.raise_signal(signal.SIGUSR1)  # type: ignore[method-assign]
            original(*args)

        doctor.on_train_batch_start = interrupted  # type: ignore[method-assign]
        with pytest.raises(TimeoutError, match="the time is up"):
            trainer.fit(Interrupting(), DataLoader(Rows(), batch_size=2))
    finally:
        signal.signal(signal.SIGUSR1, before)


class SwitchedOn(Model):
    def on_train_start(self) -> None:
        torch.autograd.set_detect_anomaly(True)

    def on_train_end(self) -> None:
        torch.autograd.set_detect_anomaly(False)


@pytest.mark.parametrize(("model", "asked"), [(Model, True), (SwitchedOn, False)])
def test_stacks_of_anomaly_detection_are_timed_until_the_run_ends(
    make_trainer: Make, model: type[Model], asked: bool
) -> None:
    before = torch.fx.traceback.format_stack
    doctor = PerfDoctor(reports=(), schedule=None)
    losses_of(lambda *callbacks, **named: make_trainer(*callbacks, detect_anomaly=asked, **named), model(), doctor)
    assert doctor.session is not None
    assert doctor.session.probes_off == ()
    recording = [time for time in doctor.session.steady.named if time.name == "anomaly_detection"]
    assert [(time.phase, time.n_calls % (N_STEPS - 1)) for time in recording] == [("forward", 0)]
    assert torch.fx.traceback.format_stack is before


def test_function_that_records_stacks_can_be_pickled_and_copied_while_it_is_timed(make_trainer: Make) -> None:
    before, found = torch.fx.traceback.format_stack, []

    class Copies(Model):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            now = torch.fx.traceback.format_stack
            found.append((now is before, pickle.loads(pickle.dumps(now)) is now, copy.deepcopy(now) is now))
            return super().training_step(batch, batch_idx)

    doctor = PerfDoctor(reports=(), schedule=None)
    losses_of(lambda *callbacks, **named: make_trainer(*callbacks, detect_anomaly=True, **named), Copies(), doctor)
    assert found[-1] == (False, True, True)
