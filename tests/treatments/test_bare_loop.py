"""``bare-loop`` trains exactly as the Trainer, and refuses what a plain loop cannot do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.plugins import MixedPrecision
from torch.utils.data import DataLoader, IterableDataset

from lightning_perf.errors import TreatmentError
from lightning_perf.treatments.applier import Applier
from lightning_perf.treatments.specs import parse

from .trainings import N_FEATURES, QUIET, Net, Treat, loader, train

N_BATCHES = 11
SCALED = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))


class Meter(Callback):
    """Notes what a training yields at each batch; ``left`` counts batches that the Trainer trains."""

    measures_bare_loop = True

    def __init__(self) -> None:
        self.batches: list[Any] = []
        self.left = 0

    def leave_out_step(self) -> None:
        self.left += 1

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.batches.append((batch_idx, trainer.global_step, outputs["loss"].item(), batch))


class Stream(IterableDataset):
    """As many samples as the other dataset has, of unknown number."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.rand(4 * N_BATCHES - 1, N_FEATURES).unbind())


class Scheduled(Net):
    """A network with a scheduler per step and one per epoch."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        per_step = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)
        per_epoch = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
        return [optimizer], [{"scheduler": per_step, "interval": "step", "frequency": 2}, per_epoch]


class Hooked(Scheduled):
    """A network with hooks that change the training."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.noise = torch.rand(())

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch * 0.5

    def on_after_backward(self) -> None:
        self.head.bias.grad.mul_(2.0)

    def backward(self, loss: torch.Tensor) -> None:
        (2 * loss).backward()

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        optimizer.zero_grad(set_to_none=False)

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        torch.nn.utils.clip_grad_value_(self.parameters(), 0.01)

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        scheduler.step()
        self.head.weight.data.mul_(0.99)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.head.bias.data.add_(outputs["loss"] * self.noise)


class Mapped(Scheduled):
    """A network whose step returns a mapping and whose batches are one."""

    def training_step(self, batch: Any) -> Any:  # type: ignore[override]
        return {"loss": super().training_step(torch.cat([batch["a"], batch["b"]]), 0), "more": 1}


def trained(text: str, module: type[LightningModule], data: Any, **arguments: Any) -> tuple[Any, ...]:
    meter, applier = Meter(), Applier([parse(text)] if text else [])
    seed_everything(3, verbose=False)
    trainer = Trainer(**{**QUIET, "devices": 1, "max_epochs": 2, **arguments}, callbacks=[Treat(applier), meter])
    net = module()
    trainer.fit(net, data(), loader(12, shuffle=True))
    loop = trainer.fit_loop.epoch_loop
    progress = (loop.batch_progress, loop.automatic_optimization.optim_progress.optimizer.step)
    weights = [parameter.detach().clone() for parameter in net.parameters()]
    return meter, meter.batches, weights, progress, loop._batches_that_stepped, net


def shuffled() -> Any:
    return loader(4 * N_BATCHES - 1, shuffle=True)


@pytest.mark.parametrize(
    ("module", "data", "arguments", "n_of_trainer"),
    [
        (Scheduled, shuffled, {}, 4),
        (Scheduled, shuffled, {"accumulate_grad_batches": 3, "gradient_clip_val": 0.01}, 4),
        (Scheduled, shuffled, {"gradient_clip_val": 0.001, "gradient_clip_algorithm": "value"}, 4),
        (Scheduled, shuffled, {"max_epochs": -1, "max_steps": 8, "accumulate_grad_batches": 2}, 4),
        (Scheduled, shuffled, {"val_check_interval": 4}, 2 * 4),
        (Scheduled, shuffled, {"val_check_interval": 5, "check_val_every_n_epoch": None}, 4 + 4),
        (Scheduled, shuffled, {"limit_train_batches": 6, "precision": "bf16-mixed"}, 4),
        (Scheduled, shuffled, {"precision": "64-true"}, 4),
        (Scheduled, lambda: DataLoader(Stream(), 4), {"accumulate_grad_batches": 2}, 4),
        (Hooked, shuffled, {}, 4),
        (Mapped, lambda: {"a": shuffled(), "b": loader(9)}, {}, 4),
    ],
)
def test_losses_batches_weights_and_counts_are_those_of_the_trainer(
    module: Any, data: Any, arguments: dict[str, Any], n_of_trainer: int
) -> None:
    plain, batches, *rest, net = trained("bare-loop", module, data, **arguments)
    _, expected, *others, _ = trained("", module, data, **arguments)
    assert [one[:3] for one in batches] == [one[:3] for one in expected]
    torch.testing.assert_close([one[3] for one in batches], [one[3] for one in expected], rtol=0, atol=0)
    torch.testing.assert_close(rest[0], others[0], rtol=0, atol=0)
    assert rest[1:] == others[1:]
    assert plain.left == n_of_trainer
    assert "log" not in vars(net)


def test_trainers_callbacks_and_logging_do_not_run_in_the_plain_loop() -> None:
    class Counts(Callback):
        n = 0

        def on_train_batch_start(self, *_: Any) -> None:
            self.n += 1

    counts = Counts()
    done = train("bare-loop", callbacks=[counts], data=loader(4 * N_BATCHES), max_epochs=1)
    assert counts.n == len(done.losses) == 2
    assert "advance" not in vars(done.trainer.fit_loop.epoch_loop)


def test_training_that_should_stop_ends_at_that_batch() -> None:
    class Stops(Net):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.trainer.should_stop = batch_idx == 4

    done = train("bare-loop", module=Stops, data=loader(4 * N_BATCHES))
    assert done.trainer.global_step == len(done.module.batches) == 5
    assert done.trainer.fit_loop.epoch_loop._batches_that_stepped == 5


class Manual(Net):
    automatic_optimization = False


class Closure(Net):
    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters())


class OwnStep(Net):
    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any) -> None:
        optimizer.step(closure=optimizer_closure)


class Plateau(Net):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return [optimizer], [{"scheduler": scheduler, "monitor": "loss", "interval": "step"}]


class TakesIterator(Net):
    def training_step(self, dataloader_iter: Any) -> Any:  # type: ignore[override]
        return super().training_step(next(dataloader_iter)[0], 0)


@pytest.mark.parametrize(
    ("module", "arguments", "reason"),
    [
        (Manual, {}, "manual optimization"),
        (Closure, {}, "LBFGS needs a closure"),
        (OwnStep, {}, "OwnStep.optimizer_step needs the Trainer's closure"),
        (Plateau, {}, "monitors a metric at each step"),
        (TakesIterator, {}, "dataloader_iter"),
        (Net, {"plugins": [SCALED]}, "precision 16-mixed"),
        (Net, {"limit_train_batches": 2}, "an epoch has 2 batches"),
    ],
)
def test_what_a_plain_loop_cannot_do_is_refused_before_the_first_batch(
    module: Any, arguments: dict[str, Any], reason: str
) -> None:
    with pytest.raises(TreatmentError, match=f"^bare-loop: .*{reason}"):
        train("bare-loop", module=module, **arguments)


def test_other_strategies_and_several_optimizers_are_refused() -> None:
    from lightning_perf.seams import why_no_bare_loop

    done = train(max_steps=1)
    done.trainer.strategy.optimizers = [done.trainer.optimizers[0]] * 2
    assert why_no_bare_loop(done.trainer, done.module) == "a plain loop expects one optimizer, not 2"
    ddp = Trainer(**QUIET, devices=2, strategy="ddp")
    assert why_no_bare_loop(ddp, done.module).endswith("on a single device, not with DDPStrategy")
