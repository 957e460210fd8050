"""Each treatment has its effect in a real training."""

from __future__ import annotations

import csv
import gc
import os
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from lightning.fabric.strategies.fsdp import _setup_activation_checkpointing
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import FSDPStrategy
from torch import nn

from lightning_perf.errors import TreatmentError
from lightning_perf.seams import Undos
from lightning_perf.treatments.applier import Applier
from lightning_perf.treatments.blocks import repeated_blocks
from lightning_perf.treatments.specs import find, parse, parse_all

from .trainings import N_FEATURES, QUIET, Block, Net, Treat, loader, train


def test_objects_that_others_froze_stay_frozen() -> None:
    gc.freeze()
    try:
        n_frozen = gc.get_freeze_count()
        with pytest.raises(TreatmentError, match="frozen already"):
            train("gc-freeze", max_steps=1)
        assert gc.get_freeze_count() >= 0.9 * n_frozen  # some are freed by their last reference
    finally:
        gc.unfreeze()


def test_garbage_is_freed_before_objects_are_frozen() -> None:
    class Cycle:
        pass

    one = Cycle()
    one.itself = one
    alive = weakref.ref(one)
    del one
    gc.disable()
    try:
        parse("gc-freeze").treatment.configured(9000, None, None, undos := Undos())
        assert alive() is None
        undos.close()
    finally:
        gc.enable()


def test_trainer_is_made_without_the_profiler_that_the_script_asks_for() -> None:
    applier = Applier([parse("profiler-off")])
    assert applier.change_trainer_arguments({"profiler": "simple", "max_epochs": 3}) == {
        "profiler": None, "max_epochs": 3,
    }  # fmt: skip


def test_activations_are_computed_again_with_the_same_random_numbers() -> None:
    class Counts(Net):
        def __init__(self) -> None:
            super().__init__()
            for block in self.blocks:
                block.linear.register_forward_hook(lambda *_: self.seen.update(n=self.seen.get("n", 0) + 1))

    plain = train(module=Counts, val=loader(8))
    both = train("checkpointing-batch=x2", module=Counts, val=loader(8))
    done = train("activation-checkpointing", module=Counts, val=loader(8))
    n_training, n_validation = 3 * 12, 3 * 2 * (2 + 1)  # blocks × batches; two rounds and the sanity check
    assert plain.module.seen["n"] == n_training + n_validation
    assert done.module.seen["n"] == 2 * n_training + n_validation
    assert done.losses == plain.losses
    assert both.module.seen["n"] == n_training + n_validation  # twice each, in half as many batches
    assert {len(batch) for batch in both.module.batches} == {2 * len(batch) for batch in plain.module.batches}


def test_fewer_activations_are_kept_when_blocks_are_checkpointed() -> None:
    kept: list[int] = []

    class Packs(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            n_bytes = [0]

            def pack(tensor: torch.Tensor) -> torch.Tensor:
                n_bytes[0] += 0 if isinstance(tensor, nn.Parameter) else tensor.nbytes
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                loss = super().training_step(batch, batch_idx)
            kept.append(n_bytes[0])
            return loss

    train(module=Packs, max_steps=1)
    train("activation-checkpointing", module=Packs, max_steps=1)
    assert kept[1] < 0.5 * kept[0]


def test_blocks_are_refused_when_nothing_is_repeated() -> None:
    class Flat(Net):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList()

    with pytest.raises(TreatmentError, match="repeats no block"):
        train("activation-checkpointing", module=Flat)


def test_blocks_are_the_outermost_modules_that_repeat() -> None:
    def stage(n: int) -> nn.Sequential:
        return nn.Sequential(*[Block() for _ in range(n)])

    class ResNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer1, self.layer2, self.head = stage(2), stage(2), nn.Linear(N_FEATURES, 1)

    assert [type(block) for block in repeated_blocks(ResNet())] == [Block] * 4
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2), 3)
    assert repeated_blocks(encoder) == list(encoder.layers)
    towers = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(4)])
    assert repeated_blocks(nn.ModuleDict({"towers": towers})) == list(towers)
    with pytest.raises(TreatmentError):
        repeated_blocks(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU()))


def test_optimizer_steps_less_often_when_accumulating() -> None:
    assert train("accumulate=3", max_epochs=1).trainer.global_step == 2
    assert train(max_epochs=1).trainer.global_step == 6
    with pytest.raises(Exception, match="accumulate"):
        train("accumulate=3", callbacks=[GradientAccumulationScheduler({0: 2})])


@pytest.mark.parametrize(
    ("text", "accumulated", "batch_size", "expected"),
    [("batch-size=x2", 2, 8, 1), ("batch-size=8", 1, 8, 1), ("batch-size=2", 1, 2, 2), ("batch-size=x3", 6, 12, 2)],
)
def test_batch_is_resized_and_the_samples_of_a_step_kept_when_accumulation_allows(
    text: str, accumulated: int, batch_size: int, expected: int
) -> None:
    done = train(text, accumulate_grad_batches=accumulated, max_epochs=1, look=lambda t, _: t.accumulate_grad_batches)
    assert {len(batch) for batch in done.module.batches} == {batch_size}
    assert done.seen == expected
    assert done.trainer.accumulate_grad_batches == accumulated


def test_manual_optimization_accumulates_nothing_when_the_batch_is_resized() -> None:
    class Manual(Net):
        """Trains without automatic optimization."""

        automatic_optimization = False

    done = train("batch-size=2", module=Manual, max_epochs=1, look=lambda t, _: t.accumulate_grad_batches)
    assert {len(batch) for batch in done.module.batches} == {2}
    assert done.seen == 1


def test_metrics_are_logged_every_n_steps(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    train("log-every-n=3", logger=logger, log_every_n_steps=1, max_epochs=1)
    with open(logger.experiment.metrics_file_path, encoding="utf-8") as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["2", "5"]


def test_bar_is_drawn_every_n_steps() -> None:
    class Bar(TQDMProgressBar):
        n_updates = 0

        def _update_n(self, bar: Any, value: int) -> None: ...

        def get_metrics(self, *args: Any) -> Any:
            type(self).n_updates += 1
            return super().get_metrics(*args)

    bar = Bar(refresh_rate=1)
    done = train("progress-refresh=4", enable_progress_bar=True, callbacks=[bar], look=lambda *_: bar.refresh_rate)
    assert done.seen == 4
    assert bar.refresh_rate == 1


def test_progress_refresh_is_refused_when_there_is_no_bar() -> None:
    with pytest.raises(TreatmentError, match="no bar"):
        train("progress-refresh=4")


def test_metrics_stay_off_the_bar_and_in_the_log() -> None:
    def shown(trainer: Trainer, _: Any) -> tuple[bool, bool]:
        return "loss" in trainer.progress_bar_metrics, "loss" in trainer.callback_metrics

    assert train(look=shown).seen == (True, True)
    assert train("prog-bar-off", look=shown).seen == (False, True)


def test_metrics_stay_off_the_bar_when_the_module_has_a_log_of_its_own() -> None:
    class Logs(Net):
        def log(self, key: str, value: Any, **arguments: Any) -> None:  # type: ignore[override]
            super().log(f"own/{key}", value, **arguments)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log(key="loss", value=1.0, prog_bar=True)
            return super().training_step(batch, batch_idx)

    def shown(trainer: Trainer, _: Any) -> tuple[bool, bool]:
        return "own/loss" in trainer.progress_bar_metrics, "own/loss" in trainer.callback_metrics

    assert train("prog-bar-off", module=Logs(), look=shown).seen == (False, True)


def test_bar_is_disabled_when_it_is_switched_off() -> None:
    bar = TQDMProgressBar()
    done = train("prog-bar-off=bar", enable_progress_bar=True, callbacks=[bar], look=lambda *_: bar.is_enabled)
    assert done.seen is False
    assert bar.is_enabled


def test_anomaly_detection_is_off_when_the_user_asked_for_it() -> None:
    look = {"look": lambda *_: torch.is_anomaly_enabled(), "max_steps": 1}
    assert train(detect_anomaly=True, **look).seen is True
    assert train("anomaly-off", detect_anomaly=True, **look).seen is False


def test_checkpoints_are_written_whole_by_a_thread(tmp_path: Path) -> None:
    def where(trainer: Trainer, _: Any) -> str:
        return type(trainer.strategy.checkpoint_io).__name__

    saves = ModelCheckpoint(tmp_path, every_n_train_steps=3, save_top_k=-1)
    done = train("async-checkpoint", enable_checkpointing=True, callbacks=[saves], look=where)
    assert done.seen == "AsyncCheckpointIO"
    assert type(done.trainer.strategy.checkpoint_io).__name__ == "TorchCheckpointIO"
    files = sorted(os.listdir(tmp_path))
    assert len(files) == 4
    states = [torch.load(tmp_path / name, weights_only=False) for name in files]
    assert sorted(state["global_step"] for state in states) == [3, 6, 9, 12]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("val-less-often=3", 2), ("val-less-often=4b", 9), ("val-less-often=9b", 4), ("val-less-often=0.5", 12)],
)
def test_validation_runs_less_often(text: str, expected: int) -> None:
    class Counts(Net):
        def on_validation_start(self) -> None:
            self.seen["n"] = self.seen.get("n", 0) + 1

    arguments = {"module": Counts, "val": loader(4), "max_epochs": 6, "num_sanity_val_steps": 0}
    flags = {"val_check_interval": 1 / 3} if "0.5" in text else {}
    if "b" in text:
        flags = {"val_check_interval": 2}
    assert train(**arguments, **flags).module.seen["n"] == {"val-less-often=3": 6}.get(text, 18)
    assert train(text, **arguments, **flags).module.seen["n"] == expected


def test_validation_builds_no_graphs_in_inference_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    # Another test may leave a group of gloo, with which Lightning uses no inference mode.
    monkeypatch.setattr("lightning.pytorch.loops.utilities._distributed_is_initialized", lambda: False)

    class Graphs(Net):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            with torch.enable_grad():
                self.seen["graph"] = self(batch).requires_grad

    plain = train(module=Graphs, val=loader(8), inference_mode=True)
    done = train("inference-mode", module=Graphs, val=loader(8), inference_mode=False)
    assert (plain.module.seen["graph"], done.module.seen["graph"]) == (True, False)
    assert done.losses == plain.losses
    assert done.trainer.fit_loop.epoch_loop.val_loop.inference_mode is False


@pytest.mark.parametrize(("text", "expected"), [("limit-val-batches=0.34", 1), ("limit-val-batches=2", 2)])
def test_validation_has_fewer_batches(text: str, expected: int) -> None:
    class Counts(Net):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.seen["n"] = self.seen.get("n", 0) + 1

    arguments = {"module": Counts, "val": loader(12), "max_epochs": 1, "num_sanity_val_steps": 0}
    assert train(**arguments).module.seen["n"] == 3
    assert train(text, **arguments).module.seen["n"] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ddp-static-graph", {"static_graph": True}),
        ("ddp-bucket-view,ddp-find-unused-off", {"gradient_as_bucket_view": True, "find_unused_parameters": False}),
    ],
)
def test_ddp_is_given_its_arguments(text: str, expected: dict[str, bool]) -> None:
    def given(trainer: Trainer, _: Any) -> dict[str, Any]:
        model = trainer.strategy.model
        return {name: getattr(model, name) for name in expected}

    with mock.patch.dict(os.environ):  # in which Lightning leaves an address and a port
        done = train(text, strategy="ddp_find_unused_parameters_true", look=given, max_epochs=1)
    assert done.seen == expected
    assert done.trainer.strategy._ddp_kwargs == {"find_unused_parameters": True}
    assert len(done.losses) == 6


def test_fsdp_checkpoints_repeated_blocks() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

    model = nn.Sequential(nn.Linear(4, 4), nn.ModuleList([Block(), Block()]))
    trainer, undos = SimpleNamespace(strategy=FSDPStrategy()), Undos()
    find("fsdp-checkpointing").set_up(None, trainer, model, undos)
    _setup_activation_checkpointing(model, trainer.strategy._activation_checkpointing_kwargs)  # as the strategy does
    assert [type(block).__name__ for block in model[1]] == ["CheckpointWrapper"] * 2
    assert type(model[0]) is nn.Linear
    undos.close()
    assert trainer.strategy._activation_checkpointing_kwargs == {}


def test_fsdp_keeps_its_own_checkpointing_policy() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4)))
    strategy = FSDPStrategy(activation_checkpointing_policy={nn.Linear})
    for found in (strategy, SimpleNamespace()):
        with pytest.raises(TreatmentError, match="without activation_checkpointing_policy, found"):
            find("fsdp-checkpointing").set_up(None, SimpleNamespace(strategy=found), model, Undos())


def test_inference_mode_is_refused_with_gloo() -> None:
    with mock.patch.dict(os.environ), pytest.raises(TreatmentError, match="gloo"):
        train("inference-mode", strategy="ddp", max_steps=1)


def test_ddp_treatments_are_refused_when_there_is_no_ddp() -> None:
    with pytest.raises(TreatmentError, match="SingleDeviceStrategy"):
        train("ddp-static-graph")


def test_loader_has_what_was_asked_for() -> None:
    def read(trainer: Trainer, _: Any) -> tuple[Any, ...]:
        data = trainer.train_dataloader
        return data.num_workers, data.prefetch_factor, data.persistent_workers, data.pin_memory

    done = train("loader-prefetch=3,loader-workers=1,loader-persistent,loader-pin-memory", look=read)
    assert done.seen == (1, 3, True, True)
    taken = train("loader-workers=0", data=loader(num_workers=1, persistent_workers=True), look=read)
    assert taken.seen == (0, None, False, False)


def test_applier_is_undone_when_a_treatment_is_refused() -> None:
    applier = Applier(parse_all("matmul-precision-high,channels-last"))
    trainer = Trainer(**QUIET, max_epochs=1, callbacks=[Treat(applier)])
    with pytest.raises(TreatmentError):
        trainer.fit(Net(), loader())
    assert torch.get_float32_matmul_precision() == "highest"
