"""Treatments applied between two epochs of a running training."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable
from multiprocessing import context
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch.utils.data import DataLoader

from lightning_perf.errors import TreatmentError
from lightning_perf.live import LiveTreatments
from lightning_perf.seams import logged_metadata, result_collections
from lightning_perf.treatments.applier import Applier
from lightning_perf.treatments.specs import all_treatments, parse, parse_all

from .test_applier import left_behind, process_state
from .trainings import QUIET, Items, Net, Watch, loader


class FromEpochOne(Callback):
    def __init__(self, applier: Applier, check: Any) -> None:
        self.applier, self.check, self.seen = applier, check, []

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        if trainer.current_epoch == 1:
            self.applier.apply_live(trainer, pl_module)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
        self.seen.append(self.check(trainer))

    def teardown(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        self.applier.undo()


def train_live(
    texts: str, check: Any, data: Any = None, module: Any = None, **arguments: Any
) -> tuple[Trainer, list[Any], list[float]]:
    seed_everything(7, verbose=False)
    live, watch = FromEpochOne(Applier(parse_all(texts)), check), Watch()
    module = Net() if module is None else module
    callbacks = [live, watch, TQDMProgressBar()]
    trainer = Trainer(**{**QUIET, "enable_progress_bar": True}, max_epochs=3, callbacks=callbacks, **arguments)
    data = loader(8) if data is None else data
    trainer.fit(module, data)
    assert left_behind(trainer, module) == {}
    return trainer, [seen for i, seen in enumerate(live.seen) if i % 2 == 0], watch.losses


CHECKS: dict[str, tuple[Any, list[Any]]] = {
    "loader-workers=1": (lambda t: t.train_dataloader.num_workers, [0, 1, 1]),
    "loader-workers=1,loader-persistent": (lambda t: t.train_dataloader.persistent_workers, [False, True, True]),
    "loader-workers=1,loader-prefetch=5": (lambda t: t.train_dataloader.prefetch_factor, [None, 5, 5]),
    "loader-pin-memory": (lambda t: t.train_dataloader.pin_memory, [False, True, True]),
    "log-every-n=7": (lambda t: t.log_every_n_steps, [50, 7, 7]),
    "progress-refresh=9": (lambda t: t.progress_bar_callback.refresh_rate, [1, 9, 9]),
    "prog-bar-off=bar": (lambda t: t.progress_bar_callback.is_enabled, [True, False, False]),
    "anomaly-off": (lambda _: torch.is_anomaly_enabled(), [True, False, False]),
    "deterministic-off": (lambda _: torch.are_deterministic_algorithms_enabled(), [True, False, False]),
    "gc-freeze=9000": (
        lambda _: (gc.get_freeze_count() > 0, gc.get_threshold()[0] == 9000),
        [(False, False), (True, True), (True, True)],
    ),
    "matmul-precision-high": (lambda _: torch.get_float32_matmul_precision(), ["highest", "high", "high"]),
    "fused-optimizer": (lambda t: bool(t.optimizers[0].param_groups[0]["fused"]), [False, True, True]),
    "threads=2": (lambda _: torch.get_num_threads(), [1, 2, 2]),
    "flush-denormal": (lambda _: (torch.tensor(1e-38) * 1e-3).item() == 0, [False, True, True]),
}


def test_every_live_treatment_has_a_check() -> None:
    named = {spec.treatment.id for texts in CHECKS for spec in parse_all(texts)}
    named.add("channels-last")  # below, with a model of images
    assert named == {treatment.id for treatment in all_treatments() if treatment.is_live}


class Images(Net):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(2, 3, 2)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx) + self.convolution(torch.ones(1, 2, 4, 4)).square().mean()


def test_images_are_in_channels_last_format_from_the_next_epoch_on_and_weights_are_put_back() -> None:
    module, formats = Images(), []

    def check(trainer: Trainer) -> None:
        formats.append(module.convolution.weight.is_contiguous(memory_format=torch.channels_last))

    train_live("channels-last", check, module=module)
    assert formats[0] is False
    assert formats[-1] is True
    assert module.convolution.weight.is_contiguous()


def wrapped(module: Images) -> None:
    module.convolution = torch.compile(module.convolution, backend="eager")


def in_place(module: Images) -> None:
    module.convolution.compile(backend="eager")


def method(module: Images) -> None:
    class Decorated(torch.nn.Conv2d):
        """A layer with a compiled method."""

        forward = torch.compile(torch.nn.Conv2d.forward, backend="eager")

    module.convolution.__class__ = Decorated


@pytest.mark.parametrize("compiled", [wrapped, in_place, method])
@pytest.mark.parametrize("texts", ["channels-last", "deterministic-off"])
def test_compiled_modules_are_left_as_they_are(texts: str, compiled: Callable[[Images], None]) -> None:
    module = Images()
    compiled(module)
    with pytest.raises(Exception, match="compile the module again"):
        Applier([parse(texts)]).apply_live(SimpleNamespace(optimizers=[]), module)


def test_optimizers_of_others_are_not_fused_in_a_running_training() -> None:
    class Own(torch.optim.Adam):
        """May do anything with its parameters."""

    trainer = SimpleNamespace(optimizers=[Own(Net().parameters())], precision="32-true", gradient_clip_val=None)
    with pytest.raises(Exception, match=r"found .*Own"):
        Applier([parse("fused-optimizer")]).apply_live(trainer, Net())


def test_channels_last_and_fused_optimizers_exclude_each_other_in_a_running_training() -> None:
    module = Images()
    optimizer = torch.optim.Adam(module.parameters(), fused=True)
    trainer = SimpleNamespace(optimizers=[optimizer], precision="32-true", gradient_clip_val=None)
    with pytest.raises(TreatmentError, match="fused optimizer's state"):
        Applier([parse("channels-last")]).apply_live(trainer, module)
    assert module.convolution.weight.is_contiguous()
    optimizer = torch.optim.Adam(module.parameters())
    module.training_step(torch.ones(4, 4), 0).backward()
    optimizer.step()
    trainer.optimizers = [optimizer]
    Applier([parse("channels-last")]).apply_live(trainer, module)
    with pytest.raises(TreatmentError, match="layout of the weights"):
        Applier([parse("fused-optimizer")]).apply_live(trainer, module)


def test_layers_with_sparse_gradients_are_not_fused_in_a_running_training() -> None:
    module = torch.nn.Embedding(3, 2, sparse=True)
    trainer = SimpleNamespace(optimizers=[torch.optim.SGD(module.parameters(), 0.1)], precision="32-true",
                              gradient_clip_val=None)  # fmt: skip
    with pytest.raises(TreatmentError, match="sparse=True"):
        Applier([parse("fused-optimizer")]).apply_live(trainer, module)


@pytest.mark.parametrize("texts", CHECKS)
def test_it_holds_from_the_next_epoch_on_and_is_put_back(texts: str) -> None:
    check, expected = CHECKS[texts]
    data = loader(8)
    torch.use_deterministic_algorithms("deterministic" in texts)
    before = process_state()
    try:
        trainer, seen, _ = train_live(texts, check, data, detect_anomaly="anomaly" in texts)
        assert seen == expected
        assert process_state() == before
    finally:
        torch.use_deterministic_algorithms(False)
    assert trainer.train_dataloader is data
    assert (trainer.log_every_n_steps, trainer.progress_bar_callback.refresh_rate) == (50, 1)


def test_losses_of_the_next_epoch_are_bit_identical_when_several_loaders_get_workers_between_epochs() -> None:
    def combined() -> CombinedLoader:
        return CombinedLoader([loader(8), loader(8, batch_size=2)], "min_size")

    def check(trainer: Trainer) -> list[int]:
        return [one.num_workers for one in trainer.fit_loop._combined_loader.flattened]

    _, _, expected = train_live("log-every-n=50", check, combined())
    _, seen, losses = train_live("loader-workers=1", check, combined())
    n_epoch = len(expected) // 3
    assert losses[: 2 * n_epoch] == expected[: 2 * n_epoch]  # later ones drop out by other random numbers
    assert seen[0] == [0, 0]
    assert seen[-1] == [1, 1]


class Derived(DataLoader):
    """Fetches in its own way, for all one knows."""

    def __iter__(self) -> Any:
        return super().__iter__()


def test_nothing_changes_when_one_of_several_loaders_cannot_be_rebuilt() -> None:
    seen: list[Any] = []

    class Refused(FromEpochOne):
        def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
            if trainer.current_epoch == 1:
                with pytest.raises(Exception, match="Derived"):
                    self.applier.apply_live(trainer, pl_module)
                self.applier.undo()
                seen.append(list(trainer.fit_loop._combined_loader.flattened))

    plain, other = loader(8), Derived(Items(8), batch_size=4)
    refused = Refused(Applier([parse("loader-workers=1")]), lambda _: None)
    trainer = Trainer(**QUIET, max_epochs=2, callbacks=[refused])
    trainer.fit(Net(), CombinedLoader([plain, other], "max_size_cycle"))
    assert seen[0][0] is plain
    assert seen[0][1] is other
    assert "process_dataloader" not in vars(trainer.strategy)


def test_loader_is_kept_when_its_workers_would_import_the_script_again(monkeypatch: pytest.MonkeyPatch) -> None:
    spawn = multiprocessing.get_context("spawn")
    monkeypatch.setattr(context._default_context, "_actual_context", spawn)  # type: ignore[attr-defined]
    trainer, plain = Trainer(**QUIET, max_epochs=2), loader(8)
    live = LiveTreatments(["loader-workers=1"])

    class Applies(Callback):
        def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
            if trainer.current_epoch == 1:
                live.apply([("loader-workers=1", "PD101")], trainer, pl_module)

    trainer.callbacks.append(Applies())
    trainer.fit(Net(), plain)
    assert trainer.current_epoch == 2
    assert trainer.train_dataloader is plain
    (applied,) = live.applied
    assert applied.status == "refused"
    assert applied.reason == "workers would be started by spawn, not by fork; set num_workers where the loader is made"


def shown_on_bar(trainer: Trainer) -> set[bool]:
    return {meta.prog_bar for results in result_collections(trainer) for meta in logged_metadata(results)}


def test_metrics_can_be_logged_on_when_they_leave_the_bar_between_epochs_and_come_back() -> None:
    class Shows(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            self.log("shown", 1.0, prog_bar=True, on_step=True, on_epoch=True)
            return loss

    live = FromEpochOne(Applier(parse_all("prog-bar-off=metrics")), shown_on_bar)
    trainer = Trainer(**QUIET, max_epochs=3, callbacks=[live])
    module = Shows()
    trainer.fit(module, loader(8))
    assert live.seen[0] == {True}
    assert live.seen[-1] == {False}
    trainer.callbacks.remove(live)
    trainer.fit_loop.max_epochs = 4
    trainer.fit(module, loader(8))  # Lightning keeps what it knows of a metric from one fit to the next
    assert trainer.current_epoch == 4
    assert shown_on_bar(trainer) == {True}
